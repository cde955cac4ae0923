"""Everything is tried and ranked; what is left out or helps where nothing serves.

plan            ``make_plan``: the search as asked, and other formats beside it; why GPUs that were named are in no
                deployment
frontier        the search: choices from cheap to dear, each with as few replicas as keep the goal
ranking         which of two deployments is the better answer; what averages say of more replicas or fewer seats, beside
                a play
fixes           where nothing serves: the cheapest change after which something does
rule_of_thumb   the usual rule of thumb, for comparison
"""
