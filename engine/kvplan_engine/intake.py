"""A step's tokens go to their sequences: appended, checked for an end, reported."""

from __future__ import annotations

from collections.abc import Sequence as Rows

from kvplan_engine.beam_search import BeamGroup, grow_beams
from kvplan_engine.outputs import PlainOutputs, StepOutput
from kvplan_engine.request import Request, Sequence
from kvplan_engine.sampling.sampler import Draw, SampledToken
from kvplan_engine.scheduler import Scheduler
from kvplan_engine.stop import StopChecker


class TokenIntake:
    """Takes tokens in for ``requests``, by id, and drops those that are finished.

    stall_seconds: in the last step, the longest that a sequence which got a token had waited since its last one,
    running all the while. longest_stall_seconds: of all steps.
    """

    def __init__(
        self, scheduler: Scheduler, stops: StopChecker, requests: dict[str, Request], max_model_len: int
    ) -> None:
        self._scheduler = scheduler
        self._stops = stops
        self._requests = requests
        self._max_model_len = max_model_len
        self._draws: list[Draw] = []
        self._sequences: list[Sequence] = []  # of the draws
        self._token_ids: list[list[int]] = []  # of the sequences, in a plain step
        self._stop_ids: frozenset[int] = frozenset()  # of all of them
        self._num_plain_steps = 0
        self._noted_seconds = 0.0
        self.stall_seconds = 0.0
        self.longest_stall_seconds = 0.0

    def take(self, draws: list[Draw], tokens: list[SampledToken], now: float) -> Rows[StepOutput]:
        """One output per draw."""
        is_same_batch = draws is self._draws
        self._note_times(draws, now)
        if is_same_batch and self._num_plain_steps == 0:
            self._foresee_plain_steps()
        token_ids = [token.token_id for token in tokens]
        if self._num_plain_steps > 0 and self._stop_ids.isdisjoint(token_ids):
            self._num_plain_steps -= 1
            for known, token_id in zip(self._token_ids, token_ids, strict=True):
                known.append(token_id)
            return PlainOutputs(self._sequences, token_ids)
        self._num_plain_steps = 0
        return [self._take_one(sequence, token) for sequence, token in zip(self._sequences, tokens, strict=True)]

    def _foresee_plain_steps(self) -> None:
        """For how many steps of this batch only a stop token can end a sequence, with nothing else to note down."""
        sequences = self._sequences
        self._num_plain_steps = min((s.plain_until - len(s.token_ids) for s in sequences), default=0)
        if self._num_plain_steps > 0:
            self._token_ids = [sequence.token_ids for sequence in sequences]
            self._stop_ids = frozenset().union(*{sequence.request.stop_ids for sequence in sequences})

    def _note_times(self, draws: list[Draw], now: float) -> None:
        """When each sequence got its token. While the draws stay the same list, one time stands for all of them."""
        oldest = self._noted_seconds
        if draws is not self._draws:
            for sequence in self._sequences:
                if sequence.last_token_seconds is not None:  # not preempted since
                    sequence.last_token_seconds = oldest
            self._draws, self._sequences = draws, [draw.sequence for draw in draws]
            self._num_plain_steps = 0
            oldest = min(
                (s.last_token_seconds for s in self._sequences if s.last_token_seconds is not None), default=now
            )
            for sequence in self._sequences:
                sequence.last_token_seconds = now
        self._noted_seconds = now
        self.stall_seconds = now - oldest
        self.longest_stall_seconds = max(self.longest_stall_seconds, self.stall_seconds)

    def _take_one(self, sequence: Sequence, token: SampledToken) -> StepOutput:
        request = sequence.request
        if request.beams is not None:
            return self._report(sequence, request.beams, token)
        sequence.token_ids.append(token.token_id)
        if token.top_logprobs is not None and token.logprob is not None:
            sequence.logprobs.append(token.top_logprobs)
            sequence.cumulative_logprob += token.logprob
        reason = self._stops.check(sequence, self._max_model_len)
        if reason is not None:
            self._scheduler.finish(sequence, reason)
            if request.is_finished:
                self._requests.pop(request.request_id, None)
        elif not sequence.plain_until:
            self._foresee(sequence)
        return StepOutput(sequence, [token.token_id], reason.value if reason else None)

    def _foresee(self, sequence: Sequence) -> None:
        """Up to which length only a stop token can end ``sequence``, with nothing else to note down."""
        params = sequence.request.params
        if params.logprobs is None and not params.stop_strings:
            sequence.plain_until = min(sequence.num_prompt_tokens + params.max_tokens, self._max_model_len) - 1

    def _report(self, beam: Sequence, group: BeamGroup, token: SampledToken) -> StepOutput:
        """A beam's likeliest tokens go to its group, which goes on when all its beams have reported."""
        request = beam.request
        group.report(beam, token.top_logprobs or {})
        if group.is_round_complete:
            grow_beams(request, group, self._scheduler)
            if request.is_finished:
                self._requests.pop(request.request_id, None)
        return StepOutput(beam, [], beam.finish_reason.value if beam.finish_reason else None)
