"""From the hidden states of a step to log-probabilities of the prompts in it, a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kvplan_engine.requests.prompt_logprobs import PromptTokenLogprob
from kvplan_engine.requests.step_plan import StepPlan
from kvplan_engine.sampling.sampler import Sampler


def take_prompt_logprobs(plan: StepPlan, logits_of: Callable[[int, int], torch.Tensor], sampler: Sampler) -> None:
    """Add what the chunks of a step that has been committed say of their prompts' tokens.

    logits_of: logits [last - first, vocab_size] of the step's rows ``first`` to ``last`` - 1.
    """
    row = len(plan.decodes)
    for item in plan.chunks:
        request, first = item.sequence.request, item.sequence.num_computed_tokens - item.num_new_tokens
        gathered = request.prompt_logprobs
        if gathered is not None:
            wanted = gathered.missing(first, item.num_new_tokens)
            for start in range(wanted.start, wanted.stop, sampler.num_rows):
                stop = min(start + sampler.num_rows, wanted.stop)
                logits = logits_of(row + start - first, row + stop - first)
                next_tokens = request.prompt_token_ids[start + 1 : stop + 1]
                gathered.tokens += _of_rows(logits, next_tokens, gathered.num_top, sampler)
        row += item.num_new_tokens


def _of_rows(logits: torch.Tensor, tokens: list[int], num_top: int, sampler: Sampler) -> list[PromptTokenLogprob]:
    """logits [len(tokens), vocab_size]: what comes before each of ``tokens`` says of the vocabulary."""
    logprobs = sampler.log_softmax(logits)
    own = logprobs.gather(1, torch.tensor(tokens, device=logprobs.device).unsqueeze(1))
    at_least = torch.ge(logprobs, own, out=sampler.mask[: len(tokens)])
    ranks = at_least.sum(dim=1).tolist()
    values, indices = logprobs.topk(num_top)
    tops = [dict(zip(*row, strict=True)) for row in zip(indices.tolist(), values.tolist(), strict=True)]
    return [
        PromptTokenLogprob(value, rank, top)
        for value, rank, top in zip(own.squeeze(1).tolist(), ranks, tops, strict=True)
    ]
