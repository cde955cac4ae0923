"""What a step says of tokens that were chosen on the device: log-probabilities for those who ask, some rows at a time.

All of it is queued behind the choice, copies to the host included, and nothing waits: a step that runs ahead of its
tokens has them too.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass

import numpy as np
import torch

from kvplan_engine.device.device import Device
from kvplan_engine.requests.request import PromptTokenLogprob
from kvplan_engine.requests.step_plan import StepPlan
from kvplan_engine.sampling.sampler import SampledToken, Sampler


@dataclass(frozen=True, slots=True)
class PendingLogprobs:
    """Log-probabilities on their way to the host, where ``own``, ``values`` and ``indices`` lie.

    places: of ``plan.sampled``, those who ask; counts: how many of the likeliest tokens each asks for. own [n, 1]: of
    their tokens. values, indices [n, most of counts]: of the likeliest, best first.
    """

    places: list[int]
    counts: list[int]
    own: torch.Tensor
    values: torch.Tensor
    indices: torch.Tensor

    def details(self, token_ids: list[int]) -> list[SampledToken]:
        """``token_ids`` of ``plan.sampled``, described; once the copies are done."""
        details = [SampledToken(token) for token in token_ids]
        own, values, indices = self.own[:, 0].tolist(), self.values.tolist(), self.indices.tolist()
        for row, (place, count) in enumerate(zip(self.places, self.counts, strict=True)):
            token, top = token_ids[place], dict(zip(indices[row][:count], values[row][:count], strict=True))
            details[place] = SampledToken(token, own[row], {**top, token: top.get(token, own[row])})
        return details


def queue_logprobs(
    sampler: Sampler, device: Device, logits: torch.Tensor, plan: StepPlan, chosen: torch.Tensor
) -> PendingLogprobs:
    """Queue those of ``chosen`` [n] int64, the tokens of ``plan.sampled``, chosen from logits [rows, vocab_size]."""
    asked = [(place, each.request.params.logprobs) for place, each in enumerate(plan.sampled)]
    wanted = [(place, count) for place, count in asked if count is not None]
    places, counts = [place for place, _ in wanted], [count for _, count in wanted]
    number, most = len(wanted), max(counts, default=0)
    own = logits.new_empty((number, 1), dtype=torch.float32)
    values = logits.new_empty((number, most), dtype=torch.float32)
    indices = logits.new_empty((number, most), dtype=torch.int64)
    for start in range(0, number, sampler.num_rows):
        some = places[start : start + sampler.num_rows]
        rows = some if plan.logits_rows is None else [plan.logits_rows[place] for place in some]
        logprobs, part = sampler.log_softmax(logits, rows), slice(start, start + len(some))
        own[part] = logprobs.gather(1, _at(chosen, some, device).unsqueeze(1))
        values[part], indices[part] = logprobs.topk(most)
    return PendingLogprobs(places, counts, *(_send(each, device) for each in (own, values, indices)))


def _at(chosen: torch.Tensor, places: Rows[int], device: Device) -> torch.Tensor:
    """``chosen`` at ``places``, which grow."""
    first, last = places[0], places[-1]
    if last - first + 1 == len(places):
        return chosen[first : last + 1]
    return chosen.index_select(0, device.upload(np.array(places)))


def _send(tensor: torch.Tensor, device: Device) -> torch.Tensor:
    buffer = device.host_buffer(tensor)
    if tensor.numel():
        buffer.copy_(tensor, non_blocking=True)
    return buffer


# From the hidden states of a step to log-probabilities of the prompts in it, a few rows at a time.


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
