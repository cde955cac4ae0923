"""What a load sends and when: prompts of a number of tokens, arrival times, and the loops that send.

prompts    texts of a wished number of tokens, made of common words and measured by the server's own count
arrivals   when requests are due: all at once, constant, Poisson, bursty, a ramp, a trace
plan       TrafficPlan: the requests of one run, from the options
dispatch   sends a plan: at its times, with at most so many in flight, or user by user
"""
