"""Lengths of ShareGPT's prompts and answers, as the serving benchmarks of vLLM sample it: the first two turns of a
conversation, with at least 4 tokens each, at most 1,024 of a prompt and 2,048 of both.

sharegpt.csv has 1,000 pairs in the order of the sample: what eight runs of one source printed of each request
(dstackai/benchmarks, comparison/h100sxm5_vs_mi300x/raw_data at 06c957ab, Apache-2.0, tokens of Llama 3.1). Prompts are
those of the sample. Answers are the longest of eight, cut off where the conversation's own ended; the model, a base
model, said nothing to 373 of the prompts, most of them long ones, which is 0 here. Where others' models answer, such
a prompt is given the answer of the prompt most like it in length: 197.4 tokens on average then, where Llama 3.1 8B
Instruct answered the same prompts with 197.5 (pull request 8335 of vllm-project/vllm).
"""

from __future__ import annotations

import csv
import math
import operator
import random
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate
from pathlib import Path
from typing import Final

from kvplan.estimate.speed.queueing.loads import PlayedLoad

_FILE: Final = Path(__file__).parent / "sharegpt.csv"
_LEAST: Final = 4
"""Tokens of an answer in the sample: shorter ones ended early in all runs."""
_STEEPEST: Final = 0.1
_HALVINGS: Final = 40
Pair = tuple[int, int]
"""Tokens of a prompt, and of its answer."""


@dataclass(frozen=True)
class PairedLoad(PlayedLoad):
    """``pairs``: one of each request, in order. ``prompts`` and ``answers`` say their means alone."""

    pairs: tuple[Pair, ...] = ()

    @cached_property
    def lengths(self) -> tuple[Pair, ...]:
        """See ``PlayedLoad``."""
        return self.pairs


@cache
def published_pairs() -> tuple[Pair, ...]:
    with _FILE.open(encoding="utf-8", newline="") as file:
        return tuple((int(row["prompt_tokens"]), int(row["answer_tokens"])) for row in csv.DictReader(file))


@cache
def answered_pairs() -> tuple[Pair, ...]:
    """All prompts; those that the base model left without an answer have that of the one nearest in length."""
    known = [pair for pair in published_pairs() if pair[1] >= _LEAST]
    return tuple(pair if pair[1] >= _LEAST else (pair[0], _nearest(pair[0], known)) for pair in published_pairs())


def _nearest(prompt: int, known: Sequence[Pair]) -> int:
    """The first answer in order of the sample where several are as near."""
    return min(known, key=lambda pair: abs(pair[0] - prompt))[1]


def sampled_pairs(
    count: int, prompt_tokens: float, answer_tokens: float, *, with_empty: bool = False, seed: int = 0
) -> tuple[Pair, ...]:
    """``count`` pairs with these means, in mixed order: evenly spaced shares of all by length of answer.

    Prompts are as many times longer as others' tokens have it. Answers keep their lengths, up to the longest that the
    sample asks for, and short ones count the more the sooner a model ends. ``with_empty``: answers without a token are
    left so, as in the source; 1 here, the end that was sampled.
    """
    known = sorted(published_pairs() if with_empty else answered_pairs(), key=lambda pair: (pair[1], pair[0]))
    known = [(prompt, max(answer, 1)) for prompt, answer in known]
    shares = list(accumulate(_weights([answer for _, answer in known], answer_tokens)))
    found = [known[bisect(shares, (index + 0.5) / count * shares[-1])] for index in range(count)]
    random.Random(seed).shuffle(found)
    longer = prompt_tokens * count / sum(prompt for prompt, _ in found)
    return tuple((max(round(longer * prompt), 1), answer) for prompt, answer in found)


def _weights(lengths: Sequence[int], mean: float) -> list[float]:
    """Of each length, such that ``mean`` is theirs: exp(tilt x length), which departs from equal ones the least."""
    low, high = -_STEEPEST, _STEEPEST
    for _ in range(_HALVINGS):
        tilt = (low + high) / 2
        weights = [math.exp(tilt * length) for length in lengths]
        is_above = sum(map(operator.mul, weights, lengths)) > mean * sum(weights)
        low, high = (low, tilt) if is_above else (tilt, high)
    return weights
