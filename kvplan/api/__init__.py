"""The planner for Python: what ``kvplan estimate``, ``plan``, ``cache``, ``explain``, ``models`` and ``gpus`` answer.

    import kvplan

    found = kvplan.estimate("llama-3.1-8b", gpu="h100", ctx="16k")
    print(found)                                 # the command's table
    found.deployments[0].max_concurrency         # typed attributes
    found.to_dict()                              # the command's JSON document

Decisions are those of the commands, and stand below both. Standard library only; ``to_frame`` needs pandas.

estimates      memory of a model, and how many sequences fit
plans          deployments for a load, or for a trace that is played; planned: what it answers
caches         a prefix cache of any size over a trace
explanations   where a started server's memory went
listings       models and GPUs known by name
arguments      types and names of arguments, and errors that name them; values of people as the command's options take
               them
"""

from __future__ import annotations

from kvplan.api.caches import Cache, cache
from kvplan.api.estimates import Estimate, estimate
from kvplan.api.explanations import Explanation, explain
from kvplan.api.listings import Gpus, Listing, Models, gpus, models
from kvplan.api.planned import Plan, TracePlan
from kvplan.api.plans import plan

__all__ = [
    "Cache",
    "Estimate",
    "Explanation",
    "Gpus",
    "Listing",
    "Models",
    "Plan",
    "TracePlan",
    "cache",
    "estimate",
    "explain",
    "gpus",
    "models",
    "plan",
]
