"""The CudaRuntime of a real device: kernels loaded through the CUDA driver, launched on torch's current stream.

Memory, streams and the context are torch's; this adds only modules and launches, by ctypes on libcuda, which every
machine with an NVIDIA driver has.
"""

from __future__ import annotations

import ctypes
import weakref
from functools import cache
from typing import Any

import torch

from kvplan_engine.errors import CudaOutOfMemory
from kvplan_engine.kernels.cuda.launching.nvrtc import Nvrtc, cached_image, load_nvrtc
from kvplan_engine.kernels.cuda.launching.runtime import (
    HANDLE_BYTES,
    BoxedTensor,
    DeviceProperties,
    Kernel,
    OpenedMemory,
    SharedMemory,
    encode_tensor_map,
)
from kvplan_engine.kernels.cuda.launching.variants import CudaKernelError, KernelVariant
from kvplan_engine.kernels.cuda.params import TensorMap

# The driver's structures of a launch with attributes (cuLaunchKernelEx), as cuda.h declares them since CUDA 11.8.


_PROGRAMMATIC_STREAM_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_...
_VALUE_INTS = 16  # of the union of all attributes' values, 64 bytes


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute. value: 64 bytes, of which a flag is the first four."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("padding", ctypes.c_int),
        ("value", ctypes.c_int * _VALUE_INTS),
    )


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("num_attributes", ctypes.c_uint),
    )


_EARLY = LaunchAttribute(_PROGRAMMATIC_STREAM_SERIALIZATION, 0, (ctypes.c_int * _VALUE_INTS)(1))


def early_launch(grid: tuple[int, int], threads: int, shared_bytes: int, stream: int) -> LaunchConfig:
    """A launch that may begin as soon as the kernel before it in ``stream`` lets it, instead of when that has ended."""
    return LaunchConfig((*grid, 1), (threads, 1, 1), shared_bytes, stream, ctypes.pointer(_EARLY), 1)


class IpcHandle(ctypes.Structure):
    """CUipcMemHandle."""

    _fields_ = (("reserved", ctypes.c_ubyte * HANDLE_BYTES),)


_LAZY_PEER_ACCESS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS

OLDEST_CAPABILITY = (7, 0)
_SUCCESS = 0
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # CU_FUNC_ATTRIBUTE_...
_PREFERRED_SHARED_MEMORY_CARVEOUT = 9
_ALL_OF_IT = 100  # CU_SHAREDMEM_CARVEOUT_MAX_SHARED, in percent
_MULTIPROCESSOR_COUNT = 16  # CU_DEVICE_ATTRIBUTE_...
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76
_SHARED_BYTES_PER_MULTIPROCESSOR = 81
_SHARED_BYTES_PER_BLOCK_OPT_IN = 97
_SHARED_BYTES_WITHOUT_ASKING = 48 * 1024


