"""Processes a step's tokens: appends each to its sequence, checks whether that has ended, and reports it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Rows
from dataclasses import dataclass

from kvplan_engine.requests.beams import BeamGroup
from kvplan_engine.requests.drafts import DraftCounts
from kvplan_engine.requests.outputs import PlainOutputs, StepOutput
from kvplan_engine.requests.request import Request, Sequence
from kvplan_engine.requests.status import FinishReason, SequenceStatus
from kvplan_engine.requests.step_plan import StepPlan
from kvplan_engine.requests.stop import StopChecker
from kvplan_engine.sampling.sampler import SampledToken, SampledTokens
from kvplan_engine.scheduling.beam_search import grow_beams
from kvplan_engine.scheduling.scheduler import Scheduler


@dataclass(slots=True)
class _Arrived:
    """A step's tokens, by row: sequences, their lists of known tokens, their new tokens. ending: rows that may end."""

    sequences: list[Sequence]
    known: list[list[int]]
    token_ids: list[int]
    details: list[SampledToken] | None
    ending: list[int]


class OutputProcessor:
    """Processes tokens for ``requests``, by id, and removes those that are finished.

    stall_seconds: in the last step, the longest that a sequence which got a token had waited since its last one,
    running all the while. longest_stall_seconds: of all steps. draft_counts: of all steps.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        stops: StopChecker,
        requests: dict[str, Request],
        max_model_len: int,
        most_drafts: int = 0,
    ) -> None:
        self._scheduler = scheduler
        self._stops = stops
        self._requests = requests
        self._max_model_len = max_model_len
        self.stall_seconds = 0.0
        self.longest_stall_seconds = 0.0
        self.draft_counts = DraftCounts(most_drafts)

    def take(self, plan: StepPlan, tokens: SampledTokens, now: float) -> Rows[StepOutput]:
        """Give ``plan.sampled`` its tokens; one output for each. Plans come in the order of their steps.

        ``tokens`` have details where ``plan.needs_token_details``, and runs where drafts were verified.
        """
        self._note_times(plan, now)
        if tokens.runs is not None:
            return [self._take_run(*each) for each in zip(plan.sampled, tokens.runs, strict=True)]
        arrived = _Arrived(plan.sampled, plan.known, tokens.token_ids, tokens.details, plan.ending)
        if self._scheduler.num_orphan_tokens:
            arrived = self._without_orphans(arrived)
        if plan.needs_token_details and arrived.details is not None:
            return [
                self._take_one(sequence, token)
                for sequence, token in zip(arrived.sequences, arrived.details, strict=True)
            ]
        return self._take_all(arrived, plan)

    def _take_all(self, arrived: _Arrived, plan: StepPlan) -> PlainOutputs:
        """Take the tokens of steps in which nothing is said of tokens: those that may end a sequence are found without
        a look at each.

        With stop strings that may be any token.
        """
        token_ids, stop_ids = arrived.token_ids, plan.stop_ids
        deque(map(list.append, arrived.known, token_ids), maxlen=0)
        ending = set(arrived.ending)
        if stop_ids and not stop_ids.isdisjoint(token_ids):
            ending.update(row for row, token in enumerate(token_ids) if token in stop_ids)
        if plan.has_stop_strings:
            ending.update(row for row, each in enumerate(arrived.sequences) if each.request.has_stop_strings)
        reasons: dict[int, str] = {}
        for row in sorted(ending):
            reason = self._end(arrived.sequences[row])
            if reason is not None:
                reasons[row] = reason
        return PlainOutputs(arrived.sequences, token_ids, reasons)

    def _without_orphans(self, arrived: _Arrived) -> _Arrived:
        """Leave out the tokens of sequences that finished after their step had been started."""
        rows = [row for row, sequence in enumerate(arrived.sequences) if sequence.status is not SequenceStatus.FINISHED]
        self._scheduler.num_orphan_tokens -= len(arrived.sequences) - len(rows)
        place = {row: index for index, row in enumerate(rows)}
        return _Arrived(
            [arrived.sequences[row] for row in rows],
            [arrived.known[row] for row in rows],
            [arrived.token_ids[row] for row in rows],
            None if arrived.details is None else [arrived.details[row] for row in rows],
            [place[row] for row in arrived.ending if row in place],
        )

    def _note_times(self, plan: StepPlan, now: float) -> None:
        """Note when each sequence got its token; one clock stands for all sequences of the persistent batch."""
        clock, oldest = self._scheduler.running.decoding.clock, now
        newly = [plan.decodes[row] for row in plan.fresh_rows if plan.decodes[row].last_token_seconds is not None]
        if len(newly) < len(plan.decodes):
            oldest = clock.token_seconds
        if plan.decodes:
            clock.token_seconds = now
        for sequence in newly:
            oldest = min(oldest, sequence.last_token_seconds or now)
            sequence.last_token_seconds = None  # the clock's time is its time, as long as it has a row
        for sequence in plan.sampled[len(plan.decodes) :]:
            oldest = min(oldest, sequence.last_token_seconds or now)
            sequence.last_token_seconds = now
        self.stall_seconds = now - oldest
        self.longest_stall_seconds = max(self.longest_stall_seconds, self.stall_seconds)

    def _take_one(self, sequence: Sequence, token: SampledToken) -> StepOutput:
        request = sequence.request
        if request.beams is not None:
            return self._report(sequence, request.beams, token)
        _append(sequence, token)
        return StepOutput(sequence, [token.token_id], self._end(sequence))

    def _take_run(self, sequence: Sequence, run: list[SampledToken]) -> StepOutput:
        """Append a sequence's accepted drafts and the token behind them, up to the one that ends it."""
        if sequence.request.beams is not None:
            return self._take_one(sequence, run[0])
        if sequence.draft_token_ids:
            self.draft_counts.add(len(sequence.draft_token_ids), len(run) - 1)
            self._scheduler.settle(sequence, len(run) - 1)
        reason, before = None, len(sequence.token_ids)
        for token in run:
            _append(sequence, token)
            reason = self._stops.check(sequence, self._max_model_len)
            if reason is not None:
                break
        sequence.num_tokens = len(sequence.token_ids)  # those behind its end never come
        return StepOutput(sequence, sequence.token_ids[before:], self._finish(sequence, reason))

    def _end(self, sequence: Sequence) -> str | None:
        """Finish ``sequence`` if its last token ends it; why."""
        return self._finish(sequence, self._stops.check(sequence, self._max_model_len))

    def _finish(self, sequence: Sequence, reason: FinishReason | None) -> str | None:
        if reason is None:
            return None
        self._scheduler.finish(sequence, reason)
        if sequence.request.is_finished:
            self._requests.pop(sequence.request.request_id, None)
        return reason.value

    def _report(self, beam: Sequence, group: BeamGroup, token: SampledToken) -> StepOutput:
        """Give a beam's likeliest tokens to its group, which continues when all of its beams have reported."""
        request = beam.request
        group.report(beam, token.top_logprobs or {})
        if group.is_round_complete:
            grow_beams(request, group, self._scheduler)
            if request.is_finished:
                self._requests.pop(request.request_id, None)
        return StepOutput(beam, [], beam.finish_reason.value if beam.finish_reason else None)


def _append(sequence: Sequence, token: SampledToken) -> None:
    """Append a token, and what is said of it."""
    sequence.token_ids.append(token.token_id)
    if token.top_logprobs is not None and token.logprob is not None:
        sequence.logprobs.append(token.top_logprobs)
        sequence.cumulative_logprob += token.logprob
