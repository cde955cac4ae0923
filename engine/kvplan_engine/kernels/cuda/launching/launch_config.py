"""The driver's structures of a launch with attributes (cuLaunchKernelEx), as cuda.h declares them since CUDA 11.8."""

from __future__ import annotations

import ctypes

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
