"""The kernel that sums over ranks, its own source run on the CPU: a process for each rank, memory that all map."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from forked_ranks import exit_codes

from kvplan_engine.kernels.cuda.all_reduce import (
    MOST_BYTES,
    SHARED_BYTES,
    OneShotAllReduce,
    all_reduce_variant,
    halves_of,
    signals_of,
)
from kvplan_engine.kernels.cuda.launching.emulation import BACKWARD, FORWARD, EmulatedRuntime
from kvplan_engine.kernels.cuda.launching.nvrtc import load_nvrtc
from kvplan_engine.kernels.cuda.launching.runtime import OpenedMemory, SharedMemory
from kvplan_engine.kernels.cuda.launching.variants import CudaKernelError

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
SHUFFLED = 7
VECTORS = (1, 511, 512, 513, 3 * 512, 1030, 2)
"""Of successive calls: grids of other sizes, part of a block, all of one."""


def values_of(rank: int, call: int, scalar: torch.dtype, vectors: int = 0) -> torch.Tensor:
    count = (vectors or VECTORS[call % len(VECTORS)]) * 16 // scalar.itemsize
    values = np.random.default_rng(100 * call + rank).standard_normal(count, np.float32)
    return torch.from_numpy(values).to(scalar)


def sum_of(num_ranks: int, call: int, scalar: torch.dtype, vectors: int = 0) -> torch.Tensor:
    """In float32, in the order of the ranks, rounded once."""
    total = values_of(0, call, scalar, vectors).float()
    for rank in range(1, num_ranks):
        total = total + values_of(rank, call, scalar, vectors).float()
    return total.to(scalar)


class Ranks:
    """memory: of each rank, mapped before they are forked."""

    def __init__(self, num_ranks: int, scalar: torch.dtype, order: int = FORWARD) -> None:
        self._runtime = EmulatedRuntime(order=order)
        self._runtime.kernel(all_reduce_variant(scalar, num_ranks))
        self.memory = [self._runtime.share(SHARED_BYTES) for _ in range(num_ranks)]

    def run(self, work: Callable[[OneShotAllReduce, int], bool]) -> list[int]:
        """Exit codes, see ``exit_codes``; work: of a rank's sum and its number."""
        sums = [OneShotAllReduce(self._runtime, rank, self.memory) for rank in range(len(self.memory))]
        return exit_codes(len(sums), lambda rank: work(sums[rank], rank))


CASES = [
    *((num_ranks, BF16, FORWARD) for num_ranks in range(2, 9)),
    *((num_ranks, BF16, BACKWARD) for num_ranks in (3, 8)),
    *((num_ranks, scalar, SHUFFLED) for num_ranks in (2, 5) for scalar in (F32, F16)),
]


@pytest.mark.parametrize(("num_ranks", "scalar", "order"), CASES)
def test_every_rank_has_the_same_bits(num_ranks: int, scalar: torch.dtype, order: int) -> None:
    def work(all_reduce: OneShotAllReduce, rank: int) -> bool:
        is_right = True
        for call in range(2 * len(VECTORS)):
            x = values_of(rank, call, scalar)
            if call == rank:
                time.sleep(0.02)  # the others have gone on as far as they can
            all_reduce(x)
            is_right = is_right and torch.equal(x, sum_of(num_ranks, call, scalar))
        return is_right

    assert Ranks(num_ranks, scalar, order).run(work) == [0] * num_ranks


