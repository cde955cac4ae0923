"""Watching servers: drawn again and again until Ctrl-C, or read once for scripts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from kvplan.catalog.spec import ModelSpec
from kvplan.top.gpus import GpuReader, is_local
from kvplan.top.snapshot import Snapshot, make_snapshot
from kvplan.top.view import screen
from kvplan.top.watch import ServerWatch

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_FIRST_ANSWERS_SECONDS: Final = 1.0
"""How long the first picture waits for the servers' first answers."""


@dataclass(frozen=True, slots=True)
class TopOptions:
    """contexts: lengths whose room is shown, none for each server's longest. spec: the model to plan with, None to find
    each server's by its name.
    """

    urls: Sequence[str]
    interval_seconds: float
    window_seconds: float
    contexts: tuple[int, ...] = ()
    spec: ModelSpec | None = None
    api_key: str | None = None


class TopSession:
    """The watched servers. UsageError if a URL is no address."""

    def __init__(self, options: TopOptions, gpus: GpuReader | None = None) -> None:
        self._options = options
        self.watches = [
            ServerWatch(
                url,
                interval_seconds=options.interval_seconds,
                window_seconds=options.window_seconds,
                api_key=options.api_key,
            )
            for url in options.urls
        ]
        has_local = any(is_local(watch.address) for watch in self.watches)
        self._gpus = gpus or (GpuReader.open() if has_local else GpuReader())

    def snapshot(self) -> Snapshot:
        states = [watch.state for watch in self.watches]
        return make_snapshot(states, self._gpus.read(), contexts=self._options.contexts, spec=self._options.spec)

    def read_once(self) -> Snapshot:
        """Two readings of every server, an interval apart, so that there are rates; one where that is 0."""
        self._read_all()
        if self._options.interval_seconds > 0 and any(watch.state.is_up for watch in self.watches):
            time.sleep(self._options.interval_seconds)
            self._read_all()
        for watch in self.watches:
            watch.close()
        return self.snapshot()

    def _read_all(self) -> None:
        """Read every server, all at once. Threads of a pool would be waited for after Ctrl-C, too; these are not."""
        threads = [threading.Thread(target=watch.read_once, daemon=True) for watch in self.watches]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def run(self, console: Console, *, num_frames: int | None = None, stopped: threading.Event | None = None) -> None:
        """Draw until Ctrl-C: in place on a terminal, elsewhere one block of lines after the other.

        num_frames: at most so many, None for no end. stopped: ends it too.
        """
        stopped = stopped or threading.Event()
        for watch in self.watches:
            watch.start()
        try:
            self._wait_for_first_answers()
            if console.is_terminal:
                self._run_live(console, num_frames, stopped)
            else:
                self._draw(lambda frame: console.print(frame, soft_wrap=True), console, num_frames, stopped)
        except KeyboardInterrupt:
            pass  # this is how a live view ends
        finally:
            for watch in self.watches:
                watch.stop()

    def frame(self, width: int, height: int | None) -> Text:
        """The screen now."""
        snapshot = self.snapshot()
        window = f"rates and percentiles of the last {self._options.window_seconds:g} s"
        title = f"kvplan top  {datetime.now():%H:%M:%S}  every {self._options.interval_seconds:g} s, {window}"
        return screen(snapshot, width=width, height=height, title=title)

    def _wait_for_first_answers(self) -> None:
        deadline = time.monotonic() + _FIRST_ANSWERS_SECONDS
        while time.monotonic() < deadline:
            states = [watch.state for watch in self.watches]
            if all(state.reading is not None or state.error is not None for state in states):
                return
            time.sleep(0.02)

    def _run_live(self, console: Console, num_frames: int | None, stopped: threading.Event) -> None:
        from rich.live import Live

        with Live(console=console, screen=True, auto_refresh=False) as live:
            self._draw(lambda frame: live.update(frame, refresh=True), console, num_frames, stopped)

    def _draw(
        self, show: Callable[[Text], None], console: Console, num_frames: int | None, stopped: threading.Event
    ) -> None:
        drawn = 0
        while not stopped.is_set():
            show(self.frame(console.width, console.height if console.is_terminal else None))
            drawn += 1
            if num_frames is not None and drawn >= num_frames:
                return
            stopped.wait(self._options.interval_seconds)
