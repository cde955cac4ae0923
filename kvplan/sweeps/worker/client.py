"""The sweep's end of a worker: give it a trial, and wait for the result as long as each stage may take."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

from kvplan.machine.device import NoGpu, OpenedGpu, Reserve
from kvplan.sweeps.worker.protocol import (
    DEVICE,
    RESERVE,
    Event,
    Hello,
    Message,
    ReserveMessage,
    TrialOrder,
    TrialResult,
)
from kvplan.workers.process import WorkerProcess

WORKER_COMMAND: Final = (sys.executable, "-m", "kvplan.sweeps.worker.process")

OnEvent = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Maximum time for each stage of a trial, in seconds. silence: longest time without progress while serving.

    compiling: of the CPU's kernels, once for each machine: half a minute of two cores that are free, minutes otherwise.
    """

    starting: float = 180.0
    compiling: float = 900.0
    loading: float = 300.0
    setup: float = 120.0
    warmup: float = 120.0
    serving: float = 120.0
    silence: float = 60.0


class StageDeadline:
    """When to give up on a trial: each stage has its limit, and while serving there must be steady progress."""

    def __init__(self, limits: TimeLimits) -> None:
        self._limits = limits
        self._stage_ends = 0.0
        self._start("loading")

    def on_event(self, message: Event) -> None:
        """A sign of life: a new stage, or progress within one."""
        if message["type"] == "stage":
            self._start(message["stage"])
        self._last_event = time.monotonic()

    @property
    def at(self) -> float:
        """Moment in seconds of time.monotonic()."""
        if self._stage != "serving":
            return self._stage_ends
        return min(self._stage_ends, self._last_event + self._limits.silence)

    @property
    def sentence(self) -> str:
        if self.at < self._stage_ends:
            return f"The trial was ended: no progress for {self._limits.silence:.0f} s."
        return f"The trial was ended: {self._stage} took over {getattr(self._limits, self._stage):.0f} s."

    def _start(self, stage: str) -> None:
        self._stage = stage
        self._last_event = time.monotonic()
        self._stage_ends = self._last_event + getattr(self._limits, stage)


class Worker:
    """One worker process of a sweep. After WorkerDied or WorkerTimeout make a new one.

    when_ready: called once, when the process has imported its engine, or did not.
    """

    def __init__(self, process: WorkerProcess, when_ready: Callable[[], None] | None = None) -> None:
        self._process = process
        self._when_ready = when_ready
        self._hello: Hello | None = None

    @classmethod
    def start(cls, log_path: Path, command: Sequence[str] = WORKER_COMMAND) -> Worker:
        """log_path: a file that its stderr is appended to."""
        return cls(WorkerProcess(command, log_path))

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_ready(self, limits: TimeLimits) -> Hello:
        """Until the process has imported its engine. WorkerDied or WorkerTimeout otherwise."""
        deadline = time.monotonic() + limits.starting
        try:
            while self._hello is None:
                message = self._receive(deadline, f"The worker did not start within {limits.starting:.0f} s.")
                if message["type"] == "hello":
                    self._hello = message
        finally:
            when_ready, self._when_ready = self._when_ready, None
            if when_ready is not None:
                when_ready()
        return self._hello

    def ask_device(self, limits: TimeLimits) -> OpenedGpu | NoGpu:
        """The GPU that the process opens. WorkerDied or WorkerTimeout if it dies of that, or takes too long."""
        self.wait_until_ready(limits)
        self._process.send({"type": DEVICE})
        deadline = time.monotonic() + limits.starting
        while True:
            message = self._receive(deadline, f"The GPU was not opened within {limits.starting:.0f} s.")
            if message["type"] == DEVICE:
                gpu, none = message["gpu"], message["none"]
                return NoGpu(**(none or {})) if gpu is None else _opened(gpu)

    def ask_reserve(self, order: TrialOrder, limits: TimeLimits, on_event: OnEvent) -> Reserve | None:
        """Load the engine of a trial, and what it would keep free of its GPU; None where it cannot be loaded.

        WorkerDied or WorkerTimeout as in ``run_trial``.
        """
        self._process.send(order.as_question())
        deadline = StageDeadline(limits)
        while True:
            message = self._receive(deadline.at, deadline.sentence)
            if message["type"] == RESERVE:
                return reserve_of(message)
            _pass_on(message, deadline, on_event)

    def run_trial(self, order: TrialOrder, limits: TimeLimits, on_event: OnEvent) -> TrialResult:
        """The result of one trial. Stages move the deadline; all events are passed on.

        WorkerDied if the process ends before its result, WorkerTimeout if a stage takes longer than its limit.
        """
        self._process.send(order.as_json())
        deadline, reserve = StageDeadline(limits), None
        while True:
            message = self._receive(deadline.at, deadline.sentence)
            if message["type"] == "result":
                return replace(TrialResult.from_message(message), reserve=reserve)
            if message["type"] == RESERVE:
                reserve = reserve_of(message)
            else:
                _pass_on(message, deadline, on_event)

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()

    def stop(self) -> None:
        """Let the process end, and kill it if it does not."""
        self._process.stop()

    def _receive(self, deadline: float, late_sentence: str) -> Message:
        return cast(Message, self._process.receive(deadline, late_sentence))


def _opened(gpu: Mapping[str, Any]) -> OpenedGpu:
    capability = gpu.get("compute_capability")  # which JSON has as a list
    return OpenedGpu(**{**gpu, "compute_capability": None if capability is None else tuple(capability)})


def reserve_of(message: ReserveMessage) -> Reserve | None:
    """What an engine said; None where it said nothing."""
    return None if message["reserve"] is None else Reserve(**message["reserve"])


def _pass_on(message: Message, deadline: StageDeadline, on_event: OnEvent) -> None:
    if message["type"] in ("notice", "stage", "progress"):
        deadline.on_event(message)
        on_event(message)
