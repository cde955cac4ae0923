"""The decode kernels' own source, run on the CPU, against float64 over the stored values."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from cuda_cases import SENTINEL, AttentionCase, attend, build_batch, largest_error, tolerance

from kvplan_engine.attention.cuda import CudaBackend
from kvplan_engine.kernels.cuda.launching.emulation import BACKWARD, EMULATED_PROPERTIES, FORWARD, EmulatedRuntime

F32, F16, BF16, FP8 = torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn
SHUFFLED = 7
OLD_GPU = replace(EMULATED_PROPERTIES, capability=(7, 5), shared_bytes_per_block=64 * 1024)


def decode_case(head_size: int, block_size: int, heads: int, kv_heads: int, **options) -> AttentionCase:
    """Lengths 0 and 1, around one block, around a tile of 16, and one long enough to be split over blocks."""
    lengths = (1, block_size - 1, block_size, block_size + 1, 0, 15, 16, 17, 700)
    return AttentionCase(head_size, block_size, heads, kv_heads, lengths, (1,) * len(lengths), **options)


TENSOR_CORE_CASES = [
    decode_case(64, 16, 3, 3, scalar=BF16),
    decode_case(64, 1, 8, 2, scalar=F16),
    decode_case(80, 7, 4, 4, scalar=BF16),
    decode_case(80, 16, 5, 1, scalar=F16),
    decode_case(96, 32, 6, 2, scalar=BF16),
    decode_case(128, 16, 8, 2, scalar=BF16),
    decode_case(128, 5, 7, 1, scalar=F16),
    decode_case(128, 64, 16, 1, scalar=BF16),
    decode_case(64, 8, 20, 1, scalar=BF16),
    decode_case(256, 16, 9, 1, scalar=BF16),
    decode_case(256, 3, 2, 2, scalar=F16),
    decode_case(128, 16, 4, 1, scalar=BF16, cache=FP8),
    decode_case(80, 4, 2, 1, scalar=F16, cache=FP8),
    decode_case(96, 16, 2, 2, scalar=BF16, cache=FP8),
    decode_case(64, 16, 3, 1, scalar=F16, cache=FP8),
    decode_case(64, 16, 4, 1, scalar=BF16, window=20, softcap=3.0, sinks=True),
    decode_case(64, 16, 6, 2, scalar=BF16, slopes=True),
    decode_case(64, 16, 6, 2, slopes=True, window=20),
    decode_case(128, 16, 2, 1, scalar=F16, window=300),
    decode_case(48, 16, 4, 2, scalar=BF16),
    decode_case(160, 16, 3, 1, scalar=F16),
]
PLAIN_CASES = [
    decode_case(64, 16, 12, 4),
    decode_case(80, 1, 7, 1),
    decode_case(96, 5, 2, 2),
    decode_case(128, 16, 20, 1, window=17, softcap=5.0, sinks=True),
    decode_case(256, 32, 4, 2),
    decode_case(128, 16, 8, 2, cache=BF16),
]
OLD_GPU_CASES = [
    decode_case(64, 16, 4, 1, scalar=F16),
    decode_case(80, 3, 9, 1, scalar=BF16),
    decode_case(256, 16, 2, 1, scalar=F16, cache=FP8),
]


def check(case: AttentionCase, runtime: EmulatedRuntime) -> None:
    batch = build_batch(case)
    attend(CudaBackend(runtime), case, batch)
    assert largest_error(case, batch) < tolerance(case)
    empty = case.seq_lens.index(0)
    assert (batch.out[empty] == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("case", TENSOR_CORE_CASES + PLAIN_CASES, ids=str)
def test_decode_matches_the_reference(case: AttentionCase) -> None:
    check(case, EmulatedRuntime())


@pytest.mark.parametrize("case", OLD_GPU_CASES, ids=str)
def test_decode_without_tensor_cores_matches_the_reference(case: AttentionCase) -> None:
    check(case, EmulatedRuntime(OLD_GPU))


@pytest.mark.parametrize("case", [TENSOR_CORE_CASES[0], TENSOR_CORE_CASES[6], PLAIN_CASES[0]], ids=str)
def test_the_order_of_threads_and_blocks_does_not_change_a_bit(case: AttentionCase) -> None:
    results = []
    for order in (FORWARD, BACKWARD, SHUFFLED):
        batch = build_batch(case)
        attend(CudaBackend(EmulatedRuntime(order=order)), case, batch)
        results.append(batch.out.clone())
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("scalar", [BF16, F32])
def test_one_long_sequence_is_merged_from_many_items(scalar: torch.dtype) -> None:
    """More items than a warp has lanes; whichever block finishes last, the result is the same."""
    case = AttentionCase(64, 16, 1, 1, (12000,), (1,), scalar=scalar)
    many_blocks = replace(EMULATED_PROPERTIES, num_multiprocessors=40)
    results = []
    for order in (FORWARD, BACKWARD):
        batch = build_batch(case)
        attend(CudaBackend(EmulatedRuntime(many_blocks, order)), case, batch)
        assert largest_error(case, batch) < tolerance(case)
        results.append(batch.out.clone())
    assert torch.equal(results[0], results[1])


def test_a_second_step_reuses_the_buffers() -> None:
    """The counters of finished items are zero again, and a new step is planned anew."""
    case = decode_case(64, 16, 3, 3, scalar=BF16)
    backend = CudaBackend(EmulatedRuntime())
    for seed, lengths in enumerate([case.seq_lens, (900, 1, 40), (3, 2000)]):
        step = replace(case, seq_lens=lengths, query_lens=(1,) * len(lengths))
        batch = build_batch(step, seed=seed)
        attend(backend, step, batch)
        assert largest_error(step, batch) < tolerance(step)


def test_a_step_of_nothing_writes_nothing() -> None:
    case = replace(decode_case(64, 16, 3, 3, scalar=BF16), seq_lens=(), query_lens=())
    batch = build_batch(case)
    attend(CudaBackend(EmulatedRuntime()), case, batch)
    assert (batch.out_memory == SENTINEL).all()


def test_fp8_scales_are_applied() -> None:
    case = decode_case(64, 16, 3, 1, scalar=F16, cache=FP8)
    batch = build_batch(case)
    doubled = build_batch(replace(case))
    attend(CudaBackend(EmulatedRuntime(), value_scale=2.0), case, doubled)
    attend(CudaBackend(EmulatedRuntime()), case, batch)
    assert torch.allclose(doubled.out.float(), 2 * batch.out.float(), atol=1e-3)
    sharper = build_batch(case)
    attend(CudaBackend(EmulatedRuntime(), key_scale=0.5), case, sharper)
    halved = build_batch(case)
    halved.query.mul_(0.5)
    attend(CudaBackend(EmulatedRuntime()), case, halved)
    assert torch.allclose(sharper.out.float(), halved.out.float(), atol=1e-3)


def test_queries_beyond_float16_stay_finite_over_a_cache_of_fp8() -> None:
    """Products are in float16 then, whose largest number is 65504."""
    case = decode_case(64, 16, 3, 1, scalar=BF16, cache=FP8)
    batch = build_batch(case)
    batch.query.mul_(1e6)
    attend(CudaBackend(EmulatedRuntime()), case, batch)
    assert batch.out.isfinite().all()
    assert batch.out.abs().max() <= 448
