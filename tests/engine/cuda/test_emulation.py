"""The emulation itself: what it must catch, it catches."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from kvplan_engine.kernels.cuda.launching.emulation import BACKWARD, FORWARD, EmulatedRuntime
from kvplan_engine.kernels.cuda.launching.variants import CudaKernelError, KernelVariant
from kvplan_engine.paths import source_dir

FAULTY = """
#include "{cuda}/tensor_core.cuh"
struct FaultParams {{
    int* out;
    int fault;
}};
KVPLAN_KERNEL(faulty, FaultParams, 64) {{
    KVPLAN_DYNAMIC_SHARED(shared);
    int* cells = reinterpret_cast<int*>(shared);
    const int thread = int(threadIdx.x);
    if (params.fault == 0) {{  // a barrier is missing between the write and the read of a neighbour's cell
        cells[thread] = thread;
        params.out[thread] = cells[(thread + 1) % 64];
    }} else if (params.fault == 1) {{
        if (thread < 32) __syncthreads();
        if (thread >= 32) __syncwarp();
        if (thread >= 32) __shfl_sync(FULL_WARP, thread, 0);
        if (thread == 40) __syncthreads();
        if (thread != 40) __syncwarp();
    }} else if (params.fault == 2) {{
        if (thread % 2) __syncwarp();
        else __shfl_sync(FULL_WARP, thread, 0);
    }} else if (params.fault == 3) {{
        params.out[thread] = int(load_vector<uint4>(params.out + 1).x);
    }} else if (params.fault == 4) {{  // the copy is read before it is waited for
        copy_async_16(shared + 16 * thread, params.out + 4 * (thread % 2), true);
        commit_copies();
        params.out[16 + thread] = cells[4 * thread];
        wait_copies<0>();
        params.out[80 + thread] = cells[4 * thread];
    }} else if (thread < 40) {{
        __syncwarp();
    }}
}}
"""


@pytest.fixture(scope="module")
def fault(tmp_path_factory: pytest.TempPathFactory) -> KernelVariant:
    path = Path(tmp_path_factory.mktemp("faulty")) / "faulty.cu"
    path.write_text(FAULTY.format(cuda=source_dir() / "cuda"))
    return KernelVariant(str(path), "faulty")


class FaultParams(ctypes.Structure):
    _fields_ = (("out", ctypes.c_void_p), ("fault", ctypes.c_int))


def run(variant: KernelVariant, fault: int, order: int = FORWARD) -> list[int]:
    memory = (ctypes.c_int * 256)(*range(256))
    address = (ctypes.addressof(memory) + 15) // 16 * 16
    params = FaultParams(address, fault)
    EmulatedRuntime(order=order).kernel(variant)((1, 1), 64, 1024, params)
    return list((ctypes.c_int * 160).from_address(address))


@pytest.mark.slow
def test_a_missing_barrier_changes_the_result_with_the_order(fault: KernelVariant) -> None:
    assert run(fault, 0, FORWARD)[:64] != run(fault, 0, BACKWARD)[:64]


@pytest.mark.slow
def test_a_barrier_that_some_threads_never_reach_is_a_fault(fault: KernelVariant) -> None:
    with pytest.raises(CudaKernelError, match="never reach"):
        run(fault, 1)


def test_lanes_in_different_operations_are_a_fault(fault: KernelVariant) -> None:
    with pytest.raises(CudaKernelError, match="disagree"):
        run(fault, 2)


def test_a_misaligned_vector_is_a_fault(fault: KernelVariant) -> None:
    with pytest.raises(CudaKernelError, match="unaligned"):
        run(fault, 3)


def test_copies_land_at_the_wait_and_not_before(fault: KernelVariant) -> None:
    memory = run(fault, 4)
    assert memory[16:80] == [-1] * 64
    assert set(memory[80:144]) == {memory[0], memory[4]}


def test_a_warp_operation_after_a_lane_has_ended_is_a_fault(fault: KernelVariant) -> None:
    with pytest.raises(CudaKernelError, match="after a lane of its warp had ended"):
        run(fault, 5, BACKWARD)
