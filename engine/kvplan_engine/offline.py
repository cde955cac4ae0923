"""Requests that ``LLM`` answers together: steps until all are answered, progress, and when what happened."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kvplan_engine.engine import Engine
from kvplan_engine.requests.outputs import PlainOutputs, RequestMetrics, StepOutput
from kvplan_engine.requests.request import Request


class OfflineRun:
    """``requests``: in the order in which they were added."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self._first: dict[Request, float] = {}
        self._last: dict[Request, float] = {}
        self._epoch_seconds = time.time() - time.perf_counter()

    def add(self, request: Request) -> None:
        self.requests.append(request)

    def steps(self, engine: Engine, use_tqdm: bool | Callable[..., Any]) -> None:
        """Step until all are answered. use_tqdm: see ``LLM.generate``."""
        with _bar(use_tqdm)(total=len(self.requests), desc="Processed prompts", dynamic_ncols=True) as bar:
            shown = 0
            while engine.has_unfinished_requests():
                if number := self._note(engine.step()):
                    bar.update(number)
                    shown += number
            bar.update(len(self.requests) - shown)  # searches end without an output that says so

    def _note(self, outputs: Sequence[StepOutput]) -> int:
        """Take the time of each request's tokens. Returns how many requests ended."""
        now = time.perf_counter()
        if isinstance(outputs, PlainOutputs):
            sequences, ended = outputs.sequences, [outputs.sequences[row] for row in outputs.reasons]
        else:
            sequences = [output.sequence for output in outputs]
            ended = [output.sequence for output in outputs if output.finished]
        for sequence in sequences:
            self._first.setdefault(sequence.request, now)
            self._last[sequence.request] = now
        return sum(request.is_finished for request in {sequence.request for sequence in ended})

    def metrics(self, request: Request) -> RequestMetrics:
        """Times of one that is answered."""
        arrival = request.arrival_seconds
        first = self._first.get(request, arrival)
        scheduled = request.first_scheduled_seconds
        return RequestMetrics(
            arrival_time=self._epoch_seconds + arrival,
            queued_ts=arrival,
            scheduled_ts=arrival if scheduled is None else scheduled,
            first_token_ts=first,
            last_token_ts=self._last.get(request, first),
            first_token_latency=first - arrival,
            num_generation_tokens=sum(len(sequence.output_token_ids) for sequence in request.sequences),
            num_preemptions=request.num_preemptions,
        )


def _bar(use_tqdm: bool | Callable[..., Any]) -> Callable[..., Any]:
    """What makes the bar. True: one that only a terminal shows."""
    if callable(use_tqdm):
        return use_tqdm
    from tqdm.auto import tqdm

    return partial(tqdm, disable=None if use_tqdm else True)
