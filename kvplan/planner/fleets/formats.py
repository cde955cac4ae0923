"""Other formats of weights and KV cache beside a trace's fleet, as a plan without a trace shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvplan.planner.choices.formats import FormatPair
from kvplan.planner.fleets.playing import Played
from kvplan.planner.fleets.search import FleetSearch


@dataclass(frozen=True)
class OtherFormat:
    """The cheapest fleet in formats that were not asked for, and what these need or may cost in quality."""

    played: Played
    caveats: tuple[str, ...]


def other_formats(search: FleetSearch, pairs: Sequence[FormatPair]) -> tuple[OtherFormat, ...]:
    """What keeps the level for less than the best in each other format, on the best's GPU with its token budget.

    Where nothing keeps it, the first format in which something does, on any GPU. What was found before Ctrl-C is kept.
    """
    found: list[OtherFormat] = []
    best = search.best
    for pair in pairs:
        other = FleetSearch(search.basis, search.player, [pair], search.router)
        if best is not None:
            other.router = best.plan.router
            other.gpus = (best.plan.found.choice.gpu,)
            other.budgets = (best.plan.found.tokens,)
            other.ceiling = search.price(best.plan.found, best.plan.replicas)
        other.search()
        search.num_tried += other.num_tried
        if other.best is not None:
            found.append(OtherFormat(other.best, pair.caveats()))
        if other.was_interrupted:
            search.was_interrupted = True
        if other.was_interrupted or (best is None and found):
            break
    return tuple(sorted(found, key=lambda each: search.price(each.played.plan.found, each.played.plan.replicas)))
