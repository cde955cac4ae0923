"""What a step says of tokens that have been chosen: log-probabilities for those who ask, some rows at a time."""

from __future__ import annotations

from collections.abc import Sequence as Rows

import numpy as np
import torch

from kvplan_engine.requests.step_plan import StepPlan
from kvplan_engine.sampling.sampler import SampledToken, SampledTokens, Sampler


def with_logprobs(sampler: Sampler, logits: torch.Tensor, plan: StepPlan, token_ids: np.ndarray) -> SampledTokens:
    """``token_ids`` [n] int64 of ``plan.sampled``, chosen elsewhere from logits [rows, vocab_size]."""
    details = [SampledToken(token) for token in token_ids.tolist()]
    wanted = [place for place, each in enumerate(plan.sampled) if each.request.params.logprobs is not None]
    for start in range(0, len(wanted), sampler.num_rows):
        places = wanted[start : start + sampler.num_rows]
        tokens = [details[place].token_id for place in places]
        counts = [plan.sampled[place].request.params.logprobs or 0 for place in places]
        rows = places if plan.logits_rows is None else [plan.logits_rows[place] for place in places]
        described = _of_tokens(sampler.log_softmax(logits, rows), tokens, counts)
        for place, token in zip(places, described, strict=True):
            details[place] = token
    return SampledTokens([token.token_id for token in details], token_ids, details)


def _of_tokens(logprobs: torch.Tensor, tokens: Rows[int], counts: Rows[int]) -> list[SampledToken]:
    """logprobs [n, vocab_size]. counts: how many of the likeliest each token is reported beside. Waits three times."""
    chosen = torch.tensor(tokens, device=logprobs.device).unsqueeze(1)
    own = logprobs.gather(1, chosen).squeeze(1).tolist()
    values, indices = (each.tolist() for each in logprobs.topk(max(counts)))
    found = []
    for row, (token, count) in enumerate(zip(tokens, counts, strict=True)):
        top = dict(zip(indices[row][:count], values[row][:count], strict=True))
        found.append(SampledToken(token, own[row], {**top, token: top.get(token, own[row])}))
    return found
