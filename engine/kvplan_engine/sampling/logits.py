"""Which tokens may be drawn: min-p, top-k and top-p, each as the smallest probability that a token must have.

Tokens as likely as the last one kept are kept too. So the result does not depend on how a sort orders ties, which would
make a draw depend on what else is in the batch.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Sequence as Rows

import numpy as np
import torch

from kvplan_engine.requests.request import Sequence, TokenCounts
from kvplan_engine.requests.sampling_params import SamplingParams

# Most top-p nuclei lie within the likeliest few; finding these takes a third of the time of sorting a vocabulary.
_NUM_LIKELIEST = 256


def truncates(params: SamplingParams) -> bool:
    return params.min_p > 0 or params.top_k > 0 or params.top_p < 1.0


def truncate_row(
    probabilities: torch.Tensor, params: SamplingParams, ranked: torch.Tensor, cumulative: torch.Tensor
) -> None:
    """Zero in ``probabilities`` [vocab_size], in place, what min-p, then top-k, then top-p drop.

    top-p is a share of what min-p and top-k have left. ranked, cumulative: [vocab_size] float32, scratch memory.
    """
    if params.min_p > 0:
        _drop_below(probabilities, params.min_p * float(probabilities.max()))
    if 0 < params.top_k < probabilities.numel():
        _drop_below(probabilities, float(probabilities.topk(params.top_k).values[-1]))
    if params.top_p < 1.0:
        total = float(probabilities.sum())
        threshold = _among_likeliest(probabilities, params, total)
        if threshold is None:
            threshold = _among_all(probabilities, (1.0 - params.top_p) * total, ranked, cumulative)
        _drop_below(probabilities, threshold)


def _drop_below(probabilities: torch.Tensor, threshold: float) -> None:
    just_below = np.nextafter(np.float32(threshold), np.float32(0))  # torch keeps what is greater, not what is equal
    torch.nn.functional.threshold(probabilities, float(just_below), 0.0, inplace=True)


def _among_likeliest(probabilities: torch.Tensor, params: SamplingParams, total: float) -> float | None:
    """The least probability among the fewest tokens that reach top-p; None if the likeliest few do not reach it."""
    likeliest = probabilities.topk(min(max(_NUM_LIKELIEST, params.top_k), probabilities.numel())).values
    position = int(torch.searchsorted(likeliest.cumsum(-1), params.top_p * total))
    return float(likeliest[position]) if position < likeliest.numel() else None


def _among_all(probabilities: torch.Tensor, dropped: float, ranked: torch.Tensor, cumulative: torch.Tensor) -> float:
    """The same from the other end: the first token after the least likely ones, which together have ``dropped``."""
    if ranked.device.type == "cpu":  # NumPy sorts with vector instructions and no indices: 15 times torch's speed
        ranked.copy_(probabilities)
        ranked.numpy().sort()
    else:
        ranked.copy_(probabilities.sort().values)
    torch.cumsum(ranked, dim=-1, out=cumulative)
    position = int(torch.searchsorted(cumulative, dropped, right=True))
    return float(ranked[min(position, ranked.numel() - 1)])


# Changes to a row of logits before a token is chosen: excluded stop tokens, bias, penalties.


def adjusts_logits(sequence: Sequence, stop_ids: frozenset[int], num_drafts: int = 0) -> bool:
    """Whether ``adjust_logits`` would change anything now."""
    params = sequence.request.params
    return params.changes_logits or bool(stop_ids and sequence.num_drawn_tokens + num_drafts < params.min_tokens)


def adjust_logits(row: torch.Tensor, sequence: Sequence, stop_ids: frozenset[int], num_drafts: int = 0) -> None:
    """Apply the request's minimum length, bias and penalties to ``row`` [vocab_size] float32, in place.

    num_drafts: the row is behind so many of the sequence's drafts, as if they were accepted.

    Order as in vLLM: minimum length, bias, then penalties. The repetition penalty, over prompt and answer, divides
    positive logits and multiplies negative ones (Keskar et al., CTRL, 2019). Frequency and presence penalties, over the
    answer alone, are subtracted (OpenAI's API).
    """
    params = sequence.request.params
    if stop_ids and sequence.num_drawn_tokens + num_drafts < params.min_tokens:
        row[torch.tensor(sorted(stop_ids), device=row.device)] = float("-inf")
    if params.logit_bias:
        tokens = torch.tensor(list(params.logit_bias), device=row.device)
        row[tokens] += torch.tensor(list(params.logit_bias.values()), dtype=row.dtype, device=row.device)
    if params.has_penalties:
        _penalize(row, sequence, sequence.draft_token_ids[:num_drafts])


def _penalize(row: torch.Tensor, sequence: Sequence, drafts: Rows[int]) -> None:
    params = sequence.request.params
    counts: TokenCounts | None = sequence.token_counts
    if counts is None:
        counts = sequence.token_counts = TokenCounts(sequence.request.prompt_token_ids)
    counts.extend(sequence.token_ids)
    of_output = counts.of_output if not drafts else Counter(counts.of_output) + Counter(drafts)
    if params.repetition_penalty != 1.0:
        seen = torch.tensor(list(counts.in_prompt.union(of_output)), device=row.device)
        values = row[seen]
        row[seen] = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    if (params.frequency_penalty or params.presence_penalty) and of_output:
        tokens = torch.tensor(list(of_output), device=row.device)
        times = torch.tensor(list(of_output.values()), dtype=row.dtype, device=row.device)
        row[tokens] -= params.frequency_penalty * times + params.presence_penalty


# Where a sequence's random numbers come from: its request's seed, or else the engine's and the sequence's number.


def random_bits(sequence: Sequence, engine_seed: int, *place: int) -> int:
    """64 bits for ``place``: of one draw its position, and nothing where a generator counts positions itself."""
    seed = sequence.request.params.seed
    origin = ("request", seed, sequence.index) if seed is not None else ("engine", engine_seed, sequence.number)
    text = repr((*origin, *place)).encode()
    (number,) = struct.unpack("<Q", hashlib.blake2b(text, digest_size=8).digest())
    return int(number)
