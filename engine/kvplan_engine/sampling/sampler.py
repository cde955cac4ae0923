"""Logits to tokens, a few rows at a time, in memory allocated beforehand.

Order of the steps, as in vLLM: log-probabilities of the raw logits (if requested), minimum length and bias, penalties,
temperature, min-p, top-k, top-p, draw. A draw is a function of (seed, sample, position) and the logits, so a request
with a seed gets the same tokens from the same logits, whatever else runs, and again after a preemption.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass

import numpy as np
import torch

from kvplan_engine.kernels.interface import Ops
from kvplan_engine.memory.breakdown import SAMPLER_ELEMENT_BYTES, SAMPLER_ROWS
from kvplan_engine.requests.drafts import num_accepted
from kvplan_engine.requests.request import Sequence
from kvplan_engine.requests.step_plan import StepPlan
from kvplan_engine.sampling.logits import adjust_logits, adjusts_logits, random_bits, truncate_row, truncates

_MOST_DRAWS = 8


@dataclass(frozen=True, slots=True)
class Draw:
    """One token to choose: from row ``row`` of the logits, for ``sequence``, behind ``num_drafts`` of its drafts."""

    row: int
    sequence: Sequence
    num_drafts: int = 0


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A chosen token. logprob and top_logprobs (token id -> natural log-probability): if requested."""

    token_id: int
    logprob: float | None = None
    top_logprobs: dict[int, float] | None = None


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """The tokens of a step, by row of ``plan.sampled``. array: the same, int64. details: see SampledToken.

    runs: of a step that verified drafts, by row: the accepted ones of each sequence and the token behind them, which is
    the one above.
    """

    token_ids: list[int]
    array: np.ndarray
    details: list[SampledToken] | None = None
    runs: list[list[SampledToken]] | None = None


