"""What a search for a fleet says on stderr while it runs: how many fleets were played, and the best so far."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from kvplan.commands.printing.plan_tables import formats_text
from kvplan.foreign_text import unguarded
from kvplan.planner.choices.deployment import paid_gpus
from kvplan.planner.fleets.answering import Listener
from kvplan.planner.fleets.playing import Played


def fleet_name(played: Played) -> str:
    """``2 x (4 x h100-sxm, tp 4, fp8 KV)``: replicas of a choice with its formats."""
    choice, replicas = played.plan.found.choice, played.plan.replicas
    name = ", ".join(filter(None, (choice.name, formats_text(choice))))
    return f"{replicas} x ({name})" if replicas > 1 else name


def best_text(played: Played) -> str:
    """``2 x (4 x h100-sxm, tp 4) at $21.52/h``, spare replicas aside."""
    plan = played.plan
    gpu, text = plan.found.choice.gpu, fleet_name(played)
    if gpu.price is None:
        return text
    return f"{text} at ${gpu.price.usd_per_hour * paid_gpus(gpu, plan.replicas * plan.found.num_gpus):,.2f}/h"


@contextmanager
def searching() -> Iterator[Listener]:
    """Say it on a line of its own for each fleet that is the best so far, and on a terminal count those played."""
    stream, said = unguarded(sys.stderr), [""]

    def say_best(played: Played) -> None:
        text = best_text(played)
        if text != said[-1]:
            said.append(text)
            print(f"best so far: {text}", file=stream, flush=True)

    if not sys.stderr.isatty():
        yield Listener(None, say_best)
        return
    from rich.console import Console

    console = Console(file=stream)
    with console.status("reading the trace; Ctrl-C keeps the best so far") as status:
        yield Listener(
            lambda count: status.update(f"{count:,} fleets played; Ctrl-C keeps the best so far"),
            say_best,
        )
