"""Everything is tried and ranked; what is left out or helps where nothing serves.

plan            ``make_plan``: every choice tried and ranked, and other formats beside it
left_out        why GPUs that were named are in no deployment
fixes           where nothing serves: the cheapest change after which something does
rule_of_thumb   the usual rule of thumb, for comparison
"""
