"""Errors of the predicted KV tokens by kind of deployment: where kvplan is exact, and where it is not.

``python tools/score_vllm_startups.py --kinds`` prints them. A start-up is of one kind in each aspect, those of the
interval (kvplan.estimate.vllm.kinds) and the set that its row is reported in.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvplan.estimate.speed.queueing.figures import quantile
from kvplan.estimate.vllm.kinds import Kinds
from startup_rows import Row, is_campaign, is_newest


@dataclass(frozen=True, slots=True)
class Placed:
    """A row with the kinds that its deployment is of."""

    row: Row
    kinds: Kinds

    @property
    def aspects(self) -> Kinds:
        """The set that the row is reported in, and the kinds."""
        return {"set": row_set(self.row)} | self.kinds


def row_set(row: Row) -> str:
    """Return the set that a row is reported in."""
    if is_campaign(row):
        return "campaign"
    return "newest" if is_newest(row) else "others"


@dataclass(frozen=True, slots=True)
class KindError:
    """Median and 90th percentile of |error| over one kind's start-ups; ``furthest`` keeps its sign and has its row."""

    group: str
    kind: str
    count: int
    median: float
    p90: float
    furthest: float
    furthest_id: str


def kind_errors(found: Sequence[tuple[Placed, float]]) -> Iterator[KindError]:
    """Yield each kind that has a start-up, with its errors. ``found``: start-ups and their signed errors."""
    for group in found[0][0].aspects if found else ():
        kinds = [(placed.aspects[group], placed.row["id"], error) for placed, error in found]
        for kind in sorted({name for name, _, _ in kinds}):
            members = [(error, identity) for name, identity, error in kinds if name == kind]
            sizes = sorted(abs(error) for error, _ in members)
            furthest, identity = max(members, key=lambda member: abs(member[0]))
            median, p90 = statistics.median(sizes), quantile(sizes, 0.9)
            yield KindError(group, kind, len(members), median, p90, furthest, identity)


def print_kinds(title: str, found: Sequence[tuple[Placed, float]]) -> None:
    """Print one line for each kind."""
    print(f"\n{title:60s} {'rows':>4} {'median':>9} {'p90':>9} {'furthest':>10}")
    group = ""
    for each in kind_errors(found):
        label = f"{each.group if each.group != group else '':13s} {each.kind}"
        group = each.group
        figures = f"{each.median * 100:7.2f} % {each.p90 * 100:7.2f} % {each.furthest * 100:+8.2f} %"
        print(f"{label:60s} {each.count:4d} {figures} {each.furthest_id}")