class Driver:
    """The functions of libcuda that are needed; each failure is CudaKernelError with the driver's message."""

    def __init__(self, library: Any) -> None:
        self._library = library
        library.cuLaunchKernel.argtypes = (
            ctypes.c_void_p,
            *(ctypes.c_uint,) * 7,
            *(ctypes.c_void_p,) * 3,
        )
        if hasattr(library, "cuLaunchKernelEx"):  # drivers before CUDA 11.8 know no GPU that has use for it
            library.cuLaunchKernelEx.argtypes = (ctypes.POINTER(LaunchConfig), *(ctypes.c_void_p,) * 3)

    def version(self) -> str:
        """The newest CUDA version that the driver supports, such as 13.0."""
        value = ctypes.c_int()
        self._check(self._library.cuDriverGetVersion(ctypes.byref(value)), "cuDriverGetVersion")
        return f"{value.value // 1000}.{value.value % 1000 // 10}"

    def properties(self, index: int, name: str) -> DeviceProperties:
        """What the driver reports of device ``index`` (as CUDA_VISIBLE_DEVICES numbers them)."""
        handle = ctypes.c_int()
        self._check(self._library.cuDeviceGet(ctypes.byref(handle), index), f"finding device {index}")
        return DeviceProperties(
            name=name,
            capability=(self._attribute(handle, _CAPABILITY_MAJOR), self._attribute(handle, _CAPABILITY_MINOR)),
            num_multiprocessors=self._attribute(handle, _MULTIPROCESSOR_COUNT),
            shared_bytes_per_block=self._attribute(handle, _SHARED_BYTES_PER_BLOCK_OPT_IN),
            shared_bytes_per_multiprocessor=self._attribute(handle, _SHARED_BYTES_PER_MULTIPROCESSOR),
            driver_version=self.version(),
        )

    def _attribute(self, handle: ctypes.c_int, attribute: int) -> int:
        value = ctypes.c_int()
        status = self._library.cuDeviceGetAttribute(ctypes.byref(value), attribute, handle)
        self._check(status, f"reading device attribute {attribute}")
        return value.value

    def load_function(self, image: bytes, name: str) -> ctypes.c_void_p:
        """The kernel ``name`` of a cubin or PTX, loaded into the current context for good."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._check(self._library.cuModuleLoadData(ctypes.byref(module), image), f"loading {name}")
        status = self._library.cuModuleGetFunction(ctypes.byref(function), module, name.encode())
        self._check(status, f"finding {name}")
        return function

    def allow_shared_bytes(self, function: ctypes.c_void_p, shared_bytes: int) -> None:
        """Allow the kernel this much dynamic shared memory, and give shared memory as much of the cache as possible.

        By default the driver may split a multiprocessor's memory so that one block fits where two could.
        """
        for attribute, value in (
            (_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes),
            (_PREFERRED_SHARED_MEMORY_CARVEOUT, _ALL_OF_IT),
        ):
            status = self._library.cuFuncSetAttribute(function, attribute, ctypes.c_int(value))
            self._check(status, f"asking for {shared_bytes} bytes of shared memory")

    def launch(
        self,
        function: ctypes.c_void_p,
        grid: tuple[int, int],
        threads: int,
        shared_bytes: int,
        stream: int,
        params: ctypes.Structure,
        *,
        is_early: bool,
    ) -> None:
        """Queue one kernel; the driver copies ``params`` before it returns.

        is_early: it may begin before the kernel before it has ended, and waits for that itself.
        """
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(params))
        if is_early:
            config = early_launch(grid, threads, shared_bytes, stream)
            status = self._library.cuLaunchKernelEx(ctypes.byref(config), function, arguments, None)
        else:
            status = self._library.cuLaunchKernel(
                function, grid[0], grid[1], 1, threads, 1, 1, shared_bytes, stream, arguments, None
            )
        if status != _SUCCESS:
            self._check(status, f"launching {grid} x {threads} threads with {shared_bytes} bytes of shared memory")

    def tensor_map(self, tensor: BoxedTensor) -> TensorMap:
        """The driver's map of ``tensor``."""
        status, made = encode_tensor_map(self._library, tensor)
        self._check(status, f"mapping {tensor.sizes} elements in boxes of {tensor.box}")
        return made

    def reaches(self, own: int, other: int) -> bool:
        """Whether device ``own`` can read and write the memory of device ``other``."""
        found, handles = ctypes.c_int(), (ctypes.c_int(), ctypes.c_int())
        for handle, index in zip(handles, (own, other), strict=True):
            self._check(self._library.cuDeviceGet(ctypes.byref(handle), index), f"finding device {index}")
        status = self._library.cuDeviceCanAccessPeer(ctypes.byref(found), *handles)
        self._check(status, f"asking whether device {own} reaches device {other}")
        return bool(found.value)

    def share(self, num_bytes: int) -> SharedMemory:
        """Allocate zeros that another process can open."""
        library, address, handle = self._library, ctypes.c_uint64(), IpcHandle()
        size = ctypes.c_size_t(num_bytes)
        self._check(library.cuMemAlloc_v2(ctypes.byref(address), size), f"allocating {num_bytes} bytes to share")
        try:
            self._check(library.cuIpcGetMemHandle(ctypes.byref(handle), address), "sharing memory")
            self._check(library.cuMemsetD8_v2(address, ctypes.c_ubyte(0), size), "clearing shared memory")
            self._check(library.cuCtxSynchronize(), "clearing shared memory")
        except CudaKernelError:
            library.cuMemFree_v2(address)
            raise
        shared = SharedMemory(address.value, bytes(handle.reserved))
        weakref.finalize(shared, library.cuMemFree_v2, address).atexit = False  # the process gives all back
        return shared

    def open_shared(self, handle: bytes) -> OpenedMemory:
        """Map what another process shares."""
        address, given = ctypes.c_uint64(), IpcHandle((ctypes.c_ubyte * HANDLE_BYTES)(*handle))
        status = self._library.cuIpcOpenMemHandle_v2(ctypes.byref(address), given, ctypes.c_uint(_LAZY_PEER_ACCESS))
        self._check(status, "opening another process' memory")
        opened = OpenedMemory(address.value)
        weakref.finalize(opened, self._library.cuIpcCloseMemHandle, address).atexit = False
        return opened

    def _check(self, status: int, what: str) -> None:
        if status == _SUCCESS:
            return
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(status, ctypes.byref(text))
        words = text.value.decode() if text.value else f"error {status}"
        if status == _OUT_OF_MEMORY:
            raise CudaOutOfMemory(f"CUDA: {what} failed: {words}")
        raise CudaKernelError(f"CUDA: {what} failed: {words}")


