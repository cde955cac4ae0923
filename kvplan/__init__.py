"""kvplan: KV-cache capacity planner and profiler for LLM serving. Importing it never imports torch.

api                 the planner for Python: ``kvplan.estimate``, ``plan``, ``cache``, ``explain``, ``models``, ``gpus``
cli, __main__       the program, which imports only the command that is asked for; help_sections: its help in sections;
                    list_words: lists on a command line; completion: values after <TAB>;
                    terminal: sentences in lines as wide as the terminal
web, site           what a page in a browser asks the planner; that page, its files and its server
commands            one module per command: parse, call, print
bench, profiling    the benchmark of paging; one setting step by step
doctor              what this machine has, and whether its kernels are right
top, load           running servers live; loading one and saying what bound it
engines             other engines in a sweep
calibrate           speeds fitted to measured rows
planner, explaining from a load to deployments; from a start-up log to what to change
sweeps, reports     running trials; plots, tables and pages of their rows
fleet               a trace of requests played on replicas behind a router
runs                a run directory and its rows
estimate            memory and speed by formula
catalog             models, GPUs and engine releases
pasted              commands that people paste, as settings
machine, workload   what this host is; requests and arrivals
workers, metrics    worker processes and their messages; what engines' metrics pages say
settings            every knob of a deployment, declared once; setting_values: its values as people write them
files, foreign_text files that a user names, of bounded size; what others wrote, without orders to a terminal
units, paths, errors  amounts as text, where data lies, the one error a user sees
caveats             assumptions that change what a number means

Rooms only import rooms below them: the order is in pyproject.toml.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvplan.api import (
        Cache,
        Estimate,
        Explanation,
        Gpus,
        Models,
        Plan,
        TracePlan,
        cache,
        estimate,
        explain,
        gpus,
        models,
        plan,
    )

__version__ = "0.3.0"
__all__ = [
    "Cache",
    "Estimate",
    "Explanation",
    "Gpus",
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


def __getattr__(name: str) -> Any:
    """Import the Python interface when it is first asked for: the command line starts without it."""
    if name in __all__:
        return getattr(import_module("kvplan.api"), name)
    raise AttributeError(f"module 'kvplan' has no attribute '{name}'")
