"""A trace in, a fleet out: requests as a file has them, played on replicas behind a router.

requests   requests of a fleet, and what their prompts have in common
routers    which replica a request goes to
replicas   what one replica does with its requests block by block, and several together
apart      pools that read prompts and pools that decode, and KV that moves between them
scaling    replicas that come and go by a policy, and what that saves
shapes     a trace stretched over a day whose load rises and falls
windows    what requests saw, by windows of the trace
tiers      what a prefix cache of any size finds, and what a tier of memory saves
"""
