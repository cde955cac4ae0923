"""A plan as it is shown: JSON, a plot, and percentiles of its queues.

document   a plan as JSON
money      dollars per hour and per million tokens, and renting against an API
picture    a plan as a plot
queues     the load played against one replica of the best deployments
"""
