"""The prefill kernel of warp groups: its own source, run on the CPU, against float64 over the stored values."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from cuda_cases import AttentionCase, attend, build_batch, largest_error, options_of, tolerance
from kernel_matrix import LLAMA, properties_of
from test_cuda_prefill import LENGTHS, SHUFFLED, cut_case, prefill_case

from kvplan_engine.attention import cuda_plan
from kvplan_engine.attention.backend import AttentionInputs
from kvplan_engine.attention.cuda import CudaBackend
from kvplan_engine.attention.layer_cache import TablePlace, uniform_cache
from kvplan_engine.kernels.cuda.attention import prefill_launch
from kvplan_engine.kernels.cuda.launching.emulation import BACKWARD, EMULATED_PROPERTIES, FORWARD, EmulatedRuntime
from kvplan_engine.kernels.cuda.step_memory import StepMemory

F16, BF16, FP8, INT8 = torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int8
KERNEL = "attention/prefill/prefill_wgmma.cu"
# Rings that go around: six tiles of KV, of which the first rows see none of the last.
SEVERAL_TILES = ((700, 130), *LENGTHS)


def wgmma_case(head_size: int, block_size: int, heads: int, kv_heads: int, **options) -> AttentionCase:
    seq_lens, query_lens = zip(*SEVERAL_TILES, strict=True)
    return replace(
        prefill_case(head_size, block_size, heads, kv_heads, **options), seq_lens=seq_lens, query_lens=query_lens
    )


LLAMAS = wgmma_case(128, 16, 4, 1, scalar=BF16)
SMALL = wgmma_case(64, 256, 3, 1, scalar=F16, window=150, sinks=True)  # a page has several tiles of KV

FLOAT8S = wgmma_case(128, 16, 4, 1, scalar=BF16, cache=FP8)
VARIANTS = (
    wgmma_case(128, 16, 2, 1, scalar=BF16, window=140, softcap=3.0, sinks=True),
    wgmma_case(64, 16, 6, 2, scalar=F16, slopes=True),
    wgmma_case(64, 32, 3, 1, scalar=BF16, slopes=True, softcap=3.0),
    wgmma_case(128, 256, 2, 1, scalar=F16, cache=FP8, window=150),
    wgmma_case(64, 16, 3, 1, scalar=BF16, cache=FP8, window=20, softcap=3.0, sinks=True),
)


class CountingRuntime(EmulatedRuntime):
    """The emulation, and which sources it was asked for."""

    def __init__(self, order: int = FORWARD) -> None:
        super().__init__(order=order)
        self.sources: set[str] = set()

    def kernel(self, variant):
        self.sources.add(variant.source)
        return super().kernel(variant)


def answer(case: AttentionCase, order: int = FORWARD) -> torch.Tensor:
    batch, runtime = build_batch(case), CountingRuntime(order)
    attend(CudaBackend(runtime, wgmma=True), case, batch)
    assert KERNEL in runtime.sources
    assert largest_error(case, batch) < tolerance(case)
    return batch.out


def answer_apart(case: AttentionCase, order: int = FORWARD) -> None:
    """The same with values in other blocks than the keys; blocks before a window are gone, entries lead nowhere."""
    batch, runtime = build_batch(case), CountingRuntime(order)
    num_blocks, tables = batch.kv.shape[0], batch.metadata.block_tables
    moved = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(5)).int()
    apart = batch.kv.clone()
    apart[moved, :, 1] = batch.kv[:, :, 1]
    given = tables.clone()
    for sequence, (length, new) in enumerate(zip(case.seq_lens, case.query_lens, strict=True)):
        given[sequence, : max(0, length - new + 1 - (case.window or length)) // case.block_size] = 2**30
    value_tables = torch.where(given < num_blocks, moved[given.clamp(max=num_blocks - 1).long()], given)
    metadata = replace(batch.metadata, block_tables=given, value_tables=value_tables)
    cache = replace(uniform_cache(apart, case.layer), tables=TablePlace(value_slot=1))
    inputs = AttentionInputs(batch.query, cache, metadata, batch.out, options_of(case, batch))
    CudaBackend(runtime, wgmma=True).attend(inputs)
    assert KERNEL in runtime.sources
    assert largest_error(case, batch) < tolerance(case)


@pytest.mark.parametrize("case", [LLAMAS, FLOAT8S], ids=str)
def test_prefill_matches_the_reference_in_any_order_of_threads_and_copies(case: AttentionCase) -> None:
    first = answer(case)
    for order in (BACKWARD, SHUFFLED):
        assert torch.equal(answer(case, order), first)


def test_scales_of_fp8_are_applied_and_queries_beyond_float16_stay_finite() -> None:
    """Products are those of float16, which bfloat16 goes beyond."""
    batch = build_batch(FLOAT8S)
    attend(CudaBackend(EmulatedRuntime(), key_scale=0.5, value_scale=2.0, wgmma=True), FLOAT8S, batch)
    scaled = replace(batch, kv=batch.kv.float() * torch.tensor([0.5, 2.0]).view(2, 1, 1, 1))
    assert largest_error(FLOAT8S, scaled) < 2 * tolerance(FLOAT8S)
    batch.query[::3] *= 2.0**80
    attend(CudaBackend(EmulatedRuntime(), wgmma=True), FLOAT8S, batch)
    assert batch.out.isfinite().all()


@pytest.mark.parametrize("window", [20, 150, None])
def test_small_heads_large_pages_windows_and_sinks_match_the_reference(window: int | None) -> None:
    answer_apart(replace(SMALL, window=window), BACKWARD)


@pytest.mark.parametrize("cache", [None, FP8])
def test_parts_of_tiles_match_the_reference(cache: torch.dtype | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may begin and end within a tile of KV. Whichever block comes last, no bit changes."""
    monkeypatch.setattr(cuda_plan, "MIN_PART", 64)
    runtime = EmulatedRuntime(replace(EMULATED_PROPERTIES, num_multiprocessors=8))
    memory = torch.zeros(2 * 1024**2, dtype=torch.uint8)
    backend = CudaBackend(runtime, wgmma=True, parts=StepMemory(memory))
    case, results = cut_case(128, 16, 4, scalar=BF16, cache=cache), []
    for order in (FORWARD, BACKWARD):
        runtime.order = order
        batch = build_batch(case)
        attend(backend, case, batch)
        assert largest_error(case, batch) < tolerance(case)
        results.append(batch.out)
    assert torch.equal(*results)
    assert (backend._planner.buffers.finished_parts == 0).all()
    assert memory.any(), "nothing was cut"


