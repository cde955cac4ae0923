"""One part of a plan: which trials it runs, and the mark by which its manifest shows what plan it is a part of."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final

from kvplan.errors import UsageError
from kvplan.runs.directory import ShardEntry
from kvplan.runs.trials import Trial
from kvplan.units import plural

MOST_SHARDS: Final = 100_000


@dataclass(frozen=True, slots=True)
class Shard:
    """The ``number``-th, from 1, of ``count`` parts."""

    number: int
    count: int

    @staticmethod
    def parse(text: str) -> Shard:
        """``2/3``. UsageError if it is malformed."""
        match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text.strip())
        if match is None or not 1 <= int(match[1]) <= int(match[2]) <= MOST_SHARDS:
            raise UsageError(f"--shard '{text}' is not one of several parts.", hint="for example --shard 1/3")
        return Shard(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def of(self, trials: Sequence[Trial], unit_of: Callable[[Trial], Hashable]) -> tuple[Trial, ...]:
        """Every ``count``-th unit of the plan, from the ``number``-th on, with the numbers that its trials have there.

        unit_of: equal for trials that stay together: runs of one setting, or all that one server serves. UsageError
        where there are fewer units than parts.
        """
        units = list(dict.fromkeys(map(unit_of, trials)))
        if len(units) < self.count:
            raise UsageError(
                f"The plan's {plural(len(trials), 'trial')} cannot be divided by {self.count}: those of one setting "
                "stay together.",
                hint=f"use at most {plural(len(units), 'shard')}",
            )
        mine = set(units[self.number - 1 :: self.count])
        return tuple(trial for trial in trials if unit_of(trial) in mine)

    def entry(self, trials: Sequence[Trial]) -> ShardEntry:
        """What a manifest says of this part. trials: of the whole plan."""
        return {"number": self.number, "count": self.count, "plan_sha256": plan_hash(trials)}


def plan_hash(trials: Sequence[Trial]) -> str:
    """Equal for plans of the same trials in the same order."""
    return hashlib.sha256(json.dumps([trial.as_json() for trial in trials], sort_keys=True).encode()).hexdigest()
