"""From a trace to the cheapest fleet that keeps its service level, window by window.

demand    the requests, the busiest window, and how few replicas could do
setups    a choice of a plan as a replica that is played
judging   whether a played fleet keeps the level, with published intervals
playing   fleets played, each once, on several cores at the same time
search    the search over choices, replicas, token budgets and routers
growth    how much more load the fleet takes, and what fails first
pools     prefill and decode apart, beside a fleet of as many GPUs
policies  replicas that come and go, beside a fixed fleet
answering  the answer: the best fleet as a deployment, with what was found beside it; other formats beside the best, for
           less
"""
