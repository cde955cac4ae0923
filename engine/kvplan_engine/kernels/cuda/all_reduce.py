"""Sums over ranks by a kernel of ours, in memory that they share: csrc/cuda/collectives, vLLM's custom all-reduce."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvplan_engine.kernels.cuda.checks import VECTOR_BYTES
from kvplan_engine.kernels.cuda.launching.runtime import CudaRuntime, OpenedMemory, SharedMemory
from kvplan_engine.kernels.cuda.launching.variants import KernelVariant, variant
from kvplan_engine.kernels.cuda.params import AllReduceParams

MOST_RANKS = 8
_THREADS, _MOST_BLOCKS = 512, 64
_HALF_BYTES = _THREADS * VECTOR_BYTES
MOST_BYTES = _MOST_BLOCKS * _HALF_BYTES
"""The largest message."""
_SIGNALS_START = 2 * MOST_BYTES
_SIGNAL_BYTES = 4
_CALLS_START = _SIGNALS_START + _MOST_BLOCKS * MOST_RANKS * _SIGNAL_BYTES
SHARED_BYTES = _CALLS_START + _MOST_BLOCKS * _SIGNAL_BYTES
"""Bytes that each rank shares, zeros before the first call; all_reduce.cu draws their layout."""
FEWEST_MULTIPROCESSORS = 32
"""On which all blocks of a launch are at once: they wait for each other."""
_SCALARS = (torch.float32, torch.float16, torch.bfloat16)


def all_reduce_variant(scalar: torch.dtype, num_ranks: int) -> KernelVariant:
    """The kernel for so many ranks."""
    return variant("collectives/all_reduce.cu", "all_reduce", scalar=scalar, ranks=num_ranks)


def halves_of(shared: torch.Tensor, call: int) -> torch.Tensor:
    """A view of the halves of ``shared`` [SHARED_BYTES] uint8 that a call, from 1 on, fills: [blocks, bytes]."""
    return shared[:_SIGNALS_START].view(_MOST_BLOCKS, 2, _HALF_BYTES)[:, call % 2]


def signals_of(shared: torch.Tensor) -> torch.Tensor:
    """A view of the signals: [blocks, MOST_RANKS] int32."""
    return shared[_SIGNALS_START:_CALLS_START].view(torch.int32).view(_MOST_BLOCKS, MOST_RANKS)


class OneShotAllReduce:
    """The sum of one rank with its peers, which call it in the same order for the same shapes.

    memory: what each rank shares, as this process sees it. most_bytes: of a message; larger ones are NCCL's.
    """

    def __init__(self, runtime: CudaRuntime, rank: int, memory: Sequence[SharedMemory | OpenedMemory]) -> None:
        assert 2 <= len(memory) <= MOST_RANKS, memory
        self.most_bytes = MOST_BYTES
        self._runtime, self._memory = runtime, memory
        self._given_up = torch.zeros(1, dtype=torch.int32, pin_memory=runtime.device.type == "cuda")
        self._params = AllReduceParams(given_up=self._given_up.data_ptr(), rank=rank)
        self._params.shared[: len(memory)] = [each.address for each in memory]

    def takes(self, x: torch.Tensor) -> bool:
        """Whether ``x``, which is contiguous, is small enough and made of whole vectors, at least one."""
        num_bytes = x.numel() * x.element_size()
        is_whole = num_bytes % VECTOR_BYTES == 0 and x.data_ptr() % VECTOR_BYTES == 0
        return is_whole and 0 < num_bytes <= self.most_bytes and x.dtype in _SCALARS

    def __call__(self, x: torch.Tensor) -> None:
        """Replace ``x``, which it takes, by the sum of all ranks', the same bits on each; added in float32."""
        params = AllReduceParams.from_buffer_copy(self._params)
        params.x, params.vectors = x.data_ptr(), x.numel() * x.element_size() // VECTOR_BYTES
        kernel = self._runtime.kernel(all_reduce_variant(x.dtype, len(self._memory)))
        kernel((-(-params.vectors // _THREADS), 1), _THREADS, 0, params)

    @property
    def is_given_up(self) -> bool:
        """Whether ``give_up`` was called: it makes no sums then."""
        return bool(self._given_up.numpy()[0])

    def give_up(self) -> None:
        """End all calls that wait for another rank, now and from now on, from any thread; their sums are not made."""
        self._given_up.numpy()[0] = 1