@pytest.mark.parametrize("case", VARIANTS, ids=str)
def test_softcap_slopes_and_caches_of_fp8_match_the_reference(case: AttentionCase) -> None:
    answer(case, SHUFFLED)


@pytest.mark.parametrize("rows", [63, 64, 65, 127, 128, 129])
def test_tiles_of_rows_end_where_they_should(rows: int) -> None:
    case = replace(SMALL, seq_lens=(rows + 70,), query_lens=(rows,))
    answer_apart(case if rows % 2 else replace(case, cache=FP8), rows % 3)


def test_what_the_kernel_lacks_others_have() -> None:
    """Whoever asks for it gets the kernel of every GPU where device or model have not what it needs."""
    hopper = properties_of((9, 0))
    assert prefill_launch(LLAMA, hopper, wgmma=True).variant.source == KERNEL
    assert prefill_launch(LLAMA, hopper, wgmma=True).variant.only_for == "sm_90a"
    others = [replace(LLAMA, cache=INT8), replace(LLAMA, head_size=80), replace(LLAMA, block_size=8)]
    others += [replace(LLAMA, block_size=48), replace(LLAMA, scalar=torch.float32, cache=torch.float32)]
    for shape in others:
        assert prefill_launch(shape, hopper, wgmma=True) == prefill_launch(shape, hopper)
    for capability in ((8, 0), (8, 9), (10, 0), (12, 0)):
        device = replace(EMULATED_PROPERTIES, capability=capability)
        assert prefill_launch(LLAMA, device, wgmma=True) == prefill_launch(LLAMA, device)
    assert prefill_launch(LLAMA, hopper).variant.source == "attention/prefill/prefill_mma.cu"
