"""What is asked: a load, its GPUs, limits and prices.

request   load, lengths and GPUs; the workload with its gaps filled
slo       the limits of a service level
prices    dollars per GPU and hour
"""
