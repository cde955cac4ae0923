"""A plan as it is shown: JSON, a plot, and percentiles of its queues.

document   a plan as JSON
picture    a plan as a plot
drafting   what a drafter yields
sharing    what the prefix cache finds of a load
queues     the load played against one replica of the best deployments
"""
