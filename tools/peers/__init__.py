"""What ``compare_planners.py`` is made of: one question to every planner, and what is known of the right answer.

questions     the models, the settings, and what is asked of each planner
ours          kvplan's answers
asking        runs a probe in the interpreter of a peer, one process per model
probes/       one script per peer, which imports the peer and nothing of kvplan
judgements    the right figures with their sources, and why a peer's differs
comparison    which answers differ, and the tables that people read
speed         ratios of step times to another planner's
"""
