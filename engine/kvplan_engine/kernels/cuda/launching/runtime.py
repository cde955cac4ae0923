"""What the CUDA kernels need from a device: its properties, and kernels that can be launched.

Two things provide it: the driver (``driver``), and the emulation (``emulation``), which runs the same kernel
sources on the CPU for the tests.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Protocol

import torch

from kvplan_engine.kernels.cuda.launching.tensor_map import BoxedTensor
from kvplan_engine.kernels.cuda.launching.variants import KernelVariant
from kvplan_engine.kernels.cuda.params.common import TensorMap


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """What launch configurations depend on. avoided: ``families`` of kernels that their twins stand in for."""

    name: str
    capability: tuple[int, int]
    num_multiprocessors: int
    shared_bytes_per_block: int
    """The most dynamic shared memory that one block may ask for."""
    shared_bytes_per_multiprocessor: int
    driver_version: str
    avoided: frozenset[str] = frozenset()

    @property
    def has_tensor_kernels(self) -> bool:
        """Whether mma.m16n8k16 with bfloat16, cp.async and movmatrix exist (compute capability 8.0)."""
        return self.capability >= (8, 0)

    @property
    def has_dependent_launch(self) -> bool:
        """Whether a kernel can wait for the one before it by itself (compute capability 9.0)."""
        return self.capability >= (9, 0)


class Kernel(Protocol):
    """One loaded kernel."""

    def __call__(self, grid: tuple[int, int], threads: int, shared_bytes: int, params: ctypes.Structure) -> None:
        """Launch on torch's current stream; returns at once. A grid with a zero launches nothing."""
        ...


class CudaRuntime(Protocol):
    """A device that kernels run on."""

    properties: DeviceProperties
    device: torch.device
    compiler: str
    """What compiles its kernels, with its version."""
    overlaps_launches: bool
    """Whether a kernel is set up while the one before it ends (``EngineConfig.enable_pdl``), where the device can."""

    def kernel(self, variant: KernelVariant) -> Kernel:
        """The loaded kernel of ``variant``, compiled if it must be. CudaKernelError when it cannot be."""
        ...

    def tensor_map(self, tensor: BoxedTensor) -> TensorMap:
        """What kernels copy boxes of ``tensor`` by (compute capability 9.0). CudaKernelError when it cannot be made."""
        ...
