"""Runs the CUDA kernels' own sources on the CPU: compiled by g++ over csrc/cuda_host, launched like on a device.

For tests, and for trying launch code without a GPU: it shows that results are right, not how fast they are.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import subprocess
import tempfile
import weakref
from pathlib import Path

import torch

from kvplan_engine.kernels.build import find_compiler
from kvplan_engine.kernels.cuda.launching.runtime import (
    BOX_RANK,
    HANDLE_BYTES,
    BoxedTensor,
    DeviceProperties,
    Kernel,
    OpenedMemory,
    SharedMemory,
)
from kvplan_engine.kernels.cuda.launching.variants import CudaKernelError, KernelVariant, source_digest
from kvplan_engine.kernels.cuda.params import TensorMap
from kvplan_engine.paths import kernel_cache_dir, source_dir

EMULATED_PROPERTIES = DeviceProperties(
    name="emulated",
    capability=(9, 0),
    num_multiprocessors=2,
    shared_bytes_per_block=227 * 1024,
    shared_bytes_per_multiprocessor=228 * 1024,
    driver_version="none",
)
FORWARD, BACKWARD = 0, 1
"""Orders in which the threads of a block run between two barriers; larger numbers shuffle."""

_FLAGS = (
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unused-function",
    "-fno-strict-aliasing",
)
_ERROR_BYTES = 256


class _HostTensorMap(ctypes.Structure):
    """hopper.hpp: HostTensorMap."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("strides", ctypes.c_uint64 * BOX_RANK),
        ("sizes", ctypes.c_uint32 * BOX_RANK),
        ("box", ctypes.c_uint32 * BOX_RANK),
        ("is_swizzled", ctypes.c_uint32),
        ("unused", ctypes.c_uint32),
    )


class EmulatedKernel:
    """One kernel of a compiled host library."""

    def __init__(self, library: ctypes.CDLL, variant: KernelVariant, runtime: EmulatedRuntime) -> None:
        self._function = getattr(library, variant.kernel)
        self._runtime = runtime
        size = getattr(library, f"{variant.kernel}_params_bytes")
        size.restype = ctypes.c_ulong
        self.params_bytes: int = size()

    def __call__(self, grid: tuple[int, int], threads: int, shared_bytes: int, params: ctypes.Structure) -> None:
        """Run the whole grid now. CudaKernelError with the emulation's message when it found a fault."""
        if ctypes.sizeof(params) != self.params_bytes:
            raise CudaKernelError(
                f"{type(params).__name__} has {ctypes.sizeof(params)} bytes, the kernel expects {self.params_bytes}"
            )
        if 0 in grid:
            return
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        failed = self._function(
            (ctypes.c_uint * 3)(*grid, 1),
            (ctypes.c_uint * 3)(threads, 1, 1),
            ctypes.c_ulong(shared_bytes),
            ctypes.byref(params),
            ctypes.c_int(self._runtime.order),
            error,
        )
        if failed:
            raise CudaKernelError(f"emulated kernel: {error.value.decode()}")


class EmulatedRuntime:
    """A CudaRuntime on the CPU; ``order`` chooses how the threads of a block take turns."""

    def __init__(self, properties: DeviceProperties = EMULATED_PROPERTIES, order: int = FORWARD) -> None:
        self.properties = properties
        self.device = torch.device("cpu")
        self.compiler = " ".join(find_compiler())
        self.overlaps_launches = False  # has no effect: each launch is done before the next one
        self.order = order
        self._kernels: dict[KernelVariant, EmulatedKernel] = {}

    def kernel(self, variant: KernelVariant) -> Kernel:
        """See CudaRuntime.kernel."""
        if variant not in self._kernels:
            library = ctypes.CDLL(str(compile_host_library(variant)))
            self._kernels[variant] = EmulatedKernel(library, variant, self)
        return self._kernels[variant]

    def tensor_map(self, tensor: BoxedTensor) -> TensorMap:
        """See CudaRuntime.tensor_map: what csrc/cuda_host/hopper.hpp reads."""
        innermost = tensor.dtype.itemsize
        fields = _HostTensorMap(
            tensor.address, (innermost, *tensor.strides), tensor.sizes, tensor.box, tensor.is_swizzled
        )
        return TensorMap.from_buffer_copy(bytes(fields).ljust(ctypes.sizeof(TensorMap), b"\0"))

    def reaches(self, device: int) -> bool:
        """See CudaRuntime.reaches."""
        return True

    def share(self, num_bytes: int) -> SharedMemory:
        """See CudaRuntime.share: a file without a name, which other processes of this machine's user can open."""
        file = os.memfd_create("kvplan-shared")
        os.ftruncate(file, num_bytes)
        mapped = mmap.mmap(file, num_bytes)
        shared = SharedMemory(_address_of(mapped), f"/proc/{os.getpid()}/fd/{file}".encode().ljust(HANDLE_BYTES, b"\0"))
        weakref.finalize(shared, _unmap, mapped, file)
        return shared

    def open_shared(self, handle: bytes) -> OpenedMemory:
        """See CudaRuntime.open_shared."""
        file = os.open(handle.rstrip(b"\0"), os.O_RDWR)
        mapped = mmap.mmap(file, 0)
        opened = OpenedMemory(_address_of(mapped))
        weakref.finalize(opened, _unmap, mapped, file)
        return opened


def _address_of(mapped: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(mapped))


def _unmap(mapped: mmap.mmap, file: int) -> None:
    mapped.close()
    os.close(file)


def compile_host_library(variant: KernelVariant) -> Path:
    """The variant as a shared library for this machine, from the cache or compiled now."""
    source = source_dir() / "cuda" / variant.source
    machine = _compile_machine()
    # No kernel needs C++'s own headers, and reading them would take longer than compiling the kernel.
    options = ("-shared", "-nostdinc++", *variant.flags())
    target = _target(source, ".so", (*options, *(part.name for part in machine)))
    return _compile(target, (*options, "-x", "c++", str(source), "-x", "none", *map(str, machine)), variant.label())


def _compile_machine() -> list[Path]:
    """The emulation itself as object files: the same for all kernels, which spend most of their time in it."""
    sources, options = sorted((source_dir() / "cuda_host").glob("*.cpp")), ("-c", "-O2")
    return [_compile(_target(each, ".o", options), (*options, str(each)), "the emulation") for each in sources]


def _target(source: Path, suffix: str, options: tuple[str, ...]) -> Path:
    """Where the compiled ``source`` lies: its name follows from whatever decides its contents."""
    parts = (*find_compiler(), *_FLAGS, *options, source_digest(source))
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]
    return kernel_cache_dir() / "emulated" / f"{source.stem}-{key}{suffix}"


def _compile(target: Path, arguments: tuple[str, ...], label: str) -> Path:
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, suffix=target.suffix)
    os.close(handle)
    command = [*find_compiler(), *_FLAGS, *arguments, "-o", name]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        Path(name).unlink()
        raise CudaKernelError(f"{label} does not compile for the host: {result.stderr[:2000]}")
    Path(name).replace(target)
    return target
