"""A plan as it is shown: JSON, a plot, and the steps of its deployments.

document   a plan as JSON
fleet_document, fleet_page   the fleet of a trace as JSON, and as a page or a PNG
page       a page that holds all it shows; charts: line charts of it; scatter: marks in a plane
tradeoff   cost against latency; memory_bars: where memory goes
money      dollars per hour and per million tokens, and renting against an API
picture    a plan as a plot
ranges     a figure and its interval as text
steps      what the steps of a deployment consist of
drafting   what a drafter yields
sharing    what the prefix cache finds of a load
seats      who waits for a seat, and what is without graphs
"""
