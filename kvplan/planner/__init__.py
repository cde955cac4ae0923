"""``kvplan plan`` and ``kvplan explain``: from a load to deployments, and from a start-up log to what to change.

request          the question, and the workload with its gaps filled
slo              service levels
formats          weight formats to try
candidate        one deployment tried: memory, capacity, speed, limit
search           ``make_plan``: everything tried and ranked, the nearest miss and its cheapest fix
rule_of_thumb    the usual rule of thumb, for comparison
launch           command lines to paste
document, picture          a plan as JSON and as a plot
startup_log      what an engine's start-up log says
explanation      ``explain_log``: the log against our prediction, and the changes that would help
explanation_document       that as JSON
"""
