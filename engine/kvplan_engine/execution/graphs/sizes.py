"""Which steps are captured: a ladder of batch sizes of decode steps, and one of token counts of steps with prompts.

A step with prompts is worth a graph while launching it takes longer than computing it. Padding costs time in proportion
once a step is bound by computing, from some 300 tokens on (dense models in 16 bits), so its sizes stand close.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from kvplan_engine.models.step_batch import GraphSize

_SMALL_SIZES = (1, 2, 4, 8)
_SIZE_STEP = 16
_LARGEST_SIZE = 512
_PROMPT_SIZES = (16, *range(32, 256, 32), *range(256, _LARGEST_SIZE + 1, 64))


def ladder_of(max_num_seqs: int) -> tuple[int, ...]:
    """Sequences of decode steps: 1, 2, 4, 8, then multiples of 16, and ``max_num_seqs`` itself, at most 512."""
    largest = min(max_num_seqs, _LARGEST_SIZE)
    sizes = {size for size in (*_SMALL_SIZES, *range(_SIZE_STEP, largest + 1, _SIZE_STEP)) if size <= largest}
    return tuple(sorted(sizes | {largest}))


def prompt_ladder_of(max_num_batched_tokens: int) -> tuple[int, ...]:
    """Tokens of steps with prompts: 16, multiples of 32 up to 256, of 64 up to 512, and no more than a step has."""
    largest = min(max_num_batched_tokens, _LARGEST_SIZE)
    return tuple(sorted({size for size in _PROMPT_SIZES if size <= largest} | {largest}))


def captured_sizes(max_num_seqs: int, max_num_batched_tokens: int, *, with_prompts: bool) -> tuple[GraphSize, ...]:
    """Both ladders, or that of decode steps alone. max_num_seqs: of one step."""
    sizes = [GraphSize(size, size) for size in ladder_of(max_num_seqs)]
    if with_prompts:
        sizes += [
            GraphSize(size, min(size, max_num_seqs), has_prompts=True)
            for size in prompt_ladder_of(max_num_batched_tokens)
        ]
    return tuple(sizes)


def smallest_size(sizes: Sequence[GraphSize], num_tokens: int, num_seqs: int, *, has_prompts: bool) -> GraphSize | None:
    """The smallest of ``sizes`` that holds a step of so many tokens and sequences; None where none does."""
    of_kind = [size for size in sizes if size.has_prompts == has_prompts]
    index = bisect_left(of_kind, num_tokens, key=lambda size: size.num_tokens)
    fitting = (size for size in of_kind[index:] if size.num_seqs >= num_seqs)
    return next(fitting, None)
