"""Drives an engine with a trial's requests in real time and records what happens, step by step.

All it needs of an engine is ``ServingEngine``, so that a test can pass one of its own.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvplan.sweeps.worker.metrics import RequestTrace, StepSample


class ServingStats(Protocol):
    """The engine's counts in a step. is_followed: the next step was started before this one's tokens were there."""

    num_running: int
    num_waiting: int
    num_used_blocks: int
    num_used_tokens: int
    num_running_tokens: int
    is_followed: bool


class StepOutput(Protocol):
    """What a step generated for one request."""

    new_token_ids: list[int]

    @property
    def num_cached_tokens(self) -> int: ...

    @property
    def request_id(self) -> str: ...

    @property
    def finished(self) -> bool: ...


class ServingEngine(Protocol):
    """What the generator needs of an engine."""

    @property
    def stats(self) -> ServingStats:
        """Statistics of the step whose tokens came last: another object for each."""
        ...

    def add_request(
        self, request_id: str, prompt_token_ids: list[int], params: Any, *, lora_request: Any = None
    ) -> object: ...

    def step(self) -> Sequence[StepOutput]: ...

    def has_unfinished_requests(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class TimedRequest:
    """A request that is ready to be sent. params: the engine's sampling parameters; lora_request: its adapter."""

    request_id: str
    arrival_seconds: float
    prompt_token_ids: list[int]
    params: Any
    num_output_tokens: int
    lora_request: Any = None


@dataclass(slots=True)
class Recording:
    """What happened during one run of the workload. Times in seconds since its start."""

    traces: list[RequestTrace] = field(default_factory=list)
    samples: list[StepSample] = field(default_factory=list)
    duration_seconds: float = 0.0


Clock = Callable[[], float]
OnStep = Callable[[StepSample], None]


class LoadGenerator:
    """Sends requests when they are due (at most ``max_concurrency`` in flight) and steps the engine until all are done.

    A request counts as arrived when it is sent, as in vLLM's benchmark: waiting for a free place in a closed loop does
    not count. count_cached_tokens: prompt tokens found in the prefix cache since the run began.
    """

    def __init__(
        self,
        engine: ServingEngine,
        requests: Sequence[TimedRequest],
        *,
        max_concurrency: int | None,
        refused: tuple[type[Exception], ...] = (),
        on_step: OnStep | None = None,
        count_cached_tokens: Callable[[], int] = lambda: 0,
        clock: Clock = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._engine = engine
        self._pending = deque(requests)
        self._max_concurrency = max_concurrency or max(len(requests), 1)
        self._refused = refused
        self._on_step = on_step
        self._count_cached_tokens = count_cached_tokens
        self._clock = clock
        self._sleep = sleep
        self._traces: dict[str, RequestTrace] = {}
        self._num_in_flight = 0
        self._since: float | None = None
        self._recording = Recording()

    def run(self) -> Recording:
        """Serve everything. Exceptions of the engine's steps are passed on."""
        start = self._clock()
        while self._pending or self._engine.has_unfinished_requests():
            self._send_due(start)
            if self._engine.has_unfinished_requests():
                self._step(start)
            elif self._pending:
                self._since = None
                self._sleep(max(0.0, self._pending[0].arrival_seconds - (self._clock() - start)))
        self._recording.traces = list(self._traces.values())
        self._recording.duration_seconds = self._clock() - start
        return self._recording

    def _send_due(self, start: float) -> None:
        while self._pending and self._num_in_flight < self._max_concurrency:
            now = self._clock() - start
            if self._pending[0].arrival_seconds > now:
                return
            request = self._pending.popleft()
            due = request.arrival_seconds
            trace = RequestTrace(request.request_id, len(request.prompt_token_ids), now, [], due_seconds=due)
            self._traces[request.request_id] = trace
            try:
                self._engine.add_request(
                    request.request_id, request.prompt_token_ids, request.params, lora_request=request.lora_request
                )
            except self._refused as error:
                trace.error = str(error)
                continue  # the trace stays unfinished and counts as failed
            self._num_in_flight += 1

    def _step(self, start: float) -> None:
        """A call of the engine's. With steps ahead its tokens are those of the step before, or there are none yet."""
        stats = self._engine.stats
        began = self._clock() - start if self._since is None else self._since
        outputs = self._engine.step()
        after = self._clock() - start
        num_new_tokens = 0
        for output in outputs:
            trace = self._traces[output.request_id]
            trace.token_times.extend([after] * len(output.new_token_ids))
            num_new_tokens += len(output.new_token_ids)
            if output.finished:
                trace.num_cached_tokens = output.num_cached_tokens
                trace.finished = True
                self._num_in_flight -= 1
        if self._engine.stats is stats:  # the tokens of no step have come
            self._since = began
            return
        self._since = after if self._engine.stats.is_followed else None
        sample = self._sample(after, after - began, num_new_tokens)
        self._recording.samples.append(sample)
        if self._on_step is not None:
            self._on_step(sample)

    def _sample(self, seconds: float, step_seconds: float, num_new_tokens: int) -> StepSample:
        stats = self._engine.stats
        return StepSample(
            seconds=seconds,
            step_seconds=step_seconds,
            num_running=stats.num_running,
            num_waiting=stats.num_waiting,
            num_used_blocks=stats.num_used_blocks,
            num_used_tokens=stats.num_used_tokens,
            num_running_tokens=stats.num_running_tokens,
            num_new_tokens=num_new_tokens,
            num_cached_tokens=self._count_cached_tokens(),
        )
