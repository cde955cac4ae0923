"""Plays on several cores: all of them come back, whatever happens to the processes that they run in."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from kvplan.planner.fleets import playing


@pytest.fixture(autouse=True)
def three_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playing, "num_cores", lambda: 3)


def test_answers_come_back_in_order_beside_threads_of_this_process() -> None:
    done = threading.Event()
    threads = [threading.Thread(target=done.wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        assert playing.side_by_side(200, lambda number: [number] * 500) == [[number] * 500 for number in range(200)]
    finally:
        done.set()
        for thread in threads:
            thread.join()


def test_what_a_play_raises_is_raised() -> None:
    def play(number: int) -> int:
        if number == 3:
            raise ValueError("three")
        return number

    with pytest.raises(ValueError, match="three"):
        playing.side_by_side(5, play)


def test_a_killed_process_costs_nothing() -> None:
    parent = os.getpid()

    def play(number: int) -> int:
        if os.getpid() != parent and number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    assert playing.side_by_side(4, play) == [0, 1, 2, 3]


def test_ctrl_c_leaves_no_process() -> None:
    parent, before = os.getpid(), _children()

    def play(number: int) -> int:
        if number == 0:
            os.kill(parent, signal.SIGINT)
        threading.Event().wait(60)
        return number

    # a process that was started in the background of a shell ignores Ctrl-C from its beginning
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            playing.side_by_side(3, play)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert not _children() - before


def _children() -> set[str]:
    """Processes of this one, those that the tests' own tools started among them."""
    return {pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}
