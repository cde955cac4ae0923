"""Who sees that a rank is lost while everybody waits for it on a GPU, and what becomes of the others then."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator

import pytest

from kvplan_engine.device.allocation import is_out_of_memory
from kvplan_engine.device.collectives import is_lost
from kvplan_engine.execution.ranks import group
from kvplan_engine.execution.ranks.group import Loss, LossWatch, end_others

Processes = list[subprocess.Popen[bytes]]


@pytest.fixture
def processes() -> Iterator[Processes]:
    started = [subprocess.Popen(["sleep", "600"]) for _ in range(3)]
    yield started
    for process in started:
        process.kill()
        process.wait()


def test_a_watch_tells_once_that_an_end_is_closed() -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    told = threading.Semaphore(0)
    watch = LossWatch([ours.fileno() for ours, _ in pairs], told.release)
    pairs[0][1].send(b"a message is no loss")
    assert not told.acquire(timeout=0.05)
    pairs[1][1].close()
    assert told.acquire(timeout=60)
    watch.close()
    assert not told.acquire(blocking=False)
    for each in (*pairs[0], pairs[1][0]):
        each.close()


def test_a_watch_that_was_closed_tells_nothing() -> None:
    ours, theirs = socket.socketpair()
    told = threading.Event()
    watch = LossWatch([ours.fileno()], told.set)
    watch.close()
    assert not watch._thread.is_alive(), "it still looks at a descriptor that may be another's soon"
    theirs.close()
    ours.close()
    assert not told.is_set()


def test_the_first_that_ended_is_named_also_when_the_others_have(processes: Processes) -> None:
    found = Loss(processes)
    processes[1].send_signal(signal.SIGTERM)
    assert found.name().message == "rank 2 of 4 was ended by SIGTERM."
    for process in processes:
        process.kill()
        process.wait()
    assert found.name().message == "rank 2 of 4 was ended by SIGTERM."


def test_a_process_that_cannot_get_on_ends_with_the_sentence(
    processes: Processes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All other ranks are ended first, and what waits on the GPU is told to; even that may wait for ever."""
    monkeypatch.setattr(group, "_SECONDS_TO_NOTICE", 0.1)
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    processes[2].kill()
    aborted, released = threading.Event(), threading.Event()

    def abort() -> None:
        aborted.set()
        released.wait()

    end_others(Loss(processes), processes, abort, threading.Event())
    assert aborted.wait(60)
    released.set()
    assert [process.wait(60) for process in processes] == [-signal.SIGKILL] * 3
    assert codes == [1]
    assert capsys.readouterr().err == "error: rank 3 of 4 was ended by SIGKILL.\nhint: start a new engine\n"


def test_a_process_that_gets_on_says_it_itself(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    noticed = threading.Event()
    processes[0].kill()
    end_others(Loss(processes), processes, noticed.set, noticed)
    assert [process.wait(60) for process in processes] == [-signal.SIGKILL] * 3
    assert codes == []


@pytest.mark.parametrize(
    ("text", "is_memory", "is_loss"),
    [
        (
            "NCCL error in: ProcessGroupNCCL.cpp:77, unhandled cuda error\nLast error: Cuda failure 2 'out of memory'",
            True,
            False,
        ),
        ("NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details), out of memory", True, False),
        ("NCCL communicator was aborted", False, True),
        ("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1", False, True),
    ],
)
def test_memory_that_runs_out_in_a_collective_is_no_lost_rank(text: str, is_memory: bool, is_loss: bool) -> None:
    error = RuntimeError(text)
    assert (is_out_of_memory(error), is_lost(error)) == (is_memory, is_loss)
