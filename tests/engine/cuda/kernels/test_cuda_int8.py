"""A KV pool of integers with scales under the emulated CUDA kernels: what is written, what is attended to."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from covering import covering_part
from cuda_cases import SENTINEL

from kvplan_engine.attention.backend import AttentionInputs, AttentionMetadata, AttentionOptions, KvSlots, Rotation
from kvplan_engine.attention.cuda import CudaBackend
from kvplan_engine.attention.layer_cache import LayerCache
from kvplan_engine.attention.reference import ReferenceBackend
from kvplan_engine.kernels.cuda.launching.emulation import EmulatedRuntime
from kvplan_engine.kernels.cuda.launching.variants import CudaKernelError


@pytest.fixture(scope="module")
def backend() -> CudaBackend:
    return CudaBackend(EmulatedRuntime())


def empty_cache(num_blocks: int, heads: int, block_size: int, key_size: int, value_size: int) -> LayerCache:
    """A pool of two layers whose second is the cache's; every byte 77."""
    page_bytes = [heads * block_size * (size + 4) for size in (key_size, value_size)]
    blocks = torch.full((num_blocks, 2 * sum(page_bytes)), 77, dtype=torch.uint8)
    views, at = [], sum(page_bytes)
    for size, num_bytes in zip((key_size, value_size), page_bytes, strict=True):
        codes = blocks[:, at : at + heads * block_size * size].view(torch.int8)
        scales = blocks[:, at + heads * block_size * size : at + num_bytes].view(torch.float32)
        views.append((codes.unflatten(1, (heads, block_size, size)), scales.unflatten(1, (heads, block_size))))
        at += num_bytes
    (keys, key_scales), (values, value_scales) = views
    return LayerCache(keys, values, 1, key_scales=key_scales, value_scales=value_scales)


def same_content(one: LayerCache, other: LayerCache) -> bool:
    pairs = ((one.keys, other.keys), (one.values, other.values))
    scales = ((one.key_scales, other.key_scales), (one.value_scales, other.value_scales))
    return all(torch.equal(a, b) for a, b in pairs) and all(
        a is not None and b is not None and torch.equal(a.nan_to_num(nan=-1.0), b.nan_to_num(nan=-1.0))
        for a, b in scales
    )


def awkward_rows(tokens: int, heads: int, size: int, seed: int) -> torch.Tensor:
    rows = torch.randn(tokens, heads, size, generator=torch.Generator().manual_seed(seed))
    rows[0] = 0.0
    rows[1, 0, size - 1] = torch.inf
    rows[2, 0, 3] = torch.nan
    rows[3] *= 1e-30
    rows[4, :, size // 2] = 1e4
    rows[5] = torch.arange(heads * size).view(heads, size) % 127 + 0.5
    rows[5, :, 0] = 127.0
    return rows


@pytest.mark.parametrize(("key_size", "value_size"), [(64, 64), (16, 16), (48, 80)])
def test_rows_are_stored_as_the_reference_stores_them(backend: CudaBackend, key_size: int, value_size: int) -> None:
    caches = [empty_cache(4, 2, 6, key_size, value_size) for _ in range(2)]
    key, value = awkward_rows(9, 2, key_size, 0), awkward_rows(9, 2, value_size, 1)
    slots = KvSlots(torch.tensor([3, 0, 23, -1, 7, 12, 1, 2, 18]))
    for each, cache in zip((backend, ReferenceBackend()), caches, strict=True):
        each.write_kv(key, value, cache, slots)
    assert same_content(*caches)


@pytest.mark.parametrize("rotary", [64, 32, 24, 4])
def test_keys_rotate_before_their_scale_is_found(backend: CudaBackend, rotary: int) -> None:
    caches = [empty_cache(3, 2, 6, 64, 64) for _ in range(2)]
    heads = torch.randn(7, 6, 64, generator=torch.Generator().manual_seed(2))
    value = torch.randn(7, 2, 64, generator=torch.Generator().manual_seed(3))
    angles = torch.outer(torch.arange(20).float(), 0.7 ** torch.arange(rotary // 2).float())
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1)
    results = []
    for each, cache in zip((backend, ReferenceBackend()), caches, strict=True):
        own = heads.clone()
        each.rotate_and_write(Rotation(own, torch.arange(7) * 2 + 1, cos_sin), value, cache, KvSlots(torch.arange(7)))
        results.append(own[:, :4])
    torch.testing.assert_close(*results)
    gap = (caches[0].keys.int() - caches[1].keys.int()).abs()
    assert int(gap.max()) <= 1, "sums in another order may round to the neighbour"
    assert float((gap > 0).float().mean()) < 0.01
    assert torch.equal(caches[0].values, caches[1].values)
    torch.testing.assert_close(caches[0].key_scales, caches[1].key_scales)


OPTIONS = {"": {}, "window": {"window": 20}, "softcap": {"softcap": 2.0}}


@pytest.mark.parametrize(
    ("option", "heads", "value_size"), covering_part(product(OPTIONS, [(4, 4), (6, 2), (16, 1)], (64, 32)))
)
def test_attention_is_the_references(
    backend: CudaBackend, heads: tuple[int, int], option: str, value_size: int
) -> None:
    """Ragged prompts and decoding sequences over scattered blocks."""
    options = OPTIONS[option]
    num_heads, num_kv_heads = heads
    seq_lens, query_lens = (1, 40, 21, 300), (1, 7, 21, 1)
    generator = torch.Generator().manual_seed(4)
    counts = [-(-length // 8) for length in seq_lens]
    cache = empty_cache(sum(counts), num_kv_heads, 8, 64, value_size)
    order = torch.randperm(sum(counts), generator=generator).split(counts)
    tables = torch.full((4, max(counts)), 2**30, dtype=torch.int32)
    for sequence, blocks in enumerate(order):
        tables[sequence, : len(blocks)] = blocks
        positions = torch.arange(seq_lens[sequence])
        rows = [torch.randn(len(positions), num_kv_heads, size, generator=generator) for size in (64, value_size)]
        ReferenceBackend().write_kv(*rows, cache, KvSlots(blocks[positions // 8] * 8 + positions % 8))
    starts = torch.tensor([0, *query_lens]).cumsum(0).to(torch.int32)
    metadata = AttentionMetadata(
        KvSlots(torch.empty(0, dtype=torch.int64)), tables, torch.tensor(seq_lens, dtype=torch.int32), starts, 21
    )
    query = torch.randn(int(starts[-1]), num_heads, 64, generator=generator)
    out = torch.full((len(query), num_heads, value_size), SENTINEL)
    inputs = AttentionInputs(query, cache, metadata, out, AttentionOptions(0.125, **options))
    backend.attend(inputs)
    exact = torch.zeros_like(out, dtype=torch.float64)
    ReferenceBackend(torch.float64).attend(replace(inputs, query=query.double(), out=exact))
    assert float((out.double() - exact).abs().max()) < 4e-6


def test_pages_that_break_vectors_are_refused(backend: CudaBackend) -> None:
    cache = empty_cache(3, 1, 1, 64, 64)
    with pytest.raises(CudaKernelError, match="begin at multiples of 16 bytes, and one of 1 heads and 1 tokens has 68"):
        backend.write_kv(torch.zeros(1, 1, 64), torch.zeros(1, 1, 64), cache, KvSlots(torch.zeros(1).long()))
