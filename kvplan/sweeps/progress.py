"""What a running sweep shows on stderr: live lines on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TextIO

from kvplan.foreign_text import printable
from kvplan.runs.answers.outliers import noise_reason
from kvplan.runs.columns import Row
from kvplan.runs.rows import is_counted, throughput_of
from kvplan.runs.setting_text import ALWAYS_SHOWN, as_phrase, row_text, values_of
from kvplan.runs.statuses import MEASURED_STATUSES, context_limit_text
from kvplan.runs.trials import Trial
from kvplan.sweeps.forecast.prediction import TrialPrediction
from kvplan.sweeps.worker.protocol import Event
from kvplan.units import plural

_MOST_WORKERS: Final = 12


@dataclass(frozen=True, slots=True)
class RunningTrial:
    """What one of several workers is doing. event: the last that it said of this trial."""

    worker: str
    trial: Trial
    event: Event | None


class Progress(Protocol):
    """Is told everything that a runner does. shown: the settings and loads that its lines name.

    ``event`` is of the one worker of a sweep; several are shown by ``running``, again and again.
    """

    def start(self, num_done: int, num_left: int, seconds_left: float, shown: Sequence[str]) -> None: ...

    def trial_started(self, trial: Trial, prediction: TrialPrediction) -> None: ...

    def event(self, message: Event) -> None: ...

    def running(self, trials: Sequence[RunningTrial]) -> None: ...

    def note(self, line: str) -> None: ...

    def trial_ended(self, row: Row, num_left: int, seconds_left: float) -> None: ...

    def stop(self) -> None: ...


class SilentProgress:
    """Shows nothing: for tests and for use as a library."""

    def start(self, num_done: int, num_left: int, seconds_left: float, shown: Sequence[str]) -> None:
        pass

    def trial_started(self, trial: Trial, prediction: TrialPrediction) -> None:
        pass

    def event(self, message: Event) -> None:
        pass

    def running(self, trials: Sequence[RunningTrial]) -> None:
        pass

    def note(self, line: str) -> None:
        pass

    def trial_ended(self, row: Row, num_left: int, seconds_left: float) -> None:
        pass

    def stop(self) -> None:
        pass


class PlainProgress(SilentProgress):
    """One line per finished trial, for logs and pipes."""

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._num_done = 0
        self._shown: Sequence[str] = ALWAYS_SHOWN

    def start(self, num_done: int, num_left: int, seconds_left: float, shown: Sequence[str]) -> None:
        self._num_done, self._shown = num_done, shown
        self._say(f"{plural(num_left, 'trial')} to run, about {format_seconds(seconds_left)}")

    def trial_ended(self, row: Row, num_left: int, seconds_left: float) -> None:
        self._num_done += 1
        left = f", {format_seconds(seconds_left)} left" if num_left else ""
        self._say(f"[{self._num_done}/{self._num_done + num_left}] {line_of(row, self._shown)}{left}")

    def event(self, message: Event) -> None:
        if message["type"] == "notice":
            self.note(message["text"])

    def note(self, line: str) -> None:
        self._say(line)

    def _say(self, line: str) -> None:
        print(printable(line), file=self._output, flush=True)


class RichProgress(SilentProgress):
    """Two live lines: trials done and time left; the running trial with its tokens/s and block occupancy."""

    def __init__(self, output: TextIO) -> None:
        from rich.console import Console, Group
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar
        from rich.text import Text

        console = Console(file=output)
        left = TextColumn("{task.fields[left]}")
        self._bar = Bar(TextColumn("trials"), BarColumn(bar_width=30), MofNCompleteColumn(), left, console=console)
        self._task = self._bar.add_task("trials", total=None, left="")
        self._line = Text("starting", no_wrap=True, overflow="ellipsis")
        group = Group(self._bar, self._line)
        self._live = Live(group, console=console, refresh_per_second=5, transient=True)
        self._deadline = 0.0
        self._num_done = 0
        self._trial = ""
        self._shown: Sequence[str] = ALWAYS_SHOWN

    def start(self, num_done: int, num_left: int, seconds_left: float, shown: Sequence[str]) -> None:
        self._num_done, self._shown = num_done, shown
        self._set_left(num_left, seconds_left)
        self._live.start()

    def trial_started(self, trial: Trial, prediction: TrialPrediction) -> None:
        self._trial = self._name_of(trial)
        self._show(self._trial)

    def _name_of(self, trial: Trial) -> str:
        return as_phrase(values_of(trial), self._shown) + _run_text(trial.run_number, trial.rerun_of)

    def event(self, message: Event) -> None:
        if message["type"] == "notice":
            self.note(message["text"])
        else:
            self._show(_now_text(message, self._trial))

    def running(self, trials: Sequence[RunningTrial]) -> None:
        lines = [f"{entry.worker}: {_now_text(entry.event, self._name_of(entry.trial))}" for entry in trials]
        more = len(lines) - _MOST_WORKERS
        shown = lines if more <= 0 else [*lines[:_MOST_WORKERS], f"and {plural(more, 'worker')} more"]
        self._show("\n".join(shown) or "waiting for workers")

    def note(self, line: str) -> None:
        self._live.console.print(printable(line), highlight=False, markup=False)

    def trial_ended(self, row: Row, num_left: int, seconds_left: float) -> None:
        self._num_done += 1
        text = printable(line_of(row, self._shown))
        self._live.console.print(text, highlight=False, markup=False, style=_style(str(row["status"])))
        self._set_left(num_left, seconds_left)
        self._show("")

    @property
    def live_text(self) -> str:
        """What stands below the bar: the running trial, or a line for each worker."""
        return self._line.plain

    def stop(self) -> None:
        self._live.stop()

    def _set_left(self, num_left: int, seconds_left: float) -> None:
        self._deadline = time.monotonic() + seconds_left
        self._bar.update(self._task, completed=self._num_done, total=self._num_done + num_left)

    def _show(self, now: str) -> None:
        left = format_seconds(max(0.0, self._deadline - time.monotonic())) + " left"
        self._bar.update(self._task, left=left)
        self._line.plain = "\n".join(map(printable, now.splitlines()))


def _now_text(event: Event | None, trial: str) -> str:
    """What a worker is doing; trial: its settings in words."""
    if event is None or event["type"] == "notice":
        return trial
    if event["type"] == "stage":
        return f"{trial}: {event['stage']}"
    speed, usage = event["output_tokens_per_second"], event["kv_usage"]
    load = f"{event['num_running']} running, {event['num_waiting']} waiting"
    now = "" if speed is None else f"{speed:,.0f} tokens/s, "
    return f"{now}KV usage {100 * usage:.1f} %, {load} ({trial})"


def _style(status: str) -> str:
    if status in MEASURED_STATUSES:
        return "default"
    return "red" if status in ("crash", "timeout") else "yellow"


def line_of(row: Row, shown: Sequence[str]) -> str:
    """A finished trial in one line: its settings, which run of them it was, how it ended, and what disturbed it."""
    run = _run_text(row["run_number"], row.get("rerun_of"))
    reason = noise_reason(row)
    disturbed = f" (busy machine: {reason})" if reason else ""
    return f"{row_text(row, shown)}{run}: {outcome_of(row)}{disturbed}"


def _run_text(run_number: int, rerun_of: int | None) -> str:
    if rerun_of is not None:
        return f", rerun of run {rerun_of}"
    return f", run {run_number}" if run_number > 1 else ""


def outcome_of(row: Row) -> str:
    """How a trial ended, in one phrase."""
    status = str(row["status"])
    if status in MEASURED_STATUSES:
        speed = f"{row['max_running']} at once" if is_counted(row) else f"{throughput_of(row):,.1f} tokens/s"
        usage = row["kv_usage_max"]
        text = speed if usage is None else f"{speed}, peak KV usage {100 * usage:.1f} %"
        if row["num_clipped_prompts"]:
            text += f", {plural(row['num_clipped_prompts'], 'request')} clipped"
        if status == "preempted":
            return f"{text}, {plural(row['num_preemptions'] or 0, 'preemption')}"
        return text if status == "ok" else f"{text}, requests waited for blocks"
    if status == "rejected_ctx" and row["largest_max_model_len"]:
        limit = context_limit_text(row["largest_max_model_len"], row["context_limited_by"])
        return f"rejected_ctx ({limit})"
    return f"{status} ({row['error']})" if status in ("crash", "timeout") else status


def format_seconds(seconds: float) -> str:
    """``45 s``, ``2 min 5 s``, ``1 h 4 min``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
