"""A plan as it is shown: JSON, a plot, and the steps of its deployments.

document   a plan as JSON
picture    a plan as a plot
steps      what the steps of a deployment consist of
"""
