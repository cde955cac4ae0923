"""Values of another size than keys, and values that are the beginnings of the keys (latent attention): as defined."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from kernel_builds import BUILDS
from paged_cases import PADDING_ROWS, Shape, make_case

from kvplan_engine.attention.backend import (
    AttentionBackend,
    AttentionInputs,
    AttentionMetadata,
    AttentionOptions,
    KvSlots,
)
from kvplan_engine.attention.cpu import CpuBackend
from kvplan_engine.attention.layer_cache import LayerCache, latent_cache
from kvplan_engine.attention.reference import ReferenceBackend
from kvplan_engine.kernels.build import NATIVE, build_library
from kvplan_engine.kernels.cpu.library import CpuKernels, load_kernels

pytestmark = pytest.mark.usefixtures("one_thread")

LENGTHS = [(1, 200), (1, 17), (5, 40), (30, 30), (1, 1), (1, 160), (1, 170)]
SHARED = [0, 5, 6]
"""The sequences whose first 144 tokens lie in the same blocks."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Heads, and sizes of key and value; ``is_latent``: the value is the beginning of the key."""

    num_heads: int
    num_kv_heads: int
    key: int
    value: int
    is_latent: bool = False


LATENT = [
    Sizes(4, 1, 40, 24, True),
    Sizes(16, 1, 576, 512, True),
    Sizes(20, 1, 21, 13, True),
    Sizes(13, 1, 259, 250, True),
]
APART = [Sizes(4, 2, 24, 16), Sizes(6, 2, 17, 21), Sizes(3, 3, 16, 40), Sizes(12, 1, 48, 32), Sizes(22, 2, 260, 270)]


@dataclass(frozen=True, slots=True)
class Case:
    cache: LayerCache
    query: torch.Tensor
    metadata: AttentionMetadata

    def attend(self, backend: AttentionBackend, dtype: torch.dtype | None = None) -> torch.Tensor:
        out = torch.full((*self.query.shape[:2], self.cache.value_size), 7.0, dtype=dtype or self.query.dtype)
        backend.attend(AttentionInputs(self.query, self.cache, self.metadata, out, AttentionOptions(0.2)))
        return out


