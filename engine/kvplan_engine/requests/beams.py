"""Beam search as transformers defines it, on forked block tables. No torch.

Every beam is a sequence of the same request. In each round a beam reports its likeliest next tokens; when all have, the
likeliest continuations of all beams together become the next beams. One round with beam_width 3:

    beam A  .5 -> a .2, b .1          A a    A goes on in place
    beam B  .3 -> a .15               A b    forked from A: the same blocks, copied when written to
    beam C  .1                        B a    B goes on in place; C ends and returns its blocks

A beam that has reported waits in the pool for its siblings. When memory is short it gives its blocks back ("parked");
if it has continuations, their KV is recomputed from their tokens. What it reported stays with its group.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from kvplan_engine.errors import EngineError
from kvplan_engine.requests.sampling_params import real_number, truth, whole_number
from kvplan_engine.requests.status import FinishReason


@dataclass(frozen=True, slots=True)
class BeamSearchParams:
    """Names are vLLM's, semantics transformers'.

    beam_width: beams kept per round, and sequences returned. length_penalty: a sequence's score is its summed
    log-probability divided by (number of generated tokens, the end token included) ** length_penalty, so values above
    0 favour long answers. early_stopping: stop as soon as ``beam_width`` answers are complete; otherwise, when no
    running beam scores better than the worst of them. EngineError when a value is out of range.
    """

    beam_width: int = 4
    max_tokens: int = 64
    length_penalty: float = 1.0
    early_stopping: bool = False
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        real_number("beam search: length_penalty", self.length_penalty)
        for name, flag in (("early_stopping", self.early_stopping), ("ignore_eos", self.ignore_eos)):
            truth(f"beam search: {name}", flag)
        for name, value in (("beam_width", self.beam_width), ("max_tokens", self.max_tokens)):
            if whole_number(f"beam search: {name}", value) < 1:
                raise EngineError(f"beam search: {name} must be at least 1, got {value}.")


@dataclass(frozen=True, slots=True)
class BeamSearchSequence:
    """One answer. tokens: prompt and answer, with the end token. text: of all these; "" without a tokenizer.

    cum_logprob: summed natural log-probability of the answer. score: what it was ranked by (see length_penalty).
    """

    tokens: list[int]
    cum_logprob: float
    score: float
    text: str = ""
    finish_reason: str = "length"


@dataclass(frozen=True, slots=True)
class BeamSearchOutput:
    """``beam_width`` answers to one prompt, best first."""

    sequences: list[BeamSearchSequence] = field(default_factory=list)


class Beam(Protocol):
    """What a search needs of the sequences it ranks."""

    token_ids: list[int]
    num_prompt_tokens: int

    @property
    def num_tokens(self) -> int: ...


BeamT = TypeVar("BeamT", bound=Beam)


@dataclass(frozen=True, slots=True)
class Continuation(Generic[BeamT]):
    """A beam and one more token. score: summed log-probability, float32 as in transformers."""

    beam: BeamT
    token: int
    score: np.float32


class BeamGroup(Generic[BeamT]):
    """The beams of one prompt: their scores, what they have reported in this round, and the complete answers.

    end_token_ids: tokens that complete an answer. max_length: longest sequence, prompt included.
    """

    def __init__(self, params: BeamSearchParams, end_token_ids: frozenset[int], max_length: int) -> None:
        self.params = params
        self.finished: list[BeamSearchSequence] = []
        self.scores: dict[BeamT, np.float32] = {}
        self.num_sequences = 1
        self._end_token_ids = frozenset() if params.ignore_eos else end_token_ids
        self._max_length = max_length
        self._reports: dict[BeamT, dict[int, float]] = {}

    def start(self, beams: Iterable[BeamT]) -> None:
        """Begin the search with ``beams``."""
        self.scores = dict.fromkeys(beams, np.float32(0))

    @property
    def num_candidates(self) -> int:
        """Continuations considered per round, and so reported per beam: enough even if every beam ends here."""
        return max(2, 1 + len(self._end_token_ids)) * self.params.beam_width

    def report(self, beam: BeamT, logprobs: dict[int, float]) -> None:
        """Note the likeliest next tokens of ``beam``; after a preemption it reports the same again."""
        self._reports[beam] = logprobs

    @property
    def is_round_complete(self) -> bool:
        return len(self._reports) == len(self.scores)

    def next_beams(self) -> list[Continuation[BeamT]]:
        """Close the round: keeps complete answers, returns the next beams; [] when the search is over."""
        ranked = self._ranked_continuations()
        length = ranked[0].beam.num_tokens + 1
        num_generated = length - ranked[0].beam.num_prompt_tokens
        is_last = length >= self._max_length
        ends = [is_last or continuation.token in self._end_token_ids for continuation in ranked]
        width = self.params.beam_width
        for continuation, ended in zip(ranked[:width], ends, strict=False):
            if ended:
                self._finish(continuation, num_generated)
        alive = [continuation for continuation, ended in zip(ranked, ends, strict=True) if not ended][:width]
        self._reports = {}
        return alive if alive and self._may_improve(alive[0].score, num_generated) else []

    def _ranked_continuations(self) -> list[Continuation[BeamT]]:
        continuations = [
            Continuation(beam, token, np.float32(logprob) + score)
            for beam, score in self.scores.items()
            for token, logprob in self._reports[beam].items()
        ]
        continuations.sort(key=lambda continuation: -continuation.score)
        return continuations[: self.num_candidates]

    def _ranking_score(self, score: np.float32, num_generated: int) -> float:
        return float(score / np.float32(num_generated**self.params.length_penalty))

    def _finish(self, continuation: Continuation[BeamT], num_generated: int) -> None:
        ended = continuation.token in self._end_token_ids
        self.finished.append(
            BeamSearchSequence(
                tokens=[*continuation.beam.token_ids, continuation.token],
                cum_logprob=float(continuation.score),
                score=self._ranking_score(continuation.score, num_generated),
                finish_reason=(FinishReason.STOP if ended else FinishReason.LENGTH).value,
            )
        )
        self.finished.sort(key=lambda sequence: -sequence.score)
        del self.finished[self.params.beam_width :]

    def _may_improve(self, best_running: np.float32, num_generated: int) -> bool:
        """Whether another round may change the result: transformers' heuristic, on the best beam's present length."""
        if len(self.finished) < self.params.beam_width:
            return True
        if self.params.early_stopping:
            return False
        return self._ranking_score(best_running, num_generated) > self.finished[-1].score


def beam_output(group: BeamGroup[Any], tokenizer: Any) -> BeamSearchOutput:
    """The answers of a finished search, with their texts if there is a tokenizer."""
    if tokenizer is None:
        return BeamSearchOutput(group.finished)
    return BeamSearchOutput(
        [
            BeamSearchSequence(
                answer.tokens,
                answer.cum_logprob,
                answer.score,
                tokenizer.decode(answer.tokens, skip_special_tokens=True),
                answer.finish_reason,
            )
            for answer in group.finished
        ]
    )
