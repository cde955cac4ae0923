"""Beside a plan that keeps a command's settings: what would serve the load without them."""

from __future__ import annotations

from kvplan.commands.printing.render import print_sentence, say
from kvplan.planner.choices.deployment import Deployment
from kvplan.planner.search.plan import Plan


def print_unlike(kept: Plan, free: Plan) -> None:
    """One line with the best deployment of ``free``, beside that of ``kept``; what differs reads at a glance."""
    if not free.deployments:
        return
    best = free.deployments[0]
    if kept.deployments and _figures(best) == _figures(kept.deployments[0]):
        print_sentence("The command's settings are the best that was found.", indent="", further="  ")
    elif kept.deployments:
        print_sentence(f"with the command's settings: {_figures(kept.deployments[0])}", indent="", further="  ")
        print_sentence(f"without them:                {_figures(best)}", indent="", further="  ")
    else:
        print_sentence(f"The command's settings do not serve this load; without them: {_figures(best)}", indent="")
    say()


def _figures(found: Deployment) -> str:
    settings = found.prediction.settings.serving
    formats = f"{found.weights_name} weights, {settings.kv_cache_dtype} KV"
    batch = f"max_num_batched_tokens {settings.max_num_batched_tokens}, max_num_seqs {settings.max_num_seqs}"
    money = "" if found.usd_per_hour is None else f", ${found.usd_per_hour:,.2f}/h"
    return f"{found.name}, {formats}, {batch}{money}"
