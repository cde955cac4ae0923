"""What is asked: a load, its GPUs, limits and prices.

request   load, lengths and GPUs; the workload with its gaps filled
pattern   pauses of users, how lengths spread, and what prompts share
drafter   the model with the drafter that is asked for
asking    the request from values as people write them
slo       the limits of a service level
prices    dollars per GPU and hour
"""
