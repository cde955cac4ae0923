"""Changes to a row of logits before a token is chosen: excluded stop tokens, bias, penalties."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Rows

import torch

from kvplan_engine.requests.request import Sequence
from kvplan_engine.requests.token_counts import TokenCounts


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
