"""The ranks open each other's memory for sums of small messages, compare the sums with NCCL's, and time both.

All ranks come to the same choice, because each tells the others what it found.
"""

from __future__ import annotations

import contextlib
import statistics
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from kvplan_engine.device.collectives import Collectives
from kvplan_engine.kernels.cuda.all_reduce import (
    FEWEST_MULTIPROCESSORS,
    MOST_BYTES,
    MOST_RANKS,
    SHARED_BYTES,
    OneShotAllReduce,
    all_reduce_variant,
)
from kvplan_engine.kernels.cuda.launching.runtime import HANDLE_BYTES, CudaRuntime, OpenedMemory, SharedMemory
from kvplan_engine.kernels.cuda.launching.variants import CudaKernelError

SIZES = (MOST_BYTES // 64, MOST_BYTES // 8, MOST_BYTES)
"""Bytes of the messages that are compared and timed: of one block of the kernel, of eight, of all."""
PATIENCE_SECONDS = 10.0
"""The most that comparing and timing may take: peers that cannot see each other's signals would wait for ever."""
NOT_RIGHT = "off, the kernel is not right on each GPU"
"""Said where the check of one GPU alone found the kernel wrong, or it ended that check."""
WINS_BELOW = 0.98
"""Share of NCCL's time; less of a difference is noise."""
_CALLS = 3  # compared of each size: both halves, and the first one again
_LARGEST_VALUE = 8  # of whole numbers, whose sums every type has exactly, in whatever order they are added
_CALLS_OF_A_GRAPH, _ROUNDS = 8, 11


@dataclass(frozen=True, slots=True)
class Choice:
    """What all ranks of a stage chose, and why, in words.

    all_reduce: for messages up to the size at which it wins; None where it cannot be had, is wrong, or is slower.
    """

    all_reduce: OneShotAllReduce | None
    why: str


def choose_all_reduce(
    runtime: CudaRuntime, collectives: Collectives, dtype: torch.dtype, *, is_right: bool = True
) -> Choice:
    """Choose for sums of ``dtype``. All ranks of the stage call it.

    is_right: as far as this one's GPU shows. RuntimeError where a rank is lost meanwhile.
    """
    return _Check(runtime, collectives, dtype).run(is_right=is_right)


class _Check:
    def __init__(self, runtime: CudaRuntime, collectives: Collectives, dtype: torch.dtype) -> None:
        self._runtime, self._collectives, self._dtype = runtime, collectives, dtype
        self._rank = collectives.rank

    def run(self, *, is_right: bool) -> Choice:
        """What is to be used, and why."""
        if self._rank.count > MOST_RANKS:
            return Choice(None, f"off, it is for at most {MOST_RANKS} ranks")
        is_gpu, properties = self._runtime.device.type == "cuda", self._runtime.properties
        if not self._agree(is_right):
            return Choice(None, NOT_RIGHT)
        if not self._agree(properties.num_multiprocessors >= FEWEST_MULTIPROCESSORS or not is_gpu):
            return Choice(None, f"off, it is for GPUs of at least {FEWEST_MULTIPROCESSORS} multiprocessors")
        self._runtime.kernel(all_reduce_variant(self._dtype, self._rank.count))  # compiled before anybody waits for it
        memory = self._open_memory()
        if memory is None:
            return Choice(None, "off, the GPUs do not reach each other's memory")
        custom = OneShotAllReduce(self._runtime, self._rank.index, memory)
        with _limited(custom):
            found = [self._is_right(custom, size) for size in SIZES]
            is_nccls = self._agree(all(found))
            why = self._time(custom) if is_gpu and is_nccls else "in use; times mean nothing here"
        if not self._agree(not custom.is_given_up):  # whose sums are wrong for that
            return Choice(None, f"off, it took more than {PATIENCE_SECONDS:.0f} s to compare and time it")
        if not is_nccls:
            return Choice(None, "off, its sums are not NCCL's here")
        return Choice(custom if custom.most_bytes else None, why)

    # ---- memory

    def _open_memory(self) -> Sequence[SharedMemory | OpenedMemory] | None:
        """What each rank shares; None on all ranks where one of them cannot open another's."""
        own = self._share()
        handles = self._tell(bytes(HANDLE_BYTES) if own is None else own.handle)
        opened: list[SharedMemory | OpenedMemory] = []
        if own is not None and all(map(any, handles)):
            with contextlib.suppress(CudaKernelError, OSError):
                for index, handle in enumerate(handles):
                    opened.append(own if index == self._rank.index else self._runtime.open_shared(handle))
        return opened if self._agree(len(opened) == self._rank.count) else None

    def _share(self) -> SharedMemory | None:
        first = self._rank.number - self._rank.index
        peers = [first + index for index in range(self._rank.count) if index != self._rank.index]
        with contextlib.suppress(CudaKernelError):
            if all(map(self._runtime.reaches, peers)):
                return self._runtime.share(SHARED_BYTES)
        return None

    # ---- what the ranks tell each other

    def _tell(self, own: bytes) -> list[bytes]:
        return self._collectives.all_of(own, self._runtime.device)

    def _agree(self, is_so: bool) -> bool:
        return all(map(any, self._tell(bytes([is_so]))))

    def _slowest(self, micros: float) -> float:
        return max(struct.unpack("d", each)[0] for each in self._tell(struct.pack("d", micros)))

    # ---- sums and times

    def _is_right(self, custom: OneShotAllReduce, num_bytes: int) -> bool:
        """Whether it gives NCCL's sums; the last vector of 16 bytes is left out, so that a block is not full."""
        count, is_right = num_bytes // self._dtype.itemsize - 16 // self._dtype.itemsize, True
        for call in range(_CALLS):
            generator = torch.Generator().manual_seed(call * MOST_RANKS + self._rank.index)
            values = torch.randint(-_LARGEST_VALUE, _LARGEST_VALUE + 1, (count,), generator=generator)
            found = values.to(self._runtime.device, self._dtype)
            wanted = found.clone()
            self._collectives.sum_inplace(wanted)
            custom(found)
            is_right = is_right and torch.equal(found, wanted)
        return is_right

    def _time(self, custom: OneShotAllReduce) -> str:
        """Limit it to the largest size at which it is faster, and so it is at all smaller ones; say why."""
        custom.most_bytes, said = 0, []
        for size in SIZES:
            x = torch.zeros(size // self._dtype.itemsize, dtype=self._dtype, device=self._runtime.device)
            ours = self._slowest(_micros_of(custom, x))
            nccls = self._slowest(_micros_of(self._collectives.sum_inplace, x))
            said.append(f"{ours:.1f} us against NCCL's {nccls:.1f} for {size // 1024} KiB")
            if ours >= WINS_BELOW * nccls:
                break
            custom.most_bytes = size
        chosen = f"up to {custom.most_bytes // 1024} KiB" if custom.most_bytes else "off, not faster"
        return f"{chosen}: {'; '.join(said)}"


@contextlib.contextmanager
def _limited(custom: OneShotAllReduce) -> Iterator[None]:
    """Within, ``custom`` waits for its peers for PATIENCE_SECONDS in all."""
    timer = threading.Timer(PATIENCE_SECONDS, custom.give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # one that has just fired is seen by whoever looks next


def _micros_of(work: Callable[[torch.Tensor], None], x: torch.Tensor) -> float:
    """The median of a call in a graph, as steps run it. All ranks make as many calls."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # NCCL's watchdog asks for events meanwhile, in a thread of its own
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        for _ in range(_CALLS_OF_A_GRAPH):
            work(x)
    times = []
    for _ in range(_ROUNDS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1000 * begin.elapsed_time(end) / _CALLS_OF_A_GRAPH)
    return statistics.median(times)
