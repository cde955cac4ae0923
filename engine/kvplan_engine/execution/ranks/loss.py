"""A lost rank: who it was, and a watch that sees it while everybody waits for it.

gloo's collectives fail when a rank ends, because its connections close. NCCL's kernels wait on the GPU, and whoever
waits for the GPU waits too. So each process that may stand there watches the other end of its connections meanwhile.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

from kvplan_engine.errors import RankDied, describe_exit
from kvplan_engine.execution.ranks.messages import LOST_PEER

START_ANEW = "start a new engine"
_SECONDS_TO_DIE = 5.0
"""After a lost connection, until its process has ended and can be named."""
_SECONDS_TO_NOTICE = 20.0
"""After everything on the GPU was told to end, until this process says itself what happened."""
_SECONDS_TO_CLOSE = 1.0


class Loss:
    """Which of the processes of ranks 1, 2, ... ended first: found out once, for whoever asks."""

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        self._processes = processes
        self._asking = threading.Lock()
        self._found: RankDied | None = None

    def name(self) -> RankDied:
        """Name the lost rank, of several the one whose exit code is its own. Waits until a process has ended."""
        with self._asking:
            if self._found is None:
                self._found = self._find()
            return self._found

    def _find(self) -> RankDied:
        until, num_ranks = time.monotonic() + _SECONDS_TO_DIE, len(self._processes) + 1
        while time.monotonic() < until:
            codes = {rank: process.poll() for rank, process in enumerate(self._processes, start=1)}
            ended = ((rank, code) for rank, code in codes.items() if code is not None and code != LOST_PEER)
            for first, code in ended:
                message = f"rank {first} of {num_ranks} {describe_exit(code)}."
                return RankDied(message, rank=first, hint=START_ANEW)
            time.sleep(0.02)
        return RankDied(f"one of {num_ranks} ranks stopped answering.", rank=0, hint=START_ANEW)


class LossWatch:
    """A thread that calls ``on_loss`` once, when the other end of one of the sockets ``descriptors`` is closed."""

    def __init__(self, descriptors: Sequence[int], on_loss: Callable[[], None]) -> None:
        woken, self._wake = os.pipe()
        arguments = (descriptors, woken, on_loss)
        self._thread = threading.Thread(target=_watch, args=arguments, daemon=True, name="ranks-watch")
        self._thread.start()

    def close(self) -> None:
        """Look no longer. Before the descriptors are closed here: others may get their numbers."""
        os.close(self._wake)
        if self._thread is not threading.current_thread():
            self._thread.join(_SECONDS_TO_CLOSE)  # longer it takes only where it looks no more, but calls


def _watch(descriptors: Sequence[int], woken: int, on_loss: Callable[[], None]) -> None:
    poll = select.poll()
    for descriptor in (*descriptors, woken):
        poll.register(descriptor, 0)  # that the other end is closed is told always
    closed = {descriptor for descriptor, _ in poll.poll()}
    os.close(woken)
    if woken not in closed:
        on_loss()


def end_others(
    loss: Loss,
    processes: Sequence[subprocess.Popen[bytes]],
    abort: Callable[[], None],
    noticed: threading.Event,
) -> None:
    """What the first rank does beside its main thread, which may wait on the GPU: name the loss, end the other ranks,
    and what waits for them.

    abort: of collectives on GPUs; it may itself not return. noticed: the main thread has got on. Where it has not after
    a while this process ends with the sentence: nothing else would ever end it.
    """
    died = loss.name()
    for process in processes:
        process.kill()
    threading.Thread(target=abort, daemon=True).start()
    if not noticed.wait(_SECONDS_TO_NOTICE):
        print(f"error: {died.message}\nhint: {died.hint}", file=sys.stderr, flush=True)
        os._exit(1)
