"""What a request does to the logits before a token is chosen: penalties, bias, tokens that may not come yet."""

from __future__ import annotations

from collections import Counter

import torch

from kvplan_engine.request import Sequence


def adjusts_logits(sequence: Sequence, stop_ids: frozenset[int]) -> bool:
    """Whether ``adjust_logits`` would change anything now."""
    params = sequence.request.params
    return params.changes_logits or bool(stop_ids and sequence.num_output_tokens < params.min_tokens)


def adjust_logits(row: torch.Tensor, sequence: Sequence, stop_ids: frozenset[int]) -> None:
    """Apply the request's penalties and bias to ``row`` [vocab_size] float32, in place.

    Repetition penalty over prompt and answer: positive logits divided, negative multiplied (Keskar et al., CTRL,
    2019). Frequency and presence penalties over the answer alone: subtracted (OpenAI's API).
    """
    params = sequence.request.params
    if params.repetition_penalty != 1.0:
        seen = torch.tensor(sorted(set(sequence.token_ids)), device=row.device)
        values = row[seen]
        row[seen] = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    if params.frequency_penalty or params.presence_penalty:
        counts = Counter(sequence.output_token_ids)
        if counts:
            tokens = torch.tensor(list(counts), device=row.device)
            times = torch.tensor(list(counts.values()), dtype=row.dtype, device=row.device)
            row[tokens] -= params.frequency_penalty * times + params.presence_penalty
    for token, bias in params.logit_bias.items():
        if 0 <= token < row.numel():
            row[token] += bias
    if sequence.num_output_tokens < params.min_tokens and stop_ids:
        row[torch.tensor(sorted(stop_ids), device=row.device)] = float("-inf")
