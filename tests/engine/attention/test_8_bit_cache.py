"""A KV pool in 8 bits, integers with scales or e4m3: written as defined or as torch rounds, attended to as defined."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from kernel_builds import BUILDS
from paged_cases import (
    LAYER,
    PADDING_ROWS,
    Case,
    Shape,
    assert_matches_definition,
    attend,
    make_case,
)

from kvplan_engine.attention.backend import AttentionBackend, KvSlots
from kvplan_engine.attention.checks import quantised
from kvplan_engine.attention.cpu import CpuBackend
from kvplan_engine.attention.layer_cache import LayerCache, uniform_cache
from kvplan_engine.attention.reference import ReferenceBackend
from kvplan_engine.kernels.build import NATIVE, build_library
from kvplan_engine.kernels.cpu.library import CpuKernels, load_kernels

pytestmark = pytest.mark.usefixtures("one_thread")

COMPILED = pytest.mark.parametrize("backend", BUILDS, ids=lambda p: getattr(p, "name", p), indirect=True)


@pytest.fixture(scope="module", params=["reference", *BUILDS], ids=lambda p: getattr(p, "name", p))
def backend(request: pytest.FixtureRequest) -> AttentionBackend:
    if request.param == "reference":
        return ReferenceBackend()
    kernels = load_kernels() if request.param is NATIVE else CpuKernels(build_library(request.param))
    return CpuBackend(kernels)


def cache_of(blocks: torch.Tensor, heads: int, block_size: int, key_size: int, value_size: int) -> LayerCache:
    """Views of ``blocks`` [num_blocks, bytes] uint8: 8 bytes of somebody else's, then keys, then values."""
    views, at = [], 8
    for size in (key_size, value_size):
        codes = blocks[:, at : at + heads * block_size * size].view(torch.int8)
        at += -(-heads * block_size * size // 4) * 4
        scales = blocks[:, at : at + heads * block_size * 4].view(torch.float32)
        at += heads * block_size * 4
        views.append((codes.unflatten(1, (heads, block_size, size)), scales.unflatten(1, (heads, block_size))))
    (keys, key_scales), (values, value_scales) = views
    return LayerCache(keys, values, LAYER, key_scales=key_scales, value_scales=value_scales)


def block_bytes(heads: int, block_size: int, key_size: int, value_size: int) -> int:
    pages = sum(-(-heads * block_size * size // 4) * 4 + heads * block_size * 4 for size in (key_size, value_size))
    return 8 + pages + 4


def rows_to_store(head_size: int) -> torch.Tensor:
    """[T, 2, head_size]: ordinary rows, ties, zeros, one large value, tiny and huge magnitudes, infinities and NaNs."""
    generator = torch.Generator().manual_seed(1)
    spread = [torch.randn(6, 2, head_size, generator=generator) * scale for scale in (1e-30, 1e-3, 1.0, 200.0, 1e30)]
    ties = torch.arange(2 * head_size).float().view(1, 2, head_size) % 127 + 0.5
    ties[..., 0] = 127.0  # a scale of exactly 1
    special = torch.randn(6, 2, head_size, generator=generator)
    special[0] = 0.0
    special[1, 0, head_size - 1] = torch.inf
    special[2, 1, 0] = -torch.inf
    special[3, 0, head_size // 2] = torch.nan
    special[4] *= 1e-44  # subnormal: a scale of a few of the least numbers
    special[5, 1, head_size - 1] = 1e4
    return torch.cat([*spread, ties, -ties, special])


@pytest.mark.parametrize("head_size", [64, 20, 13])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_values_are_stored_as_defined(backend: AttentionBackend, dtype: torch.dtype, head_size: int) -> None:
    rows = rows_to_store(head_size).to(dtype)
    num_tokens, block_size = rows.shape[0], 3
    sizes = (2, block_size, head_size, head_size)
    blocks = torch.full((-(-num_tokens // block_size) + 1, block_bytes(*sizes)), 77, dtype=torch.uint8)
    cache = cache_of(blocks, *sizes)
    slots = torch.arange(num_tokens) + 2
    slots[5] = -1
    backend.write_kv(rows, rows.flip(0), cache, KvSlots(slots))
    for pages, scales, stored in (
        (cache.keys, cache.key_scales, rows),
        (cache.values, cache.value_scales, rows.flip(0)),
    ):
        assert scales is not None
        codes, wanted = quantised(stored)
        flat = pages.transpose(1, 2).flatten(0, 1), scales.transpose(1, 2).flatten(0, 1)
        written = slots[slots >= 0]
        assert torch.equal(flat[0][written], codes[slots >= 0])
        assert torch.equal(flat[1][written].nan_to_num(nan=-1.0), wanted[slots >= 0].nan_to_num(nan=-1.0))
        untouched = torch.full((2, head_size), 77, dtype=torch.int8)
        assert torch.equal(flat[0][7], untouched), "wrote for a token without a slot"
    assert bool((blocks[:, :8] == 77).all() and (blocks[:, -4:] == 77).all()), "wrote outside the pages"


def test_a_value_comes_back_within_half_a_step() -> None:
    rows = torch.randn(50, 3, 64, generator=torch.Generator().manual_seed(2))
    codes, scales = quantised(rows)
    error = (codes.double() * scales.double()[..., None] - rows.double()).abs()
    assert bool((error <= scales.double()[..., None] * 0.5000001).all())
    assert int(codes.abs().amax()) == 127
    assert bool((codes.abs().amax(-1) == 127).all()), "the largest magnitude of a row is a whole number of steps"


def int8_case(
    shape: Shape, lengths: list[tuple[int, int]], dtype: torch.dtype, value_size: int | None = None
) -> tuple[Case, LayerCache]:
    """``make_case`` with the pool quantised, NaN scales wherever attention has no business."""
    case = make_case(shape, lengths, dtype, torch.float32)
    value_size = value_size or shape.head_size
    keys, values = case.kv[:, LAYER, 0], case.kv[:, LAYER, 1, ..., :value_size]
    sizes = (shape.num_kv_heads, shape.block_size, shape.head_size, value_size)
    cache = cache_of(torch.zeros(case.kv.shape[0], block_bytes(*sizes), dtype=torch.uint8), *sizes)
    assert cache.key_scales is not None and cache.value_scales is not None
    for pages, scales, wanted in ((cache.keys, cache.key_scales, keys), (cache.values, cache.value_scales, values)):
        codes, found = quantised(wanted)
        pages.copy_(codes)
        scales.copy_(found)
    return case, cache


LENGTHS = [(1, 1), (1, 17), (1, 150), (19, 61), (0, 7), (40, 70), (3, 70)]


@COMPILED
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(2, 2), (6, 2), (7, 1), (16, 1)])
@pytest.mark.parametrize("head_size", [13, 64, 80])
@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_matches_definition(
    backend: AttentionBackend, block_size: int, head_size: int, num_heads: int, num_kv_heads: int, dtype: torch.dtype
) -> None:
    case, cache = int8_case(Shape(num_heads, num_kv_heads, head_size, block_size), LENGTHS, dtype)
    assert_matches_definition(backend, case, cache)


@COMPILED
@pytest.mark.parametrize("changes", [{"window": 20}, {"softcap": 2.0}, {"window": 33, "softcap": 1.0}], ids=str)
@pytest.mark.parametrize("block_size", [3, 16, 80])
def test_windows_and_softcaps_match_definition(
    backend: AttentionBackend, block_size: int, changes: dict[str, float]
) -> None:
    case, cache = int8_case(replace(Shape(6, 2, 64, block_size), **changes), LENGTHS, torch.float32)
    assert_matches_definition(backend, case, cache)


@COMPILED
@pytest.mark.parametrize("heads", [(6, 2), (3, 3), (8, 1)], ids=str)
@pytest.mark.parametrize("block_size", [1, 16])
def test_shared_prefixes_match_definition(backend: AttentionBackend, block_size: int, heads: tuple[int, int]) -> None:
    """Sequences over the same first blocks are served by one pass over these."""
    lengths = [(1, 192 + 1 + 7 * i) for i in range(8)] + [(20, 41)]
    case, cache = int8_case(Shape(*heads, 64, block_size), lengths, torch.float32)
    tables = case.metadata.block_tables
    tables[1:8, : 192 // block_size] = tables[0, : 192 // block_size]
    assert_matches_definition(backend, case, cache)


@COMPILED
@pytest.mark.parametrize("value_size", [16, 50])
def test_values_of_another_size_match_definition(backend: AttentionBackend, value_size: int) -> None:
    case, cache = int8_case(Shape(6, 2, 64, 16), LENGTHS, torch.float32, value_size)
    assert_matches_definition(backend, case, cache)


@COMPILED
def test_threads_share_one_long_sequence(backend: AttentionBackend) -> None:
    case, cache = int8_case(Shape(6, 2, 64, 16), [(1, 900), (2, 500)], torch.bfloat16)
    torch.set_num_threads(2)
    assert_matches_definition(backend, case, cache)


def test_a_cache_of_integers_wants_scales_in_its_blocks() -> None:
    sizes = (2, 16, 64, 64)
    cache = cache_of(torch.zeros(3, block_bytes(*sizes), dtype=torch.uint8), *sizes)
    assert cache.key_scales is not None
    with pytest.raises(ValueError, match="int8 has scales, others none"):
        replace(cache, key_scales=None)
    with pytest.raises(ValueError, match="within the blocks of the pool"):
        replace(cache, key_scales=cache.key_scales.contiguous())
    plain = torch.zeros(3, 2, 16, 64)
    with pytest.raises(ValueError, match="int8 has scales, others none"):
        LayerCache(plain, plain.clone(), 0, key_scales=cache.key_scales, value_scales=cache.value_scales)


def test_a_lost_value_is_not_hidden(backend: AttentionBackend) -> None:
    """A key that is not a number makes its sequence's output one that is none."""
    case, cache = int8_case(Shape(2, 2, 64, 16), [(1, 20), (1, 9)], torch.float32)
    assert cache.value_scales is not None
    cache.value_scales[int(case.metadata.block_tables[0, 0]), 0, 3] = torch.nan
    result = attend(backend, case, cache=cache)
    assert bool(result[0, 0].isnan().all())
    assert not bool(result[1:-PADDING_ROWS].isnan().any())


FP8 = torch.float8_e4m3fn


def saturated(values: torch.Tensor) -> torch.Tensor:
    """What is stored for ``values``: torch's rounding, but 448 for what is larger."""
    return values.float().clamp(-448.0, 448.0).to(FP8)


def awkward_values(head_size: int) -> torch.Tensor:
    """Every bfloat16, so every tie and every limit; small numbers; numbers beyond the largest. [T, 1, head_size]."""
    generator = torch.Generator().manual_seed(1)
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    ties = torch.arange(-300, 300).float() / 1024  # halves of the steps below 2^-6
    spread = [torch.randn(4000, generator=generator) * scale for scale in (1e-3, 0.02, 1.0, 200.0, 1e4)]
    values = torch.cat([every, ties, *spread])
    return values[: values.numel() // head_size * head_size].view(-1, 1, head_size)


@pytest.mark.parametrize("head_size", [64, 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_values_are_rounded_as_torch_rounds_and_saturate(
    backend: AttentionBackend, dtype: torch.dtype, head_size: int
) -> None:
    values = awkward_values(head_size).to(dtype)
    num_tokens = values.shape[0]
    kv = torch.zeros(-(-num_tokens // 16), 1, 2, 1, 16, head_size, dtype=FP8)
    backend.write_kv(values, -values, uniform_cache(kv, 0), KvSlots(torch.arange(num_tokens)))
    for index, expected in ((0, saturated(values)), (1, saturated(-values))):
        stored = kv[:, 0, index].view(torch.uint8).flatten(0, 2)[:num_tokens]
        wanted = expected.view(torch.uint8)[:, 0]
        is_number = ~expected.float().isnan()[:, 0]
        assert torch.equal(stored[is_number], wanted[is_number])
        assert bool(((stored & 0x7F) == 0x7F).eq(~is_number).all()), "a NaN was lost, or made"


def test_every_byte_is_read_as_torch_reads_it(backend: AttentionBackend) -> None:
    """A sequence of one token attends to nothing else: its output is its value."""
    shape = Shape(num_heads=2, num_kv_heads=2, head_size=256, block_size=4)
    case = make_case(shape, [(1, 1)], kv_dtype=FP8)
    block = int(case.metadata.block_tables[0, 0])
    every_byte = torch.arange(256, dtype=torch.uint8).view(FP8)
    case.kv[block, LAYER, 1, :, 0] = every_byte.expand(2, 256)
    result = attend(backend, case)[0]
    assert torch.equal(result.nan_to_num(nan=1e9), every_byte.float().nan_to_num(nan=1e9).expand(2, 256))


# The reference is the definition: only the compiled kernels are held against it.
@pytest.mark.parametrize("backend", BUILDS, ids=lambda p: getattr(p, "name", p), indirect=True)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(2, 2), (6, 2), (7, 1), (16, 2)])
@pytest.mark.parametrize("head_size", [13, 64, 80, 128])
@pytest.mark.parametrize("block_size", [1, 16])
def test_fp8_matches_definition(
    backend: AttentionBackend, block_size: int, head_size: int, num_heads: int, num_kv_heads: int, dtype: torch.dtype
) -> None:
    lengths = [(1, 1), (1, 17), (1, 150), (19, 61), (0, 7), (40, 70), (3, 70)]
    shape = Shape(num_heads, num_kv_heads, head_size, block_size)
    assert_matches_definition(backend, make_case(shape, lengths, dtype, FP8))
