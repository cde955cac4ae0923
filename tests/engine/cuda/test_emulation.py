"""What is wrong on a GPU is wrong in the emulation too: barriers, lanes, copies, and Hopper's warp groups."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from kvplan_engine.kernels.cuda.launching.emulation import BACKWARD, FORWARD, EmulatedRuntime
from kvplan_engine.kernels.cuda.launching.runtime import boxed_pages
from kvplan_engine.kernels.cuda.launching.variants import CudaKernelError, KernelVariant
from kvplan_engine.kernels.cuda.params import TensorMap
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


BF16 = torch.bfloat16
SIZE = 64
"""Rows and columns of both matrices. Of three warp groups the first multiplies."""
SHARED_BYTES = 1024 + 2 * SIZE * 128 + 64

# The threads bring A [64, 64] to shared memory, a box B [64, 64]; the sums are A x B^T, or with A in registers A x B.
SOURCE = """
#include "{cuda}/warp_group.cuh"
enum Fault {{
    NONE, FROM_REGISTERS, OTHER_BYTES, NO_WAIT_FOR_BOX, NO_PROXY_FENCE, NO_REGISTER_FENCE, READ_TOO_EARLY,
    BOX_OVER_OPERAND, WRITE_OVER_SUMS, WRITE_OVER_REGISTERS, OTHER_SWIZZLE, OTHER_STRIDE, NO_INIT, NO_SYNC_AFTER_INIT,
    UNALIGNED_BOX, BOX_OUTSIDE, TOO_MANY_ARRIVE, REGISTERS_NOT_GIVEN, BARRIER_OF_TOO_MANY, NO_PRODUCT_WAIT, BOX_LEFT,
    WARP_DISAGREES, TURNS, TURN_WITHOUT_WAIT, TURN_NOT_GIVEN, TURN_GIVEN_TWICE, TURN_LEFT
}};
struct alignas(64) HopperParams {{
    TensorMap map;
    const u16* a;
    float* out;
    int fault;
}};
KVPLAN_INLINE void load_registers(u32 (&a)[4][4], const u16* matrix, int thread) {{
    for (int step = 0; step < 4; ++step)
        for (int i = 0; i < 4; ++i) {{
            const int row = thread / 32 * 16 + thread % 32 / 4 + i % 2 * 8;
            const int column = step * 16 + thread % 4 * 2 + i / 2 * 8;
            a[step][i] = matrix[row * 64 + column] | u32(matrix[row * 64 + column + 1]) << 16;
        }}
}}
KVPLAN_INLINE void multiply(float (&sums)[32], u8* a, u8* b, const HopperParams& params) {{
    const int fault = params.fault, thread = int(threadIdx.x);
    const u64 swizzle = fault == OTHER_SWIZZLE ? u64(1) << 62 : 0, stride = fault == OTHER_STRIDE ? u64(32) << 32 : 0;
    u32 registers[4][4];
    load_registers(registers, params.a, thread);
    if (fault != NO_REGISTER_FENCE) fence_registers();
    for (int step = 0; step < 4; ++step) {{
        if (fault == FROM_REGISTERS || fault == WRITE_OVER_REGISTERS) {{
            const u32 begin = shared_address(b) + u32(step) * 16 * 128;
            multiply_registers<bfloat16, 64>(sums, registers[step], panel_descriptor(begin, 8192));
        }} else {{
            const int other = fault == WARP_DISAGREES && thread >= 96 ? 32 : 0;
            const u64 left = panel_descriptor(shared_address(a) + u32(step * 32), 0);
            const u64 right = panel_descriptor(shared_address(b) + u32(step * 32 + other), 0);
            multiply_shared<bfloat16, 64, true>(sums, left, (right ^ swizzle) - stride);
        }}
    }}
    commit_products();
    if (fault == WRITE_OVER_SUMS) sums[3] *= 2;
    if (fault == WRITE_OVER_REGISTERS) registers[1][2] = 0;
    if (fault == READ_TOO_EARLY) params.out[thread] = sums[0];
    if (fault == BOX_OVER_OPERAND && thread == 0)
        copy_box(b, params.map, 0, 0, 0, 0, reinterpret_cast<u64*>(b + 64 * 128));
    if (fault != NO_PRODUCT_WAIT) wait_products<0>();
}}
// Two groups count by turns: 2, 4, 6, 8 by the first one, 3, 5, 7, 9 by the second. Barriers 4 and 5 are their turns.
KVPLAN_INLINE void count_by_turns(int* count, const HopperParams& params) {{
    const int fault = params.fault, thread = int(threadIdx.x), group = thread / 128;
    if (group == 1 && fault != TURN_NOT_GIVEN) arrive_some(4, 256);
    if (group == 1 && fault == TURN_GIVEN_TWICE) arrive_some(4, 256);
    for (int round = 0; round < 4; ++round) {{
        if (fault == TURN_WITHOUT_WAIT && group == 1) arrive_some(5, 256);
        else sync_some(4 + group, 256);
        if (thread % 128 == 0) {{
            params.out[2 * round + group] = float(*count);
            *count += 1;
        }}
        if (round < 3 || group == 0 || fault == TURN_LEFT) arrive_some(5 - group, 256);
    }}
}}
KVPLAN_KERNEL(hopper_units, HopperParams, 384) {{
    KVPLAN_DYNAMIC_SHARED(shared);
    if (params.fault >= TURNS) {{
        if (threadIdx.x == 300) *reinterpret_cast<int*>(shared) = 2;
        __syncthreads();
        if (threadIdx.x < 256) count_by_turns(reinterpret_cast<int*>(shared), params);
        return;
    }}
    u8* a = shared + (1024 - shared_address(shared) % 1024) % 1024;
    u8* b = a + 64 * 128;
    u64* here = reinterpret_cast<u64*>(b + 64 * 128);
    const int fault = params.fault, thread = int(threadIdx.x);
    if (thread == 200 && fault != NO_INIT) init_barrier(here, 1);
    fence_barrier_init();
    if (fault != NO_SYNC_AFTER_INIT) __syncthreads();
    if (fault != REGISTERS_NOT_GIVEN && thread >= 256) give_registers<24>();
    if (thread < 256) take_registers<240>();
    if (thread == 128) {{
        arrive_expecting(here, fault == OTHER_BYTES ? 8191 : 8192);
        if (fault == TOO_MANY_ARRIVE) arrive(here);
        copy_box(fault == UNALIGNED_BOX ? b - 128 : b, params.map, 0, fault == BOX_OUTSIDE, 0, 0, here);
    }}
    for (int i = thread; i < 64 * 8; i += 384)
        for (int e = 0; e < 8; ++e)
            reinterpret_cast<u16*>(a + swizzled_place(i * 16))[e] = params.a[i * 8 + e];
    if (fault != NO_PROXY_FENCE) fence_async_proxy();
    __syncthreads();
    if (fault == BARRIER_OF_TOO_MANY && thread < 128) sync_some(3, 160);
    if (thread >= 128) return;
    if (fault != NO_WAIT_FOR_BOX && fault != BOX_LEFT) wait_phase(here, 0);
    if (fault == BOX_LEFT) return;
    float sums[32] = {{}};
    multiply(sums, a, b, params);
    if (fault == READ_TOO_EARLY) return;
    for (int n = 0; n < 8; ++n)
        for (int e = 0; e < 4; ++e) {{
            const int row = thread / 32 * 16 + thread % 32 / 4 + e / 2 * 8;
            params.out[row * 64 + n * 8 + thread % 4 * 2 + e % 2] = sums[n * 4 + e];
        }}
}}
"""
FAULTS = [name.strip() for name in SOURCE.split("enum Fault {{")[1].split("}}")[0].split(",")]


@pytest.fixture(scope="module")
def units(tmp_path_factory: pytest.TempPathFactory) -> KernelVariant:
    path = Path(tmp_path_factory.mktemp("hopper")) / "hopper_units.cu"
    path.write_text(SOURCE.format(cuda=source_dir() / "cuda"))
    return KernelVariant(str(path), "hopper_units")


class HopperParams(ctypes.Structure):
    _fields_ = (
        ("map", TensorMap),
        ("a", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("fault", ctypes.c_int),
        ("_filler", ctypes.c_ubyte * 44),
    )


A, B = (torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(seed)).to(BF16) for seed in (1, 2))


def run_on_hopper(units: KernelVariant, fault: str, order: int = FORWARD) -> torch.Tensor:
    """The sums [64, 64] float32."""
    runtime = EmulatedRuntime(order=order)
    out = torch.full((SIZE, SIZE), -1.0)
    mapped = runtime.tensor_map(boxed_pages(B.view(1, 1, SIZE, SIZE), SIZE))
    params = HopperParams(mapped, A.data_ptr(), out.data_ptr(), FAULTS.index(fault))
    runtime.kernel(units)((1, 1), 384, SHARED_BYTES, params)
    return out


@pytest.mark.parametrize("order", [FORWARD, BACKWARD, 5])
@pytest.mark.parametrize(("way", "right"), [("NONE", B.T), ("FROM_REGISTERS", B)])
def test_products_of_a_warp_group_are_those_of_its_matrices(
    units: KernelVariant, way: str, right: torch.Tensor, order: int
) -> None:
    torch.testing.assert_close(run_on_hopper(units, way, order), A.float() @ right.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("OTHER_BYTES", "never reach"),
        ("NO_REGISTER_FENCE", "without a wgmma.fence"),
        ("BOX_OVER_OPERAND", "shared memory changes while a product reads it"),
        ("WRITE_OVER_SUMS", "sums are written"),
        ("WRITE_OVER_REGISTERS", "registers change"),
        ("OTHER_SWIZZLE", "swizzling"),
        ("NO_INIT", "nobody has made"),
        ("NO_SYNC_AFTER_INIT", "mbarrier is used"),
        ("UNALIGNED_BOX", "not aligned for it"),
        ("BOX_OUTSIDE", "outside of its tensor"),
        ("TOO_MANY_ARRIVE", "more threads arrive"),
        ("REGISTERS_NOT_GIVEN", "never reach"),
        ("BARRIER_OF_TOO_MANY", "never reach"),
        ("NO_PRODUCT_WAIT", "products are under way"),
        ("BOX_LEFT", "a block ends while a box is being copied"),
        ("WARP_DISAGREES", "disagree on a product"),
        ("TURN_NOT_GIVEN", "never reach"),
        ("TURN_WITHOUT_WAIT", "arrives a second time"),
        ("TURN_GIVEN_TWICE", "arrives a second time"),
        ("TURN_LEFT", "arrivals that nobody waits for"),
    ],
)
def test_what_is_wrong_ends_the_launch(units: KernelVariant, fault: str, message: str) -> None:
    with pytest.raises(CudaKernelError, match=message):
        run_on_hopper(units, fault, BACKWARD)


@pytest.mark.parametrize("fault", ["NO_PROXY_FENCE", "OTHER_STRIDE", "READ_TOO_EARLY"])
def test_what_is_read_too_early_or_elsewhere_is_not_the_result(units: KernelVariant, fault: str) -> None:
    found, right = (
        run_on_hopper(units, fault)[:, 8:],
        A.float() @ B.T.float()[:, 8:],
    )  # the stride is that of eight columns
    assert not torch.isclose(found, right, rtol=0.1, atol=0.1).all(dim=0).any()


def test_a_box_that_nobody_waits_for_is_not_there(units: KernelVariant) -> None:
    with pytest.raises(CudaKernelError, match="a block ends while a box"):
        run_on_hopper(units, "NO_WAIT_FOR_BOX", BACKWARD)


@pytest.mark.parametrize("order", [FORWARD, BACKWARD, 5])
def test_who_arrives_goes_on_and_who_waits_is_woken(units: KernelVariant, order: int) -> None:
    assert run_on_hopper(units, "TURNS", order).flatten()[:8].tolist() == [2, 3, 4, 5, 6, 7, 8, 9]
