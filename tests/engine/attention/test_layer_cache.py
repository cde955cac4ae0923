"""A layer's place in the pool: what is refused, and values that lie in other blocks than the keys."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from paged_cases import LAYER, Case, Shape, attend, make_case

from kvplan_engine.attention.backend import AttentionBackend, AttentionInputs, AttentionOptions, KvSlots
from kvplan_engine.attention.cpu import CpuBackend
from kvplan_engine.attention.cuda import CudaBackend
from kvplan_engine.attention.layer_cache import LayerCache, TablePlace, uniform_cache
from kvplan_engine.attention.reference import ReferenceBackend
from kvplan_engine.kernels.cpu.library import load_kernels
from kvplan_engine.kernels.cuda.launching.emulation import EmulatedRuntime

LENGTHS = [(1, 200), (1, 17), (5, 40), (30, 30), (1, 1)]


@pytest.fixture(params=["cpu", "reference", "cuda"])
def backend(request: pytest.FixtureRequest) -> AttentionBackend:
    if request.param == "cpu":
        return CpuBackend(load_kernels())
    return ReferenceBackend() if request.param == "reference" else CudaBackend(EmulatedRuntime())


def test_what_is_no_layer_of_a_pool_is_refused() -> None:
    pool = torch.zeros(4, 3, 2, 2, 16, 8)
    with pytest.raises(IndexError, match="layer 3 of a pool of 3 layers"):
        uniform_cache(pool, 3)
    with pytest.raises(ValueError, match="is not contiguous"):
        uniform_cache(pool.transpose(3, 4), 0)
    with pytest.raises(ValueError, match="contiguous pages"):
        LayerCache(pool[:, 0, 0].transpose(1, 2), pool[:, 0, 1], 0)
    with pytest.raises(ValueError, match="of two pools"):
        LayerCache(pool[:, 0, 0], pool[1:, 0, 1], 0)


def values_apart(case: Case, block_of_value: torch.Tensor) -> Case:
    """The same case with every value page moved to another block."""
    kv = torch.full_like(case.kv, float("nan"))
    kv[:, :, 0] = case.kv[:, :, 0]
    kv[block_of_value, :, 1] = case.kv[:, :, 1]
    return replace(case, kv=kv)


@pytest.mark.parametrize("block_size", [16, 8])
@pytest.mark.parametrize("window", [None, 20])
def test_values_in_other_blocks_than_the_keys(backend: AttentionBackend, block_size: int, window: int | None) -> None:
    dtype = torch.bfloat16 if backend.name == "cuda" else torch.float32
    case = make_case(Shape(head_size=64, block_size=block_size, window=window), LENGTHS, dtype)
    expected = attend(ReferenceBackend(), case)
    num_blocks = case.kv.shape[0]
    moved = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(5))
    apart = values_apart(case, moved)
    tables = case.metadata.block_tables.contiguous()
    if backend.name == "cuda":  # reads whole tiles, and leaves out what a window does not see
        tables = torch.where(tables < num_blocks, tables, 0)
        apart.kv.nan_to_num_(0.0)
    value_tables = torch.where(tables < num_blocks, moved[tables.clamp(max=num_blocks - 1).long()].int(), tables)
    metadata = replace(case.metadata, block_tables=tables, value_tables=value_tables)
    out = torch.full(case.query.shape, 7.0, dtype=dtype)
    options = AttentionOptions(64**-0.5, window)
    cache = replace(uniform_cache(apart.kv, LAYER), tables=TablePlace(value_slot=1))
    backend.attend(AttentionInputs(case.query, cache, metadata, out, options))
    rows = int(case.metadata.query_starts[-1])
    assert torch.allclose(out[:rows].float(), expected[:rows].float(), atol=2e-2 if dtype is torch.bfloat16 else 1e-5)


def test_keys_and_values_are_written_apart(backend: AttentionBackend) -> None:
    dtype = torch.bfloat16 if backend.name == "cuda" else torch.float32
    key, value = torch.randn(2, 4, 2, 64).to(dtype).unbind()
    kv = torch.zeros(3, 2, 2, 2, 16, 64, dtype=dtype)
    slots = KvSlots(torch.tensor([5, -1, 32, 0]), torch.tensor([20, -1, 3, 47]))
    backend.write_kv(key, value, uniform_cache(kv, 1), slots)
    expected = torch.zeros_like(kv)
    for token in (0, 2, 3):
        at, value_at = int(slots.keys[token]), int(slots.values[token])  # type: ignore[index]
        expected[at // 16, 1, 0, :, at % 16] = key[token]
        expected[value_at // 16, 1, 1, :, value_at % 16] = value[token]
    assert torch.equal(kv, expected)


@pytest.mark.parametrize("softcap", [None, 3.0])
def test_sinks_take_their_share(backend: AttentionBackend, softcap: float | None) -> None:
    """Far below, among and far above the scores."""
    dtype = torch.bfloat16 if backend.name == "cuda" else torch.float32
    case = make_case(Shape(head_size=64, softcap=softcap), LENGTHS, dtype)
    case = replace(case, sinks=torch.tensor([-200.0, 0.5, 2.0, 90.0]))
    rows = int(case.metadata.query_starts[-1])
    out, expected = (attend(each, case)[:rows].float() for each in (backend, ReferenceBackend()))
    assert torch.allclose(out, expected, atol=2e-2 if dtype is torch.bfloat16 else 1e-5)
    assert expected[:, 3].abs().max() < 1e-9 < expected[:, 0].abs().min()