def test_the_largest_message() -> None:
    def work(all_reduce: OneShotAllReduce, rank: int) -> bool:
        x = values_of(rank, 0, F32, MOST_BYTES // 16)
        all_reduce(x)
        return torch.equal(x, sum_of(2, 0, F32, MOST_BYTES // 16))

    assert Ranks(2, F32).run(work) == [0, 0]


def test_signals_that_wrap_are_still_in_order() -> None:
    """At some 6,000 calls a second the count is over after a week."""
    ranks = Ranks(2, F32)
    for each in (mapped(one) for one in ranks.memory):
        each[-64 * 4 :].view(torch.int32)[:] = -2
        signals_of(each)[:] = -2

    def work(all_reduce: OneShotAllReduce, rank: int) -> bool:
        found = []
        for call in range(5):
            x = values_of(rank, call, F32)
            all_reduce(x)
            found.append(torch.equal(x, sum_of(2, call, F32)))
        return all(found)

    assert ranks.run(work) == [0, 0]
    assert mapped(ranks.memory[0])[-64 * 4 :].view(torch.int32)[0] == 3


def mapped(memory: SharedMemory) -> torch.Tensor:
    """[SHARED_BYTES] uint8."""
    with open(memory.handle.rstrip(b"\0"), "r+b") as file:
        return torch.from_numpy(np.memmap(file, np.uint8, "r+"))


def test_values_stay_until_the_call_after_next() -> None:
    """Of one rank whose peer has always signalled: what a slow one still reads is there when the next call ends."""
    own, peer = (torch.zeros(SHARED_BYTES, dtype=torch.uint8) for _ in range(2))
    all_reduce = OneShotAllReduce(EmulatedRuntime(), 0, [OpenedMemory(each.data_ptr()) for each in (own, peer)])
    signals_of(own)[:, 1] = 100
    for call in range(1, 6):
        x = values_of(0, call, BF16, 512)
        given = x.clone()
        all_reduce(x)
        assert torch.equal(halves_of(own, call)[0].view(BF16), given)
        if call > 1:
            before = values_of(0, call - 1, BF16, 512)
            assert torch.equal(halves_of(own, call - 1)[0].view(BF16), before)
        assert signals_of(peer)[0].tolist() == [call, *[0] * 7]


def test_a_lost_rank_ends_the_wait_of_the_others() -> None:
    """From another thread, as the watch does; what they were given is left as it is."""

    def work(all_reduce: OneShotAllReduce, rank: int) -> bool:
        if rank == 2:
            return True
        threading.Timer(0.3, all_reduce.give_up).start()
        started, x = time.monotonic(), values_of(rank, 0, F32)
        all_reduce(x)
        return torch.equal(x, values_of(rank, 0, F32)) and time.monotonic() - started > 0.2

    assert Ranks(3, F32).run(work) == [0, 0, 0]


def test_what_it_takes() -> None:
    memory = [OpenedMemory(0), OpenedMemory(0)]
    all_reduce = OneShotAllReduce(EmulatedRuntime(), 0, memory)
    assert all_reduce.takes(torch.zeros(MOST_BYTES // 2, dtype=BF16))
    assert not all_reduce.takes(torch.zeros(MOST_BYTES // 2 + 8, dtype=BF16)), "NCCL's from here on"
    assert not all_reduce.takes(torch.zeros(7, dtype=BF16))
    assert not all_reduce.takes(torch.zeros(0, dtype=BF16)), "no launch is of no blocks"
    assert not all_reduce.takes(torch.zeros(9, dtype=F32)[1:]), "no vector begins there"
    assert not all_reduce.takes(torch.zeros(8, dtype=torch.int64))
    all_reduce.most_bytes = 64
    assert [all_reduce.takes(torch.zeros(count, dtype=F32)) for count in (16, 20)] == [True, False]


def test_signals_are_released_and_acquired_for_the_whole_system() -> None:
    """What one GPU writes is ordered for another by nothing less; a processor's own order hides that here."""
    try:
        nvrtc = load_nvrtc()
    except CudaKernelError:
        pytest.skip("no NVRTC on this machine: pip install nvidia-cuda-nvrtc-cu12")
    ptx = nvrtc.compile(all_reduce_variant(BF16, 4), "compute_90").image.decode()
    text = ptx[ptx.index(".entry all_reduce") :]
    found = re.findall(r"bar\.sync|st\.release\.sys\.global\.u32|ld\.acquire\.sys\.global\.u32|ld\.global\.nc", text)
    assert list(dict.fromkeys(found)) == ["bar.sync", "st.release.sys.global.u32", "ld.acquire.sys.global.u32"]
    assert (found[0], found[-1]) == ("bar.sync", "bar.sync"), "all that a block wrote, and all that it reads"
