"""A plan as it is shown: JSON, a plot, and the steps of its deployments.

document   a plan as JSON
fleet_document, fleet_page   the fleet of a trace as JSON, and as a page or a PNG
page       a page that holds all it shows; charts: line charts of it, and marks in a plane
tradeoff   cost against latency; memory_bars: where memory goes
money      dollars per hour and per million tokens, and renting against an API
picture    a plan as a plot
ranges     a figure and its interval as text
notes      of a deployment: what its prefix cache finds, its drafter yields, its steps consist of; who waits for a seat
"""
