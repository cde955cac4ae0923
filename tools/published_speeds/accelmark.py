"""What AccelMark's suites state and its rows do not repeat (at 5797fc42745b).

Its runners call the engine in their own process (runners/*/runner.py): there is no server, and no front end. Prompts
are those of datasets/*/requests.jsonl, shorter than what suites/*/suite.json says of their origin; of the longest ones
only the latter is known. Answers are cut off, and ``max_model_len`` is set.

How long answers are was counted by the runs that keep a number of requests in flight (tokens_out and requests_completed
of results/verified/*/sustained/result.json): 345 to 351 tokens in the mean with 512 at most, 205 to 213 with 256, where
those of the origin have medians of 310 and 150. As many are taken as cut off as make this the mean when the others end
anywhere before.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

from kvplan.estimate.speed.queueing.loads import Lengths, Quantiles
from published_speeds.rows import PublishedRow

SOURCE: Final = "accelmark"


@dataclass(frozen=True, slots=True)
class Suite:
    """Tokens. num_online: requests of a run with a rate, where rows have them wrong."""

    prompts: Quantiles
    answers: Quantiles
    longest_answer: int
    max_model_len: int
    num_online: int | None = None

    def lengths(self) -> tuple[Lengths, Lengths]:
        """Of prompts and of answers."""
        answers = Lengths(0.0, "quantiles", quantiles=self.answers, longest=self.longest_answer)
        return Lengths(0.0, "quantiles", quantiles=self.prompts), answers


def _ended(mean: float, longest: int) -> Quantiles:
    """Of answers that end anywhere before ``longest`` or there, with this mean."""
    return (0.0, 0.0), (2 * (1 - mean / longest), float(longest))


_CHATS: Final = ((0.0, 64.0), (0.25, 106.0), (0.5, 198.0), (0.75, 355.0), (0.9, 456.0), (1.0, 592.0))
_SHORT_CHATS: Final = ((0.0, 20.0), (0.25, 30.0), (0.5, 51.0), (0.75, 106.0), (0.9, 157.0), (1.0, 198.0))
_DOCUMENTS: Final = ((0.0, 28245.0), (0.25, 28245.0), (0.5, 28650.0), (0.75, 29210.0), (0.99, 29932.0))
_CHAT_SUITE: Final = Suite(_CHATS, _ended(347, 512), 512, 4096)
_LONG_SUITE: Final = Suite(_DOCUMENTS, ((0.0, 256.0),), 256, 30208, num_online=100)
"""Its runs with a rate were of 100 requests, not of 200 as its suite says today: an H100 had answered all of them 204 s
after the first one of 0.5 a second (accelmark-104), and V100S and H20 cannot read 200 prompts in the time they took."""
_SMALL_SUITE: Final = Suite(_SHORT_CHATS, _ended(209, 256), 256, 2048)
_OTHERS: Final = {"D": _LONG_SUITE, "F": _SMALL_SUITE}


def suite_of(row: PublishedRow) -> Suite | None:
    """None for rows of others."""
    found = re.search(r"_suite_([A-G])_", row.text["source_url"])
    return _OTHERS.get(found.group(1), _CHAT_SUITE) if row.source == SOURCE and found else None


_WAKES: Final = 0.05
"""Seconds between the looks of a run that keeps several requests in flight (loadgen/loadgen.py, run_sustained)."""


def streams_late(row: PublishedRow) -> float:
    """Seconds that tokens wait at most in the event loop that clients and the first engine share."""
    return _WAKES if (row.max_concurrency or 1) > 1 else math.inf
