"""What is asked: a load, its GPUs, limits and prices.

request   load, lengths and GPUs; the workload with its gaps filled; the model with the drafter that is asked for
pattern   pauses of users, how lengths spread, and what prompts share
asking    the request from values as people write them: users, rates, money, the load of a workload file;
          trace: a file with times that is played as it is
slo       the limits of a service level, and the goal: these and how sure, or a readable speed
prices    dollars per hour of a GPU or of a cloud's instance; per million tokens of an API
"""
