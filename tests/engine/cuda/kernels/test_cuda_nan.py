"""A NaN stays a NaN in every attention kernel, in the rows that see it and nowhere else: run on the CPU by emulation.

A model that overflows then fails where one sees it, instead of going on with zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from cuda_cases import AttentionCase, Batch, attend, build_batch, reference_output, tolerance

from kvplan_engine.attention import cuda_plan
from kvplan_engine.attention.backend import AttentionInputs, AttentionMetadata, AttentionOptions, KvSlots
from kvplan_engine.attention.cuda import CudaBackend
from kvplan_engine.attention.layer_cache import latent_cache
from kvplan_engine.attention.reference import ReferenceBackend
from kvplan_engine.kernels.cuda.launching.emulation import EMULATED_PROPERTIES, EmulatedRuntime
from kvplan_engine.kernels.cuda.step_memory import StepMemory

F32, F16, BF16, FP8 = torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn
NAN = float("nan")
OLD_GPU = replace(EMULATED_PROPERTIES, capability=(7, 5), shared_bytes_per_block=64 * 1024)
SMALL_GPU = replace(EMULATED_PROPERTIES, num_multiprocessors=8)
HOPPER = replace(EMULATED_PROPERTIES, capability=(9, 0))
DECODE, PREFILL = ((300, 40, 1), (1, 1, 1)), ((130, 40, 5), (20, 17, 5))
WHOLE, ALIKE = ((130, 40), (130, 40)), ((150, 151, 170), (1, 1, 1))


def case_of(lengths: tuple[tuple[int, ...], tuple[int, ...]], scalar: torch.dtype, **options) -> AttentionCase:
    return AttentionCase(64, 16, 6, 2, *lengths, scalar=scalar, **options)


def with_parts(runtime: EmulatedRuntime) -> CudaBackend:
    return CudaBackend(runtime, parts=StepMemory(torch.zeros(2 * 1024**2, dtype=torch.uint8)))


BACKENDS: dict[str, Callable[[], CudaBackend]] = {
    "now": lambda: CudaBackend(EmulatedRuntime()),
    "old": lambda: CudaBackend(EmulatedRuntime(OLD_GPU)),
    "parts": lambda: with_parts(EmulatedRuntime(SMALL_GPU)),
    "wgmma": lambda: CudaBackend(EmulatedRuntime(HOPPER), wgmma=True),
    "shared": lambda: CudaBackend(EmulatedRuntime(SMALL_GPU), shares=True),
}
KERNELS = [
    ("now", case_of(DECODE, BF16)),
    ("now", case_of(DECODE, F16, softcap=3.0, sinks=True)),
    ("now", case_of(DECODE, F32, sinks=True)),
    ("old", case_of(DECODE, F16)),
    ("now", case_of(PREFILL, BF16)),
    ("now", case_of(PREFILL, F32, softcap=3.0)),
    ("old", case_of(PREFILL, F16, sinks=True)),
    ("parts", case_of(PREFILL, BF16, sinks=True)),
    ("parts", case_of(PREFILL, F32)),
    ("wgmma", case_of(WHOLE, BF16)),
    ("wgmma", case_of(WHOLE, F16, sinks=True)),
    ("shared", case_of(ALIKE, BF16)),
]


@pytest.fixture(autouse=True)
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MIN_SHARED", "MIN_PART"):
        monkeypatch.setattr(cuda_plan, name, 64)
    monkeypatch.setattr(cuda_plan, "MIN_PART", 64)


def poisoned_batch(case: AttentionCase, kind: str) -> Batch:
    """A NaN in the first sequence alone: in its last query, or in what the queries of the first KV head see.

    In keys and values it is token 0, which every query of the sequence sees.
    """
    batch = build_batch(case)
    if case.seq_lens == ALIKE[0]:
        batch.metadata.block_tables[1:, :8] = batch.metadata.block_tables[0, :8].clone()
    if kind == "query":
        batch.query[case.query_lens[0] - 1, 0, 3] = NAN
    else:
        block = int(batch.metadata.block_tables[0, 0])
        batch.kv[block, case.layer, ("key", "value").index(kind), 0, 0, 5] = NAN
    return batch


@pytest.mark.parametrize("kind", ["query", "key", "value"])
@pytest.mark.parametrize(("backend", "case"), KERNELS, ids=lambda each: str(each))
def test_a_nan_is_seen_by_who_attends_to_it(backend: str, case: AttentionCase, kind: str) -> None:
    batch = poisoned_batch(case, kind)
    wanted = reference_output(case, batch)
    attend(BACKENDS[backend](), case, batch)
    expected = torch.zeros(wanted.shape, dtype=torch.bool)
    rows = sum(case.query_lens) if case.seq_lens == ALIKE[0] else case.query_lens[0]
    if kind == "query":
        expected[case.query_lens[0] - 1, 0] = True
    elif kind == "key":
        expected[:rows, :3] = True
    else:
        expected[:rows, :3, 5] = True
    assert torch.equal(wanted.isnan(), expected), "the definition"
    assert torch.equal(batch.out.isnan(), expected), "a NaN was lost, or made"
    errors = (batch.out.double() - wanted).nan_to_num().abs()
    assert float(errors.max()) < tolerance(case)


@pytest.mark.parametrize("value", [torch.inf, NAN])
def test_queries_beyond_halves_over_an_8_bit_cache(value: float) -> None:
    """They become halves there: what is too large the largest, a NaN a NaN."""
    case = case_of(DECODE, BF16, cache=FP8)
    batch = build_batch(case)
    batch.query[0, 0, 3] = value
    attend(CudaBackend(EmulatedRuntime()), case, batch)
    expected = torch.zeros(batch.out.shape, dtype=torch.bool)
    expected[0, 0] = value != torch.inf
    assert torch.equal(batch.out.isnan(), expected)


@pytest.mark.parametrize("kind", ["query", "row"])
@pytest.mark.parametrize("new", [(1, 1), (20, 5)], ids=["decode", "prefill"])
@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
def test_latent_attention(dtype: torch.dtype, new: tuple[int, int], kind: str) -> None:
    """A row is key and value at once, and the only one of its token."""
    lengths, generator = (150, 20), torch.Generator().manual_seed(1)
    num_blocks = [-(-length // 16) for length in lengths]
    tables = torch.full((2, max(num_blocks)), 2**30, dtype=torch.int32)
    tables[0, : num_blocks[0]] = torch.arange(num_blocks[0])
    tables[1, : num_blocks[1]] = torch.arange(num_blocks[1]) + num_blocks[0]
    rows = torch.randn(sum(num_blocks), 1, 16, 48, generator=generator).to(dtype)
    query = torch.randn(sum(new), 20, 48, generator=generator).to(dtype)
    expected = torch.zeros(sum(new), 20, 32, dtype=torch.bool)
    if kind == "query":
        query[new[0] - 1, 4, 2], expected[new[0] - 1, 4] = NAN, True
    else:
        rows[0, 0, 0, 40], expected[: new[0]] = NAN, True
    starts = torch.tensor([0, *new]).cumsum(0).to(torch.int32)
    slots = KvSlots(torch.full((sum(new),), -1))
    metadata = AttentionMetadata(slots, tables, torch.tensor(lengths, dtype=torch.int32), starts, max(new))
    cache, options = latent_cache(rows, 32, 0), AttentionOptions(48**-0.5)
    out = torch.zeros(sum(new), 20, 32, dtype=dtype)
    wanted = torch.zeros(out.shape, dtype=torch.float64)
    ReferenceBackend(torch.float64).attend(AttentionInputs(query, cache, metadata, wanted, options))
    with_parts(EmulatedRuntime(SMALL_GPU)).attend(AttentionInputs(query, cache, metadata, out, options))
    assert torch.equal(wanted.isnan(), expected), "the definition"
    assert torch.equal(out.isnan(), expected), "a NaN was lost, or made"
