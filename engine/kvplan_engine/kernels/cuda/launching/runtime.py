"""What the CUDA kernels need from a device: its properties, and kernels that can be launched.

Two things provide it: the driver (``driver``), and the emulation (``emulation``), which runs the same kernel
sources on the CPU for the tests.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from kvplan_engine.kernels.cuda.launching.variants import KernelVariant
from kvplan_engine.kernels.cuda.params import TensorMap

# Tensors of which the copy engine of compute capability 9.0 copies boxes, and the driver's maps of them.


BOX_RANK = 4
PANEL_COLUMNS = 64
"""Elements of 16 bits in a swizzled row of 128 bytes (csrc/cuda/hopper.cuh: PANEL_ROW_BYTES)."""

_MAP_ALIGNMENT = 64
_ELEMENT_TYPES = {torch.float8_e4m3fn: 0, torch.float16: 6, torch.bfloat16: 9}
"""CU_TENSOR_MAP_DATA_TYPE_...; fp8 is copied as bytes."""
_NO_INTERLEAVE = 0  # CU_TENSOR_MAP_INTERLEAVE_NONE
_NO_SWIZZLE, _SWIZZLE_128_BYTES = 0, 3  # CU_TENSOR_MAP_SWIZZLE_...
_PROMOTE_TO_128_BYTES = 2  # CU_TENSOR_MAP_L2_PROMOTION_L2_128B
_ZEROS_OUTSIDE = 0  # CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE


@dataclass(frozen=True, slots=True)
class BoxedTensor:
    """A tensor on the device and the box of it that one instruction copies, both innermost dimension first.

    address: of its first element, a multiple of 16. sizes, box: elements. strides: bytes between neighbours in all
    dimensions but the innermost, whose neighbours lie side by side; multiples of 16.
    """

    address: int
    dtype: torch.dtype
    sizes: tuple[int, int, int, int]
    strides: tuple[int, int, int]
    box: tuple[int, int, int, int]

    @property
    def is_swizzled(self) -> bool:
        """Whether boxes go where products read them; those of fp8 are widened first."""
        return self.dtype.itemsize > 1


def boxed_pages(pages: torch.Tensor, box_rows: int) -> BoxedTensor:
    """Boxes of ``box_rows`` tokens of ``pages`` [num_blocks, KV heads, block_size, size].

    They have PANEL_COLUMNS elements of a token, of fp8 all of them.
    """
    blocks, heads, tokens, size = pages.shape
    row_bytes = size * pages.itemsize
    strides = (row_bytes, tokens * row_bytes, pages.stride(0) * pages.itemsize)
    columns = PANEL_COLUMNS if pages.itemsize > 1 else size
    return BoxedTensor(pages.data_ptr(), pages.dtype, (size, tokens, heads, blocks), strides, (columns, box_rows, 1, 1))


def encode_tensor_map(library: Any, tensor: BoxedTensor) -> tuple[int, TensorMap]:
    """The status of libcuda's cuTensorMapEncodeTiled, and the map that it made."""
    swizzle = _SWIZZLE_128_BYTES if tensor.is_swizzled else _NO_SWIZZLE
    memory = ctypes.create_string_buffer(ctypes.sizeof(TensorMap) + _MAP_ALIGNMENT)
    start = -ctypes.addressof(memory) % _MAP_ALIGNMENT
    status = library.cuTensorMapEncodeTiled(
        ctypes.c_void_p(ctypes.addressof(memory) + start),
        ctypes.c_int(_ELEMENT_TYPES[tensor.dtype]),
        ctypes.c_uint32(BOX_RANK),
        ctypes.c_void_p(tensor.address),
        (ctypes.c_uint64 * BOX_RANK)(*tensor.sizes),
        (ctypes.c_uint64 * (BOX_RANK - 1))(*tensor.strides),
        (ctypes.c_uint32 * BOX_RANK)(*tensor.box),
        (ctypes.c_uint32 * BOX_RANK)(*(1,) * BOX_RANK),  # every element
        *map(ctypes.c_int, (_NO_INTERLEAVE, swizzle, _PROMOTE_TO_128_BYTES, _ZEROS_OUTSIDE)),
    )
    return status, TensorMap.from_buffer_copy(memory.raw[start:])


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


HANDLE_BYTES = 64
"""Size of a CUipcMemHandle."""


@dataclass(frozen=True, eq=False)
class SharedMemory:
    """Memory of a device that other processes can open, until this object is gone. address: as this process sees it.

    handle [HANDLE_BYTES]: what they open it by.
    """

    address: int
    handle: bytes


@dataclass(frozen=True, eq=False)
class OpenedMemory:
    """Memory that another process shares, mapped at ``address`` until this object is gone."""

    address: int


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

    def reaches(self, device: int) -> bool:
        """Whether kernels here can read and write the memory of another device, by the number that CUDA has for it."""
        ...

    def share(self, num_bytes: int) -> SharedMemory:
        """Allocate zeros on this device that other processes can open. CudaKernelError where that cannot be."""
        ...

    def open_shared(self, handle: bytes) -> OpenedMemory:
        """Map another process' ``SharedMemory``, by its handle. CudaKernelError where it cannot be had."""
        ...
