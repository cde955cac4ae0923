"""What loading leaves in the C library's heap: tensors on their way leave nothing."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from kvplan_engine.device import heap

_MIB = 1024**2
# Each round frees a large block that lies before one which stays, as a tensor on its way into its format does.
_ROUNDS = """
import ctypes, json
from contextlib import nullcontext
from kvplan_engine.device.heap import large_tensors_apart
from kvplan_engine.device.process_memory import private_memory_bytes
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
grown = []
libc.free(libc.malloc(30 * 1024**2))  # from now on glibc lets what is smaller share the heap
for block in (nullcontext(), large_tensors_apart()):
    before = private_memory_bytes()
    with block:
        for round in range(5):
            on_its_way = libc.malloc((round + 5) * 1024**2)
            libc.malloc(1024**2 // 2)
            libc.free(on_its_way)
    grown.append(private_memory_bytes() - before)
print(json.dumps(grown))
"""


def test_large_blocks_leave_no_holes() -> None:
    """Beside the same without it: there each larger block finds the hole before it too small."""
    if heap.heap_options() is None:
        pytest.skip("the C library is not glibc")
    shared, apart = json.loads(subprocess.run([sys.executable, "-c", _ROUNDS], check=True, capture_output=True).stdout)
    assert apart < 2 * _MIB
    assert shared > 8 * _MIB


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "heap_options", lambda: None)
    with heap.large_tensors_apart():
        pass
