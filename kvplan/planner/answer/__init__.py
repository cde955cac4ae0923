"""A plan as it is shown: JSON, a plot, and the steps of its deployments.

document   a plan as JSON
money      dollars per hour and per million tokens, and renting against an API
picture    a plan as a plot
steps      what the steps of a deployment consist of
"""