class Sampler:
    """Chooses tokens for a step. memory: the workspace's sampler buffer, uint8: six float32 matrices of a few rows.

    num_rows: of these matrices. mask [num_rows, vocab_size] bool: in the last of them, for whoever works between steps.
    """

    def __init__(self, memory: torch.Tensor, vocab_size: int, ops: Ops, *, engine_seed: int) -> None:
        self._ops = ops
        self._engine_seed = engine_seed
        self.num_rows = max(1, min(SAMPLER_ROWS, memory.numel() // (vocab_size * SAMPLER_ELEMENT_BYTES)))
        num_bytes = self.num_rows * vocab_size * 4
        matrices = [
            memory[start * num_bytes : (start + 1) * num_bytes].view(torch.float32).view(self.num_rows, vocab_size)
            for start in range(SAMPLER_ELEMENT_BYTES // 4)
        ]
        self._logits, self._raw_logprobs, self._probabilities, self._ranked, self._cumulative, self._noise = matrices
        self.mask = self._noise.view(torch.bool)[:, :vocab_size]
        self._best = torch.empty(0, dtype=torch.int64, device=memory.device)

    def sample(self, logits: torch.Tensor, draws: list[Draw], stop_ids: list[frozenset[int]]) -> list[SampledToken]:
        """A token for each draw from logits [rows, vocab_size]; ``stop_ids[i]`` are excluded before min_tokens."""
        if all(_is_plain_greedy(draw, stops) for draw, stops in zip(draws, stop_ids, strict=True)):
            tokens = self.likeliest(logits).tolist()
            return [SampledToken(tokens[draw.row]) for draw in draws]
        result: list[SampledToken] = []
        for start in range(0, len(draws), self.num_rows):
            stop = start + self.num_rows
            result += self._sample_rows(logits, draws[start:stop], stop_ids[start:stop])
        return result

    def sample_step(self, logits: torch.Tensor, plan: StepPlan) -> SampledTokens:
        """A token for each of ``plan.sampled``, whose draws may share rows of logits [rows, vocab_size]."""
        if not plan.sampled:
            return SampledTokens([], np.empty(0, dtype=np.int64))
        if plan.is_plainly_greedy and not plan.needs_token_details and plan.logits_rows is None:
            best = self.likeliest(logits).cpu().numpy().copy()
            return SampledTokens(best.tolist(), best)
        rows = range(len(plan.sampled)) if plan.logits_rows is None else plan.logits_rows
        if plan.num_draft_tokens:
            return self._verify(logits, plan, rows)
        draws = [Draw(row, sequence) for row, sequence in zip(rows, plan.sampled, strict=True)]
        details = self.sample(logits, draws, [sequence.request.stop_ids for sequence in plan.sampled]) if draws else []
        token_ids = [token.token_id for token in details]
        return SampledTokens(token_ids, np.array(token_ids, dtype=np.int64), details)

    def _verify(self, logits: torch.Tensor, plan: StepPlan, rows: Rows[int]) -> SampledTokens:
        """Draw behind the drafts as well, as far as ``requests.drafts`` accepts them."""
        sequences = plan.sampled
        if plan.is_plainly_greedy and not plan.needs_token_details:
            best = self.likeliest(logits).tolist()
            counts = (1 + len(sequence.draft_token_ids) for sequence in sequences)
            drawn = (best[row : row + count] for row, count in zip(rows, counts, strict=True))
            return accepted_tokens(sequences, [list(map(SampledToken, each)) for each in drawn])
        runs: list[list[SampledToken]] = [[] for _ in sequences]
        draws = [Draw(row, sequence) for row, sequence in zip(rows, sequences, strict=True)]
        places = list(range(len(draws)))
        while draws:  # what is behind a rejected draft need not be drawn
            tokens = self.sample(logits, draws, [draw.sequence.request.stop_ids for draw in draws])
            for place, token in zip(places, tokens, strict=True):
                runs[place].append(token)
            going = [
                (place, Draw(draw.row + 1, draw.sequence, draw.num_drafts + 1))
                for place, draw, token in zip(places, draws, tokens, strict=True)
                if draw.num_drafts < len(draw.sequence.draft_token_ids)
                and draw.sequence.draft_token_ids[draw.num_drafts] == token.token_id
            ]
            places, draws = [place for place, _ in going], [draw for _, draw in going]
        return accepted_tokens(sequences, runs)

    def likeliest(self, logits: torch.Tensor) -> torch.Tensor:
        """The likeliest token of each row of logits [rows, vocab_size], int64: all that greedy requests need.

        Until the next call.
        """
        if self._best.shape[0] < logits.shape[0]:
            self._best = self._best.new_empty(logits.shape[0])
        best = self._best[: logits.shape[0]]
        self._ops.argmax_rows(logits, best)
        return best

    def log_softmax(self, logits: torch.Tensor, rows: Rows[int] | None = None) -> torch.Tensor:
        """Natural log-probabilities [n, vocab_size] float32, until the next call.

        rows: which of logits [rows, vocab_size], at most ``num_rows`` of them; None: all.
        """
        if rows is None:
            rows = range(logits.shape[0])
        loaded = self._load(logits, rows)
        return torch.log_softmax(loaded, dim=-1, out=self._raw_logprobs[: len(rows)])

    def _sample_rows(
        self, logits: torch.Tensor, draws: list[Draw], stop_ids: list[frozenset[int]]
    ) -> list[SampledToken]:
        rows = self._load(logits, [draw.row for draw in draws])
        reported = [i for i, draw in enumerate(draws) if draw.sequence.request.params.logprobs is not None]
        for index in reported:
            torch.log_softmax(rows[index], dim=-1, out=self._raw_logprobs[index])
        for row, draw, stops in zip(rows, draws, stop_ids, strict=True):
            if adjusts_logits(draw.sequence, stops, draw.num_drafts):
                adjust_logits(row, draw.sequence, stops, draw.num_drafts)
        if all(draw.sequence.request.params.is_greedy for draw in draws):
            tokens = rows.argmax(dim=-1).tolist()
        else:
            tokens = self._draw_tokens(rows, draws)
        sampled = [SampledToken(token) for token in tokens]
        for index in reported:
            count = draws[index].sequence.request.params.logprobs or 0
            sampled[index] = _with_logprobs(tokens[index], self._raw_logprobs[index], count)
        return sampled

    def _load(self, logits: torch.Tensor, numbers: Rows[int]) -> torch.Tensor:
        """These rows of the logits, copied to float32."""
        rows, first = self._logits[: len(numbers)], numbers[0]
        if all(number == first + index for index, number in enumerate(numbers)):
            return rows.copy_(logits[first : first + len(numbers)])
        for target, number in zip(rows, numbers, strict=True):
            target.copy_(logits[number])
        return rows

    # ---- random tokens, all rows at once

    def _draw_tokens(self, rows: torch.Tensor, draws: list[Draw]) -> list[int]:
        params = [draw.sequence.request.params for draw in draws]
        greedy = [index for index, own in enumerate(params) if own.is_greedy]
        best = dict(zip(greedy, rows[greedy].argmax(dim=-1).tolist(), strict=True)) if greedy else {}
        temperatures = [[1.0 if own.is_greedy else own.temperature] for own in params]
        if any(temperature != 1.0 for (temperature,) in temperatures):
            rows.div_(torch.tensor(temperatures, device=rows.device))
        probabilities = torch.softmax(rows, dim=-1, out=self._probabilities[: len(draws)])
        for index, own in enumerate(params):
            if index not in best and truncates(own):
                truncate_row(probabilities[index], own, self._ranked[index], self._cumulative[index])
        unseeded = any(own.seed is None and index not in best for index, own in enumerate(params))
        tokens = self._by_inversion(probabilities, draws) if unseeded else [0] * len(draws)
        for index, own in enumerate(params):
            if index in best:
                tokens[index] = best[index]
            elif own.seed is not None:
                tokens[index] = self._by_race(index, draws[index])
        return tokens

    def _by_inversion(self, probabilities: torch.Tensor, draws: list[Draw]) -> list[int]:
        """Draw by inversion, the cheapest way: where the cumulative probability passes a uniform number."""
        cumulative = torch.cumsum(probabilities, dim=-1, out=self._cumulative[: len(draws)])
        tokens = _passed(cumulative, probabilities, [self._random_bits(draw) for draw in draws])
        for index, token in enumerate(tokens):
            if token < 0:
                tokens[index] = self._draw_again(cumulative[index], probabilities[index], draws[index])
        return tokens

    def _draw_again(self, cumulative: torch.Tensor, probabilities: torch.Tensor, draw: Draw) -> int:
        """With other numbers than the first; the likeliest token when none of a few hits any."""
        for attempt in range(1, _MOST_DRAWS):
            (token,) = _passed(cumulative[None], probabilities[None], [self._random_bits(draw, attempt)])
            if token >= 0:
                return token
        return int(probabilities.argmax())

    def _by_race(self, index: int, draw: Draw) -> int:
        """Draw by an exponential race: each token arrives after an exponential time with its probability as the rate.

        Ten times the work of an inversion. But when logits differ in their last bits, as they do between batch sizes,
        the winner practically never changes, whereas an inversion shifts the borders of all tokens.
        """
        generator = np.random.Generator(np.random.SFC64(self._random_bits(draw)))
        noise = self._noise[index]
        if noise.device.type == "cpu":
            generator.standard_exponential(dtype=np.float32, out=noise.numpy())
        else:
            noise.copy_(torch.from_numpy(generator.standard_exponential(noise.numel(), dtype=np.float32)))
        arrivals = torch.div(self._probabilities[index], noise.clamp_min_(1e-30), out=self._cumulative[index])
        return int(arrivals.argmax())

    def _random_bits(self, draw: Draw, attempt: int = 0) -> int:
        again, sequence = (attempt,) if attempt else (), draw.sequence
        return random_bits(sequence, self._engine_seed, sequence.num_drawn_tokens + draw.num_drafts, *again)


def _passed(cumulative: torch.Tensor, probabilities: torch.Tensor, bits: list[int]) -> list[int]:
    """The token of each row [rows, vocab_size] whose cumulative probability passes a point; -1 for one that cannot be.

    bits: 64 for each row, which say where the point is. Rounding may let a token without any probability pass it,
    because a GPU does not add all tokens in one order, and it may put the point behind the last token.
    """
    points = torch.tensor([[each * 2.0**-64] for each in bits], device=cumulative.device) * cumulative[:, -1:]
    # right=True: not even a point of exactly 0 is passed by a token that adds nothing
    found = torch.searchsorted(cumulative, points, right=True).clamp_(max=cumulative.shape[-1] - 1)
    is_possible = probabilities.gather(-1, found) > 0
    tokens: list[int] = torch.where(is_possible, found, -1).squeeze(-1).tolist()
    return tokens


def accepted_tokens(sequences: Rows[Sequence], drawn: Rows[list[SampledToken]]) -> SampledTokens:
    """What each of ``sequences`` gets. drawn: what came behind its last token and behind its drafts, in order."""
    runs = [
        run[: 1 + num_accepted(sequence.draft_token_ids, [token.token_id for token in run])]
        for sequence, run in zip(sequences, drawn, strict=True)
    ]
    token_ids = [run[-1].token_id for run in runs]
    return SampledTokens(token_ids, np.array(token_ids, dtype=np.int64), runs=runs)


def _is_plain_greedy(draw: Draw, stop_ids: frozenset[int]) -> bool:
    params = draw.sequence.request.params
    is_changed = adjusts_logits(draw.sequence, stop_ids, draw.num_drafts)
    return params.is_greedy and params.logprobs is None and not is_changed


def _with_logprobs(token: int, logprobs: torch.Tensor, count: int) -> SampledToken:
    values, indices = logprobs.topk(count)
    top = dict(zip(indices.tolist(), values.tolist(), strict=True))
    logprob = float(logprobs[token])
    top.setdefault(token, logprob)
    return SampledToken(token, logprob, top)