class DriverKernel:
    """One kernel on the device of ``runtime``."""

    __slots__ = ("_allowed_shared_bytes", "_driver", "_function", "_runtime")

    def __init__(self, driver: Driver, function: ctypes.c_void_p, runtime: DriverRuntime) -> None:
        self._driver = driver
        self._function = function
        self._runtime = runtime
        self._allowed_shared_bytes = _SHARED_BYTES_WITHOUT_ASKING

    def __call__(self, grid: tuple[int, int], threads: int, shared_bytes: int, params: ctypes.Structure) -> None:
        """Launch on torch's current stream; returns at once."""
        if 0 in grid:
            return
        if shared_bytes > self._allowed_shared_bytes:
            self._driver.allow_shared_bytes(self._function, shared_bytes)
            self._allowed_shared_bytes = shared_bytes
        runtime = self._runtime
        stream = torch.cuda.current_stream(runtime.device).cuda_stream
        is_early = runtime.overlaps_launches and runtime.properties.has_dependent_launch
        self._driver.launch(self._function, grid, threads, shared_bytes, stream, params, is_early=is_early)


class DriverRuntime:
    """A CudaRuntime on one GPU. The first use of a kernel compiles (0.2 s to 1 s, once per machine) and loads it.

    architecture: what is compiled for, such as sm_90.
    """

    def __init__(self, driver: Driver, nvrtc: Nvrtc, device: torch.device, properties: DeviceProperties) -> None:
        self.properties = properties
        self.device = device
        self.overlaps_launches = False
        self._driver = driver
        self._nvrtc = nvrtc
        self.compiler = f"NVRTC {nvrtc.version[0]}.{nvrtc.version[1]}"
        self.architecture = nvrtc.architecture_for(properties.capability)
        self._kernels: dict[KernelVariant, DriverKernel] = {}

    @property
    def compiler_path(self) -> str:
        """Path of NVRTC's library."""
        return self._nvrtc.path

    def kernel(self, variant: KernelVariant) -> Kernel:
        """See CudaRuntime.kernel."""
        kernel = self._kernels.get(variant)
        if kernel is None:
            image = cached_image(variant, self._nvrtc, variant.only_for or self.architecture)
            kernel = DriverKernel(self._driver, self._driver.load_function(image, variant.kernel), self)
            self._kernels[variant] = kernel
        return kernel

    def tensor_map(self, tensor: BoxedTensor) -> TensorMap:
        """See CudaRuntime.tensor_map."""
        return self._driver.tensor_map(tensor)

    def reaches(self, device: int) -> bool:
        """See CudaRuntime.reaches."""
        return self._driver.reaches(self.device.index, device)

    def share(self, num_bytes: int) -> SharedMemory:
        """See CudaRuntime.share."""
        return self._driver.share(num_bytes)

    def open_shared(self, handle: bytes) -> OpenedMemory:
        """See CudaRuntime.open_shared."""
        return self._driver.open_shared(handle)


def load_driver() -> Driver:
    """libcuda, which comes with the NVIDIA driver. CudaKernelError when it is missing."""
    try:
        return Driver(ctypes.CDLL("libcuda.so.1"))
    except OSError as error:
        raise CudaKernelError(f"no NVIDIA driver found: {error}", hint="use device='cpu'") from error


def current_runtime() -> DriverRuntime:
    """The runtime of torch's current CUDA device; CudaKernelError says in one line why there is none."""
    if not torch.cuda.is_available():
        raise CudaKernelError("torch finds no CUDA device", hint="use device='cpu'")
    return _runtime_of(torch.cuda.current_device())


@cache
def _runtime_of(index: int) -> DriverRuntime:
    device = torch.device("cuda", index)
    torch.zeros(1, device=device)  # makes the device's context current, which loading a module needs
    driver = load_driver()
    properties = driver.properties(index, torch.cuda.get_device_name(device))
    return make_runtime(driver, load_nvrtc(torch_cuda_major()), device, properties)


def torch_cuda_major() -> int | None:
    """The CUDA version that torch was built for, 12 or 13; None for a torch without CUDA."""
    version = torch.version.cuda
    return int(version.split(".")[0]) if version else None


def make_runtime(driver: Driver, nvrtc: Nvrtc, device: torch.device, properties: DeviceProperties) -> DriverRuntime:
    """A DriverRuntime, or CudaKernelError for a GPU that the kernels do not support."""
    if properties.capability < OLDEST_CAPABILITY:
        raise CudaKernelError(
            f"{properties.name} has compute capability {properties.capability[0]}.{properties.capability[1]}; "
            "the kernels need 7.0 or newer",
            hint="use device='cpu'",
        )
    return DriverRuntime(driver, nvrtc, device, properties)
