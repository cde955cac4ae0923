"""What a sequence asks of the kernel that draws tokens (csrc/cuda/sampling): its DrawRow, and which logits change."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kvplan_engine.kernels.cuda.sampling import DRAW_ROW, IN_PROMPT, IS_LISTED, LISTED, MOST_TIMES
from kvplan_engine.requests.request import Sequence, TokenCounts
from kvplan_engine.sampling.logits import random_bits

_LOG2_E = math.log2(math.e)


@dataclass(frozen=True, slots=True)
class LogitChanges:
    """tokens [n] int64, codes [n] int16: what ``counts`` says of them. listed: by ascending token, of LISTED."""

    tokens: np.ndarray
    codes: np.ndarray
    listed: np.ndarray


def changes_logits(sequence: Sequence) -> bool:
    """Whether a penalty, a bias or a minimum length ever changes its logits."""
    request = sequence.request
    return request.params.changes_logits or bool(request.params.min_tokens and request.stop_ids)


def logit_changes(sequence: Sequence) -> LogitChanges:
    """Return the changes of a sequence whose tokens are all known. Counts end at MOST_TIMES."""
    listed = _listed(sequence)
    codes = {int(token): IS_LISTED for token in listed["token"]}
    if sequence.request.params.has_penalties:
        counts = TokenCounts(sequence.request.prompt_token_ids)
        counts.extend(sequence.token_ids)
        for token in counts.in_prompt:
            codes[token] = codes.get(token, 0) | IN_PROMPT
        for token, times in counts.of_output.items():
            codes[token] = codes.get(token, 0) | min(times, MOST_TIMES)
    tokens = np.fromiter(codes.keys(), np.int64, len(codes))
    return LogitChanges(tokens, np.fromiter(codes.values(), np.uint16, len(codes)).view(np.int16), listed)


def _listed(sequence: Sequence) -> np.ndarray:
    """Biased tokens, and those that would end the answer before its minimum length."""
    params = sequence.request.params
    early = dict(params.logit_bias)
    if params.min_tokens:
        early |= dict.fromkeys(sequence.request.stop_ids, -math.inf)
    rows = [(token, early[token], params.logit_bias.get(token, 0.0)) for token in sorted(early)]
    return np.array(rows, LISTED)


def draw_row(sequence: Sequence, engine_seed: int, vocab_size: int) -> np.ndarray:
    """Its DrawRow, a scalar of that type, without the places of ``counts`` and of what is listed.

    All zeros where it gets the likeliest token and nothing changes its logits.
    """
    params, row = sequence.request.params, np.zeros((), DRAW_ROW)
    if params.is_greedy and not changes_logits(sequence):
        return row
    row["repetition"], row["presence"] = params.repetition_penalty, params.presence_penalty
    row["frequency"] = params.frequency_penalty
    # its n-th token follows position (prompt + n - 1): up to min_tokens of them are early
    row["early_until"] = sequence.num_prompt_tokens + params.min_tokens - 1
    if params.is_greedy:
        return row
    row["key"] = random_bits(sequence, engine_seed)
    row["scale"] = _LOG2_E / params.temperature
    row["max_distance"] = -math.log2(params.min_p) if params.min_p > 0 else math.inf
    row["top_k"] = params.top_k if 0 < params.top_k < vocab_size else 0
    row["top_p"] = params.top_p
    return row