def case_of(sizes: Sizes, block_size: int, dtype: torch.dtype, kv_dtype: torch.dtype) -> Case:
    """Ragged sequences over a pool that is NaN where no token lies."""
    wide = make_case(Shape(sizes.num_heads, sizes.num_kv_heads, max(sizes.key, sizes.value), block_size), LENGTHS)
    tables = wide.metadata.block_tables.clone()
    tables[SHARED, : 144 // block_size] = tables[SHARED[0], : 144 // block_size]
    keys, values = wide.kv[:, 1].unbind(1)
    size = sizes.num_kv_heads * block_size * (sizes.key + sizes.value)
    pool = torch.empty(keys.shape[0], size + 8, dtype=kv_dtype)  # blocks hold more than this layer
    split = sizes.num_kv_heads * block_size * sizes.key
    cache_keys = pool[:, :split].unflatten(1, (sizes.num_kv_heads, block_size, sizes.key))
    cache_keys.copy_(keys[..., : sizes.key])
    cache = latent_cache(cache_keys, sizes.value, 0)
    if not sizes.is_latent:
        cache_values = pool[:, split:size].unflatten(1, (sizes.num_kv_heads, block_size, sizes.value))
        cache_values.copy_(values[..., : sizes.value])
        cache = LayerCache(cache_keys, cache_values, 0)
    return Case(cache, wide.query[..., : sizes.key].to(dtype), replace(wide.metadata, block_tables=tables))


def assert_as_defined(kernels: CpuKernels, case: Case) -> None:
    rows = case.query.shape[0] - PADDING_ROWS
    exact = case.attend(ReferenceBackend(torch.float64), torch.float64)[:rows]
    result = case.attend(CpuBackend(kernels))[:rows]
    in_float32 = case.attend(ReferenceBackend(), torch.float32)[:rows]
    allowed = 5.0 * float((in_float32.double() - exact).abs().max()) + 2e-7  # sums differ in order
    rounding = exact.abs() * 2.0**-8 if result.dtype is torch.bfloat16 else 0.0
    error = (result.double() - exact).abs()
    assert bool((error <= allowed + rounding).all()), f"worst error {float(error.max()):.2e}, allowed {allowed:.2e}"


@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize("sizes", LATENT + APART, ids=str)
def test_as_defined(sizes: Sizes, block_size: int) -> None:
    assert_as_defined(load_kernels(), case_of(sizes, block_size, torch.float32, torch.float32))


@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("sizes", [*LATENT[1:], APART[1]], ids=str)
def test_as_defined_in_bfloat16(sizes: Sizes, kv_dtype: torch.dtype) -> None:
    assert_as_defined(load_kernels(), case_of(sizes, 16, torch.bfloat16, kv_dtype))


@pytest.mark.parametrize("variant", BUILDS, ids=lambda variant: variant.name)
@pytest.mark.parametrize("sizes", [*LATENT[2:], APART[1]], ids=str)
def test_every_build_is_as_defined(variant: object, sizes: Sizes) -> None:
    kernels = load_kernels() if variant is NATIVE else CpuKernels(build_library(variant))  # type: ignore[arg-type]
    for dtype in (torch.float32, torch.bfloat16):
        assert_as_defined(kernels, case_of(sizes, 3, dtype, dtype))


def test_a_row_does_not_depend_on_its_batch() -> None:
    case = case_of(LATENT[1], 16, torch.float32, torch.float32)
    together = case.attend(CpuBackend(load_kernels()))
    metadata = case.metadata
    first = replace(
        metadata,
        block_tables=metadata.block_tables[3:4],
        seq_lens=metadata.seq_lens[3:4],
        query_starts=torch.tensor([0, 30], dtype=torch.int32),
    )
    start = int(metadata.query_starts[3])
    alone = Case(case.cache, case.query[start : start + 30], first).attend(CpuBackend(load_kernels()))
    assert torch.equal(alone, together[start : start + 30])


@pytest.mark.parametrize("backend", [CpuBackend(load_kernels()), ReferenceBackend()], ids=lambda each: each.name)
@pytest.mark.parametrize("sizes", [Sizes(1, 1, 5, 3, True), Sizes(2, 2, 5, 7)], ids=str)
def test_keys_and_values_are_written(backend: AttentionBackend, sizes: Sizes) -> None:
    heads, tokens = sizes.num_kv_heads, 4
    fused = torch.randn(tokens, heads, sizes.key + sizes.value)
    key, value = fused[..., : sizes.key], fused[..., sizes.key :]
    keys, values = torch.zeros(3, heads, 4, sizes.key), torch.zeros(3, heads, 4, sizes.value)
    cache = latent_cache(keys, sizes.value, 0) if sizes.is_latent else None
    if cache is None:  # one stride of blocks: that of the longer page
        pool = torch.zeros(3, heads * 4 * (sizes.key + sizes.value))
        split = heads * 4 * sizes.key
        keys, values = (part.unflatten(1, (heads, 4, -1)) for part in (pool[:, :split], pool[:, split:]))
        cache = LayerCache(keys, values, 0)
    slots = torch.tensor([5, -1, 11, 0])
    backend.write_kv(key, None if sizes.is_latent else value, cache, KvSlots(slots))
    for token in (0, 2, 3):
        block, offset = divmod(int(slots[token]), 4)
        assert torch.equal(cache.keys[block, :, offset], key[token])
        wanted = key[token, :, : sizes.value] if sizes.is_latent else value[token]
        assert torch.equal(cache.values[block, :, offset], wanted)
    assert int(cache.keys.count_nonzero()) == 3 * heads * sizes.key


def test_what_does_not_fit_is_refused() -> None:
    backend = CpuBackend(load_kernels())
    cache = latent_cache(torch.zeros(3, 1, 4, 5), 3, 7)
    row, slots = torch.zeros(2, 1, 5), KvSlots(torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="layer 7 lacks values apart from its keys"):
        backend.write_kv(row, row[..., :3], cache, slots)
    apart = LayerCache(torch.zeros(3, 1, 4, 5), torch.zeros(3, 1, 4, 5), 7)
    with pytest.raises(ValueError, match="layer 7 has values apart from its keys"):
        backend.write_kv(row, None, apart, slots)
