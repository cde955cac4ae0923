"""The first rank's end: the processes of the other ranks, what is said to them, and how they die."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import torch

from kvplan_engine.config import EngineConfig
from kvplan_engine.description.division import Rank
from kvplan_engine.device.allocation import is_out_of_memory
from kvplan_engine.device.collectives import Collectives, open_store
from kvplan_engine.errors import EngineError, RankDied, describe_exit
from kvplan_engine.execution.ranks.messages import LOST_PEER, Joining, Load, Refusal

# A lost rank: who it was, and a watch that sees it while everybody waits for it.
#
# gloo's collectives fail when a rank ends, because its connections close. NCCL's kernels wait on the GPU, and whoever
# waits for the GPU waits too. So each process that may stand there watches the other end of its connections meanwhile.


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


T = TypeVar("T")


class RankGroup:
    """The processes of all ``ranks`` but the first, which end with this object, with this process, or by ``close``.

    Threads of this process are divided over the ranks until then.
    """

    def __init__(self, ranks: Sequence[Rank]) -> None:
        num_ranks, self._ranks = len(ranks), ranks
        self._threads = torch.get_num_threads()
        self._folder = tempfile.mkdtemp(prefix="kvplan-ranks-")
        self._meeting = os.path.join(self._folder, "meeting")
        self._connections: list[Connection] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._loss = Loss(self._processes)
        self._watches: list[LossWatch] = []
        self._noticed = threading.Event()
        held = (self._noticed, self._watches, self._connections, self._processes, self._folder)
        self._end = weakref.finalize(self, _end, *held)
        self.num_ranks = num_ranks
        self.num_threads = max(1, self._threads // num_ranks)
        for _ in range(1, num_ranks):
            connection, process = _start()
            self._connections.append(connection)
            self._processes.append(process)
        torch.set_num_threads(self.num_threads)

    @property
    def pids(self) -> list[int]:
        """The processes' numbers, from rank 1 on."""
        return [process.pid for process in self._processes]

    def load(self, config: EngineConfig, source: Any, *, on_gpu: bool) -> Collectives:
        """Let all ranks load ``source`` and meet; ``loaded`` waits until they have loaded it."""
        with self.watching():
            for rank, connection in zip(self._ranks[1:], self._connections, strict=True):
                connection.send(Load(config, source, rank, self._meeting, self.num_threads))
            for joining in self._answers():
                assert isinstance(joining, Joining), joining
            store = open_store(self._meeting, self.num_ranks)
            collectives = Collectives(self._ranks[0], store, on_gpu=on_gpu)
        if on_gpu:
            on_loss = partial(end_others, self._loss, self._processes, collectives.abort, self._noticed)
            self._watches.append(LossWatch(self.descriptors, on_loss))
        return collectives

    def loaded(self) -> None:
        """Returns when all ranks have loaded their part. EngineError where one cannot."""
        self._answers()

    # ---- messages

    def tell(self, message: object) -> None:
        """Let all other ranks do something that they do not answer. RankDied where one is dead.

        EngineError where they have been ended before.
        """
        if self.has_ended:
            raise EngineError("the other ranks of this engine have ended.", hint=START_ANEW)
        with self.watching():
            for connection in self._connections:
                connection.send(message)

    def together(self, message: object, own: Callable[[], T]) -> tuple[T, list[Any]]:
        """What ``own`` returns here, and what the others answer to ``message`` meanwhile. The first error is raised."""
        self.tell(message)
        try:
            result = own()
        except BaseException:
            with contextlib.suppress(EngineError):
                self._answers()  # so that the next answers are to the next message
            raise
        return result, self._answers()

    def _answers(self) -> list[Any]:
        answers: list[Any] = []
        try:
            with self.watching():
                answers.extend(connection.recv() for connection in self._connections)
        except RankDied:  # as one does that refuses to load; the others are ended because of it
            _raise_refusal(answers)
            raise
        _raise_refusal(answers)
        return answers

    # ---- death

    @property
    def descriptors(self) -> list[int]:
        """Descriptors of the connections: between messages they can be read only if a rank has ended."""
        return [connection.fileno() for connection in self._connections]

    def check(self) -> None:
        """RankDied if a rank has ended. Only between messages that are answered."""
        with self.watching():
            if any(connection.poll() for connection in self._connections):
                raise EOFError

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch over whatever needs the other ranks: RankDied where one of them is lost in it, and all of them are
        ended.

        So they are after any other failure, because ranks that do not do the same wait for each other.
        """
        try:
            yield
        except (EOFError, OSError, RuntimeError) as error:
            if is_out_of_memory(error):
                self.close()
                raise
            lost = self._refusal() or self._loss.name()
            self.close()
            raise lost from error
        except BaseException:
            self.close()
            raise

    def _refusal(self) -> EngineError | None:
        """What a rank said before it ended, None where it ended without a word."""
        for connection in self._connections:
            with contextlib.suppress(EOFError, OSError):
                while connection.poll():
                    answer = connection.recv()
                    if isinstance(answer, Refusal):
                        return answer.error
        return None

    @property
    def has_ended(self) -> bool:
        """Whether the other ranks have been ended."""
        return not self._end.alive

    def close(self) -> None:
        """End the other ranks at once, if they have not ended; this process has all threads again."""
        if not self.has_ended:
            self._end()
            torch.set_num_threads(self._threads)


def _raise_refusal(answers: Sequence[Any]) -> None:
    for answer in answers:
        if isinstance(answer, Refusal):
            raise answer.error


def _start() -> tuple[Connection, subprocess.Popen[bytes]]:
    """A rank's process, in this one's group, so that whoever kills that kills it too; what it prints goes to stderr."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "kvplan_engine.execution.ranks", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=2,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
    return Connection(ours.detach()), process


def _end(
    noticed: threading.Event,
    watches: Sequence[LossWatch],
    connections: Sequence[Connection],
    processes: Sequence[subprocess.Popen[bytes]],
    folder: str,
) -> None:
    noticed.set()
    for watch in watches:
        watch.close()
    for process in processes:
        process.kill()
    for connection, process in zip(connections, processes, strict=True):
        connection.close()
        process.wait()
    shutil.rmtree(folder, ignore_errors=True)
