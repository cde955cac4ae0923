"""The order of a sweep's trials, as generators of steps that are sent each row before they yield the next step.

schedule     Schedule and Step; a fixed list of trials
boundary_search  which lines ``--boundary`` searches, each by bisection along one axis
slo_search   the largest load within a service level
reruns       outliers are run again, around any schedule
"""
