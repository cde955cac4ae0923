"""Everything is tried and ranked; what is left out or helps where nothing serves.

plan            ``make_plan``: the search as asked, and other formats beside it
frontier        the search: choices from cheap to dear, each with as few replicas as keep the goal
averages        what averages say of more replicas or fewer seats, beside a play
ranking         which of two deployments is the better answer
left_out        why GPUs that were named are in no deployment
fixes           where nothing serves: the cheapest change after which something does
rule_of_thumb   the usual rule of thumb, for comparison
"""
