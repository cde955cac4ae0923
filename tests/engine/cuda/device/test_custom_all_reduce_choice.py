"""Whether ranks use their own sum: all of them or none, whatever one of them finds."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_ranks import exit_codes
from planted_faults import LLAMA

from kvplan_engine.checkpoints.loaders import read_config
from kvplan_engine.description.division import Rank, part_of
from kvplan_engine.device import custom_all_reduce
from kvplan_engine.device.collectives import Collectives, open_store
from kvplan_engine.device.custom_all_reduce import SIZES, _Check, choose_all_reduce
from kvplan_engine.kernel_checks.verdicts import Verdict, Verdicts
from kvplan_engine.kernels.cuda.all_reduce import MOST_BYTES, SHARED_BYTES, all_reduce_variant
from kvplan_engine.kernels.cuda.launching.emulation import EmulatedRuntime
from kvplan_engine.kernels.cuda.launching.runtime import Kernel, OpenedMemory
from kvplan_engine.kernels.cuda.launching.variants import CudaKernelError, KernelVariant
from kvplan_engine.models.device_kernels import cuda_kernels

NUM_RANKS = 2
BF16 = torch.bfloat16


class Alone(EmulatedRuntime):
    """A GPU that no other can reach."""

    def reaches(self, device: int) -> bool:
        return False


class Closed(EmulatedRuntime):
    """A driver that opens nobody's memory."""

    def open_shared(self, handle: bytes) -> OpenedMemory:
        raise CudaKernelError("CUDA: opening another process' memory failed: invalid argument")


class Deaf(EmulatedRuntime):
    """What peers write is never seen, as where a bridge between two buses drops it."""

    def open_shared(self, handle: bytes) -> OpenedMemory:
        self.another = self.share(SHARED_BYTES)
        return OpenedMemory(self.another.address)


class Wrong(EmulatedRuntime):
    """The last number of each sum is another one."""

    def kernel(self, variant: KernelVariant) -> Kernel:
        kernel = super().kernel(variant)

        def launch(grid: tuple[int, int], threads: int, shared_bytes: int, params: ctypes.Structure) -> None:
            kernel(grid, threads, shared_bytes, params)
            ctypes.c_uint16.from_address(params.x + params.vectors * 16 - 2).value ^= 1

        return launch


def of_ranks(folder: Path, work: Callable[[Collectives], bool]) -> list[int]:
    """Exit codes of NUM_RANKS processes, see ``exit_codes``."""
    EmulatedRuntime().kernel(all_reduce_variant(BF16, NUM_RANKS))  # compiled once

    def of_rank(number: int) -> bool:
        store = open_store(str(folder / "meeting"), NUM_RANKS)
        return work(Collectives(Rank(number, NUM_RANKS), store))

    return exit_codes(NUM_RANKS, of_rank)


class Slow(EmulatedRuntime):
    """Sums that come right, but later than anybody waits."""

    def kernel(self, variant: KernelVariant) -> Kernel:
        kernel = super().kernel(variant)

        def launch(*arguments: Any) -> None:
            time.sleep(0.15)
            kernel(*arguments)

        return launch


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (EmulatedRuntime, "in use; times mean nothing here"),
        (Alone, "off, the GPUs do not reach each other's memory"),
        (Closed, "off, the GPUs do not reach each other's memory"),
        (Deaf, "off, it took more than 1 s to compare and time it"),
        (Wrong, "off, its sums are not NCCL's here"),
        (Slow, "off, it took more than 1 s to compare and time it"),
    ],
)
def test_all_ranks_choose_alike(
    broken: type[EmulatedRuntime], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one is ``broken``."""
    if broken in (Deaf, Slow):
        monkeypatch.setattr(custom_all_reduce, "PATIENCE_SECONDS", 1.0)

    def work(collectives: Collectives) -> bool:
        runtime = broken() if collectives.rank.index else EmulatedRuntime()
        found = choose_all_reduce(runtime, collectives, BF16)
        most_bytes = None if found.all_reduce is None else found.all_reduce.most_bytes
        return (found.why, most_bytes) == (why, MOST_BYTES if broken is EmulatedRuntime else None)

    assert of_ranks(tmp_path, work) == [0, 0]


def test_a_gpu_on_which_the_kernel_is_wrong_leaves_the_sums_of_all_to_the_library(tmp_path: Path) -> None:
    """By the verdict on it, which the GPU of another rank need not share."""
    model = part_of(read_config(LLAMA), Rank(0, NUM_RANKS))

    def work(collectives: Collectives) -> bool:
        passed = collectives.rank.index == 0
        verdicts = Verdicts((Verdict("all_reduce", passed=passed, is_used=passed),))
        runtime = EmulatedRuntime()
        kernels = replace(cuda_kernels(runtime, BF16), shares_memory=runtime, verdicts=verdicts)
        kernels.divided(model, collectives, BF16)
        return collectives._custom is None

    assert of_ranks(tmp_path, work) == [0, 0]


@pytest.mark.parametrize(
    ("micros", "most_bytes"),
    [
        ({SIZES[0]: (5.0, 9.0), SIZES[1]: (8.0, 9.0), SIZES[2]: (15.0, 12.0)}, SIZES[1]),
        ({SIZES[0]: (5.0, 9.0), SIZES[1]: (8.9, 9.0), SIZES[2]: (9.0, 12.0)}, SIZES[0]),
        ({SIZES[0]: (9.0, 9.0)}, 0),
    ],
)
def test_it_is_used_up_to_the_size_at_which_it_wins(
    micros: dict[int, tuple[float, float]],
    most_bytes: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the slower rank: on the first one it is always as fast as anything. Less than 2 % is noise."""

    def work(collectives: Collectives) -> bool:
        check = _Check(EmulatedRuntime(), collectives, BF16)
        memory = check._open_memory()
        assert memory is not None
        custom = custom_all_reduce.OneShotAllReduce(EmulatedRuntime(), collectives.rank.index, memory)

        def time_of(way: object, x: torch.Tensor) -> float:
            ours, nccls = micros[x.nbytes]
            return nccls if way is not custom else ours if collectives.rank.index else 0.1

        monkeypatch.setattr(custom_all_reduce, "_micros_of", time_of)
        why = check._time(custom)
        said = f"{micros[SIZES[0]][0]:.1f} us against NCCL's {micros[SIZES[0]][1]:.1f} for 8 KiB"
        return said in why and custom.most_bytes == most_bytes

    assert of_ranks(tmp_path, work) == [0, 0]
