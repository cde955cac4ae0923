"""Logits to tokens. Rows are worked on a few at a time, in memory that was set aside for it.

Order of the steps, as in vLLM: penalties and bias, temperature, min-p, top-k, top-p, draw. A draw is a function of
(seed, sample, position) alone, so a request with a seed gets the same tokens whatever else runs, and again after a
preemption.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

import torch

from kvplan_engine.layers.ops import Ops
from kvplan_engine.memory import SAMPLER_ROWS
from kvplan_engine.request import Sequence
from kvplan_engine.sampling.logits import adjust_logits, adjusts_logits


@dataclass(frozen=True, slots=True)
class Draw:
    """One token to choose: from row ``row`` of the logits, for ``sequence``."""

    row: int
    sequence: Sequence


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A chosen token. logprob and top_logprobs (token id -> natural log-probability) only where asked for."""

    token_id: int
    logprob: float | None = None
    top_logprobs: dict[int, float] | None = None


class Sampler:
    """Chooses tokens for a step. ``memory``: the workspace's sampler buffer, uint8."""

    def __init__(self, memory: torch.Tensor, vocab_size: int, ops: Ops, *, engine_seed: int) -> None:
        self._ops = ops
        self._engine_seed = engine_seed
        self._num_rows = max(1, min(SAMPLER_ROWS, memory.numel() // (vocab_size * 24)))
        count = self._num_rows * vocab_size

        def take(start: int, dtype: torch.dtype) -> torch.Tensor:
            return memory[start * count : (start + dtype.itemsize) * count].view(dtype).view(self._num_rows, vocab_size)

        self._indices = take(0, torch.int64)
        self._logits, self._sorted, self._probabilities, self._cumulative = (
            take(start, torch.float32) for start in (8, 12, 16, 20)
        )

    def sample(self, logits: torch.Tensor, draws: list[Draw], stop_ids: list[frozenset[int]]) -> list[SampledToken]:
        """A token for each draw from logits [rows, vocab_size]; ``stop_ids[i]`` may not be drawn before min_tokens."""
        if all(_is_plain_greedy(draw.sequence, stops) for draw, stops in zip(draws, stop_ids, strict=True)):
            best = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
            self._ops.argmax_rows(logits, best)
            tokens = best.tolist()
            return [SampledToken(tokens[draw.row]) for draw in draws]
        result: list[SampledToken] = []
        for start in range(0, len(draws), self._num_rows):
            stop = start + self._num_rows
            result += self._sample_rows(logits, draws[start:stop], stop_ids[start:stop])
        return result

    def _sample_rows(
        self, logits: torch.Tensor, draws: list[Draw], stop_ids: list[frozenset[int]]
    ) -> list[SampledToken]:
        rows = self._logits[: len(draws)]
        for target, draw in zip(rows, draws, strict=True):
            target.copy_(logits[draw.row])
        reports = [self._report(row, draw) for row, draw in zip(rows, draws, strict=True)]
        for row, draw, stops in zip(rows, draws, stop_ids, strict=True):
            adjust_logits(row, draw.sequence, stops)
        tokens = rows.argmax(dim=-1)
        random = [index for index, draw in enumerate(draws) if not draw.sequence.request.params.is_greedy]
        for index in random:
            tokens[index] = self._draw_token(index, draws[index].sequence)
        return [
            SampledToken(token) if report is None else _with_logprobs(token, report, draw)
            for token, report, draw in zip(tokens.tolist(), reports, draws, strict=True)
        ]

    def _report(self, row: torch.Tensor, draw: Draw) -> torch.Tensor | None:
        """Log-probabilities of the raw logits, before anything is done to them, where the request wants to see them."""
        return None if draw.sequence.request.params.logprobs is None else torch.log_softmax(row, dim=-1)

    def _draw_token(self, index: int, sequence: Sequence) -> int:
        params = sequence.request.params
        logits, probabilities = self._logits[index], self._probabilities[index]
        logits.div_(params.temperature)
        torch.softmax(logits, dim=-1, out=probabilities)
        if params.min_p > 0:
            probabilities[probabilities < params.min_p * probabilities.max()] = 0.0
        order = None
        if params.top_k > 0 or params.top_p < 1.0:
            ranked, order = self._sorted[index], self._indices[index]
            torch.sort(probabilities, descending=True, stable=True, out=(ranked, order))
            probabilities = _keep_top(ranked, self._cumulative[index], params.top_k, params.top_p)
        cumulative = torch.cumsum(probabilities, dim=-1, out=self._cumulative[index])
        point = self._uniform(sequence) * float(cumulative[-1])
        # side="right": a token with no probability is never hit, not even by a draw of exactly 0
        position = int(torch.searchsorted(cumulative, point, side="right"))
        if position >= cumulative.numel():  # rounding put the point on the very end
            position = int(probabilities.nonzero()[-1])
        return position if order is None else int(order[position])

    def _uniform(self, sequence: Sequence) -> float:
        """A number in [0, 1) from the request's seed (or the engine's and the sequence) and the position."""
        seed = sequence.request.params.seed
        origin = (
            ("request", seed, sequence.index) if seed is not None else ("engine", self._engine_seed, sequence.number)
        )
        text = repr((*origin, sequence.num_output_tokens)).encode()
        (number,) = struct.unpack("<Q", hashlib.blake2b(text, digest_size=8).digest())
        return float(number >> 11) * 2.0**-53


def _is_plain_greedy(sequence: Sequence, stop_ids: frozenset[int]) -> bool:
    params = sequence.request.params
    return params.is_greedy and params.logprobs is None and not adjusts_logits(sequence, stop_ids)


def _keep_top(ranked: torch.Tensor, cumulative: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """Zero all but the ``top_k`` likeliest, then all but the fewest of those whose share reaches ``top_p``."""
    if 0 < top_k < ranked.numel():
        ranked[top_k:] = 0.0
    if top_p < 1.0:
        torch.cumsum(ranked, dim=-1, out=cumulative)
        # the first token is always kept; another one when those before it have not reached the share yet
        reached = cumulative[:-1] >= top_p * cumulative[-1]
        ranked[1:][reached] = 0.0
    return ranked


def _with_logprobs(token: int, report: torch.Tensor, draw: Draw) -> SampledToken:
    count = draw.sequence.request.params.logprobs or 0
    values, indices = report.topk(count)
    top = dict(zip(indices.tolist(), values.tolist(), strict=True))
    logprob = float(report[token])
    top.setdefault(token, logprob)
    return SampledToken(token, logprob, top)
