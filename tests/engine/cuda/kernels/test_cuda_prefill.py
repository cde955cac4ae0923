"""The prefill kernels' own source, run on the CPU, against float64 over the stored values."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from cuda_cases import AttentionCase, attend, build_batch, largest_error, tolerance

from kvplan_engine.attention import cuda_plan
from kvplan_engine.attention.cuda import CudaBackend
from kvplan_engine.kernels.cuda.launching.emulation import BACKWARD, EMULATED_PROPERTIES, FORWARD, EmulatedRuntime
from kvplan_engine.kernels.cuda.step_memory import StepMemory

F32, F16, BF16, FP8 = torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn
SHUFFLED = 5
OLD_GPU = replace(EMULATED_PROPERTIES, capability=(7, 0), shared_bytes_per_block=96 * 1024)

# (tokens in the cache, new ones): whole prompts of 1, 2 and many tokens; cached prefixes; a decode; nothing; a chunk of
# several tiles of rows over several tiles of keys.
LENGTHS = ((1, 1), (2, 2), (40, 40), (64, 5), (17, 1), (0, 0), (130, 66), (200, 2), (65, 65))


def prefill_case(head_size: int, block_size: int, heads: int, kv_heads: int, **options) -> AttentionCase:
    seq_lens, query_lens = zip(*LENGTHS, strict=True)
    return AttentionCase(head_size, block_size, heads, kv_heads, seq_lens, query_lens, **options)


CASES = [
    prefill_case(64, 16, 2, 2, scalar=BF16),
    prefill_case(64, 1, 7, 1, scalar=F16),
    prefill_case(80, 5, 4, 4, scalar=F16),
    prefill_case(96, 16, 3, 1, scalar=BF16),
    prefill_case(128, 16, 4, 1, scalar=BF16),
    prefill_case(128, 3, 2, 1, scalar=F16, window=20, softcap=3.0, sinks=True),
    prefill_case(64, 16, 6, 2, scalar=BF16, slopes=True),
    prefill_case(64, 16, 6, 2, slopes=True, softcap=3.0),
    prefill_case(256, 32, 2, 1, scalar=BF16),
    prefill_case(128, 128, 2, 1, scalar=BF16, window=70),  # a page has several tiles of keys
    prefill_case(128, 8, 4, 2, scalar=F16, window=37),
    prefill_case(80, 16, 2, 1, scalar=BF16, cache=FP8),
    prefill_case(64, 16, 1, 1, scalar=BF16, window=50),
    prefill_case(64, 16, 3, 3),
    prefill_case(80, 7, 5, 1, window=33, softcap=5.0, sinks=True),
    prefill_case(256, 16, 2, 2),
    prefill_case(32, 16, 2, 1, scalar=BF16),
    prefill_case(160, 16, 2, 2, scalar=F16),
]
OLD_GPU_CASES = [prefill_case(96, 16, 4, 2, scalar=F16), prefill_case(128, 4, 2, 2, scalar=BF16, cache=FP8)]


def check(case: AttentionCase, runtime: EmulatedRuntime) -> None:
    batch = build_batch(case)
    attend(CudaBackend(runtime), case, batch)
    assert largest_error(case, batch) < tolerance(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_prefill_matches_the_reference(case: AttentionCase) -> None:
    check(case, EmulatedRuntime())


@pytest.mark.parametrize("case", OLD_GPU_CASES, ids=str)
def test_prefill_without_tensor_cores_matches_the_reference(case: AttentionCase) -> None:
    check(case, EmulatedRuntime(OLD_GPU))


@pytest.mark.slow
@pytest.mark.parametrize("case", [CASES[0], CASES[7], CASES[9]], ids=str)
def test_the_order_of_threads_and_blocks_does_not_change_a_bit(case: AttentionCase) -> None:
    results = []
    for order in (FORWARD, BACKWARD, SHUFFLED):
        batch = build_batch(case)
        attend(CudaBackend(EmulatedRuntime(order=order)), case, batch)
        results.append(batch.out.clone())
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("scalar", [F32, BF16])
def test_batches_of_any_lengths(scalar: torch.dtype, seed: int) -> None:
    """Decodes, whole prompts, chunks with and without a prefix, and empty rows, mixed at random."""
    generator = torch.Generator().manual_seed(seed)
    count = int(torch.randint(1, 7, (1,), generator=generator))
    prefixes = torch.randint(0, 150, (count,), generator=generator).tolist()
    new = [(0, 1, 1, 2, 17, 64, 90)[i] for i in torch.randint(0, 7, (count,), generator=generator).tolist()]
    seq_lens = tuple(prefix * (queries > 0) + queries for prefix, queries in zip(prefixes, new, strict=True))
    case = AttentionCase(64, 16, 2, 2, seq_lens, tuple(new), scalar=scalar)
    check(case, EmulatedRuntime(order=seed % 3))


def cut_case(head_size: int, block_size: int, heads: int, **options) -> AttentionCase:
    """Few new tokens behind prefixes, of which some end at a tile of keys; a whole prompt; a decode; nothing."""
    return AttentionCase(head_size, block_size, heads, 1, (300, 130, 40, 0, 257), (5, 2, 40, 0, 1), **options)


CUT_CASES = [  # of shapes that CASES compiles
    cut_case(128, 16, 4, scalar=BF16),
    cut_case(128, 3, 2, scalar=F16, window=200, softcap=3.0, sinks=True),
    cut_case(80, 16, 2, scalar=BF16, cache=FP8),
    cut_case(160, 16, 1, scalar=F16),
    cut_case(64, 16, 3, scalar=BF16, slopes=True),
    cut_case(64, 16, 3, slopes=True, softcap=3.0),
]


SHORT_CASES = [  # whose sequences have no more than 16 rows
    AttentionCase(128, 16, 4, 1, (300, 130, 40, 0, 257), (4, 2, 3, 0, 1), scalar=BF16),
    AttentionCase(64, 3, 2, 1, (300, 8, 40), (5, 8, 1), scalar=F16, window=130, softcap=3.0, sinks=True),
]


@pytest.fixture
def short_parts(monkeypatch: pytest.MonkeyPatch) -> EmulatedRuntime:
    """Tiles are cut into parts of 64 tokens and more, as far as they are worth it to a device of 16 places."""
    monkeypatch.setattr(cuda_plan, "MIN_PART", 64)
    return EmulatedRuntime(replace(EMULATED_PROPERTIES, num_multiprocessors=8))


@pytest.mark.parametrize("case", CUT_CASES + SHORT_CASES, ids=str)
def test_parts_of_tiles_match_the_reference(case: AttentionCase, short_parts: EmulatedRuntime) -> None:
    """In two steps: what counts the parts that are done is zero again; whichever block comes last, no bit changes."""
    memory = torch.zeros(2 * 1024**2, dtype=torch.uint8)
    backend, results = CudaBackend(short_parts, parts=StepMemory(memory)), []
    for order in (FORWARD, BACKWARD):
        short_parts.order = order
        batch = build_batch(case)
        attend(backend, case, batch)
        assert largest_error(case, batch) < tolerance(case)
        results.append(batch.out.clone())
    assert torch.equal(*results)
    assert (backend._planner.buffers.finished_parts == 0).all()
    assert memory.any(), "nothing was cut"


@pytest.mark.parametrize("rows", [63, 64, 65, 127, 128, 129, 257])
def test_tiles_of_rows_end_where_they_should(rows: int) -> None:
    case = AttentionCase(64, 16, 1, 1, (rows + 70,), (rows,), scalar=BF16, window=50)
    check(case, EmulatedRuntime())
