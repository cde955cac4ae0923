"""The compiled attention kernel against its definition, and that against torch's own attention; a NaN stays a NaN."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from kernel_builds import BUILDS, OTHER_BUILDS
from paged_cases import LAYER, PADDING_ROWS, Case, Shape, assert_matches_definition, attend, make_case

from kvplan_engine.attention.backend import AttentionOptions, KvSlots, Rotation
from kvplan_engine.attention.cpu import CpuBackend
from kvplan_engine.attention.layer_cache import uniform_cache
from kvplan_engine.attention.reference import ReferenceBackend
from kvplan_engine.errors import EngineError
from kvplan_engine.kernels.build import NATIVE, BuildVariant, build_library
from kvplan_engine.kernels.cpu.library import CpuKernels, load_kernels

pytestmark = pytest.mark.usefixtures("one_thread")

HEADS = [(2, 2), (6, 2), (8, 2), (7, 1), (16, 2)]  # groups of 1, 3, 4, 7, 8
HEAD_SIZES = [16, 64, 80, 96, 128, 256]
BLOCK_SIZES = [1, 8, 16, 32, 48]


@pytest.fixture(scope="module")
def native() -> CpuBackend:
    return CpuBackend(load_kernels(NATIVE))


@pytest.fixture(scope="module", params=OTHER_BUILDS, ids=lambda variant: variant.name)
def other_build(request: pytest.FixtureRequest) -> CpuBackend:
    variant: BuildVariant = request.param
    kernels = CpuKernels(build_library(variant))
    assert kernels.lanes == variant.lanes
    return CpuBackend(kernels)


def ragged(block_size: int) -> list[tuple[int, int]]:
    """Decode and prefill mixed: length 1, block boundaries and their neighbours, cached prefixes, no new token."""
    return [
        *[(1, 1), (1, block_size), (1, block_size + 1), (1, max(1, block_size - 1)), (1, 150)],
        *[(2 * block_size, 2 * block_size), (5, 5), (19, 61), (0, 7), (3, 70), (1, 65)],
    ]


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("head_size", HEAD_SIZES)
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), HEADS)
def test_matches_definition(
    native: CpuBackend, num_heads: int, num_kv_heads: int, head_size: int, block_size: int
) -> None:
    shape = Shape(num_heads, num_kv_heads, head_size, block_size)
    assert_matches_definition(native, make_case(shape, ragged(block_size)))


@pytest.mark.parametrize("head_size", [64, 80, 128, 256])
@pytest.mark.parametrize("block_size", [1, 16, 48])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), HEADS)
def test_bfloat16_matches_definition(
    native: CpuBackend, num_heads: int, num_kv_heads: int, head_size: int, block_size: int
) -> None:
    shape = Shape(num_heads, num_kv_heads, head_size, block_size)
    assert_matches_definition(native, make_case(shape, ragged(block_size), torch.bfloat16))


FLOAT, HALF = torch.float32, torch.bfloat16
OTHERS = [
    *((Shape(6, 2), FLOAT, HALF), (Shape(6, 2), HALF, FLOAT), (Shape(8, 2, softcap=30.0), FLOAT, None)),
    *((Shape(6, 2, size), dtype, None) for size in (1, 3, 8, 13, 24, 40, 72, 100) for dtype in (FLOAT, HALF)),
    *((Shape(2 * group_size, 2, 32), FLOAT, None) for group_size in (2, 5, 6, 9, 10, 11, 12, 32, 71)),
]
"""A cache of another dtype, a softcap without a window, odd head sizes, every size of a group."""


@pytest.mark.parametrize(("shape", "dtype", "kv_dtype"), OTHERS, ids=str)
def test_other_shapes(native: CpuBackend, shape: Shape, dtype: torch.dtype, kv_dtype: torch.dtype | None) -> None:
    assert_matches_definition(native, make_case(shape, ragged(16), dtype, kv_dtype))


@pytest.mark.parametrize("window", [1, 2, 16, 17, 64, 1000])
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_window_and_softcap(native: CpuBackend, window: int, softcap: float | None) -> None:
    shape = Shape(6, 2, window=window, softcap=softcap)
    assert_matches_definition(native, make_case(shape, [*ragged(16), (70, 200)]))


@pytest.mark.parametrize("window", [1, 16, 17, 64])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(6, 2), (16, 2)])
def test_window_in_bfloat16(native: CpuBackend, num_heads: int, num_kv_heads: int, window: int) -> None:
    """Tiles read the cache from the beginning of a block's unit of 16 tokens on, where a window need not begin."""
    shape = Shape(num_heads, num_kv_heads, window=window)
    assert_matches_definition(native, make_case(shape, [*ragged(16), (70, 200)], torch.bfloat16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (17, None), (None, 5.0)])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(6, 2), (7, 1), (4, 4)])
def test_slopes(
    native: CpuBackend,
    num_heads: int,
    num_kv_heads: int,
    window: int | None,
    softcap: float | None,
    dtype: torch.dtype,
) -> None:
    """ALiBi: few queries and many, sequences that share a prefix, parts of long ones that are merged."""
    shape = Shape(num_heads, num_kv_heads, window=window, softcap=softcap)
    case = make_case(shape, [*ragged(16), (70, 200), (1, 900)], dtype)
    slopes = torch.linspace(-0.3, 0.5, num_heads)
    assert_matches_definition(native, replace(case, slopes=slopes))


@pytest.mark.parametrize("num_threads", [2, 3])
@pytest.mark.parametrize("lengths", [[(1, 3000)], [(1, 2500), (1, 3), (1, 700)], [(4, 1500)], [(60, 1200), (1, 5)]])
@pytest.mark.parametrize("window", [None, 400])
def test_long_sequences_are_split_and_merged(
    native: CpuBackend, lengths: list[tuple[int, int]], window: int | None, num_threads: int
) -> None:
    case = make_case(Shape(6, 2, 32, window=window), lengths)
    torch.set_num_threads(num_threads)
    assert_matches_definition(native, case)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [*HEADS, (9, 9)])
def test_threads_share_a_ragged_batch(
    native: CpuBackend, num_heads: int, num_kv_heads: int, dtype: torch.dtype
) -> None:
    """More sequences than items that any one thread would take; each item is computed alike whoever takes it."""
    case = make_case(Shape(num_heads, num_kv_heads), ragged(16) * 4, dtype)
    assert_matches_definition(native, case)
    torch.set_num_threads(3)
    assert_matches_definition(native, case)


def test_scores_of_any_size_stay_finite(native: CpuBackend) -> None:
    case = make_case(Shape(6, 2), ragged(16))
    case.query.mul_(300.0)
    assert_matches_definition(native, case)


def test_same_result_whatever_the_blocks(native: CpuBackend) -> None:
    """One row reads the same numbers in the same order wherever its blocks lie."""
    lengths = [(1, 200), (30, 77)]
    first, second = (make_case(Shape(6, 2), lengths, seed=seed) for seed in (1, 2))
    for sequence, (_, kv_len) in enumerate(lengths):
        blocks = -(-kv_len // 16)
        sources = first.metadata.block_tables[sequence, :blocks].long()
        second.kv[second.metadata.block_tables[sequence, :blocks].long()] = first.kv[sources]
    second.query.copy_(first.query)
    assert torch.equal(attend(native, first), attend(native, second))


@pytest.mark.parametrize("head_size", [16, 72, 80, 128])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [*HEADS, (5, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_other_lane_counts(
    other_build: CpuBackend, num_heads: int, num_kv_heads: int, head_size: int, dtype: torch.dtype
) -> None:
    shape = Shape(num_heads, num_kv_heads, head_size, window=90, softcap=20.0)
    assert_matches_definition(other_build, make_case(shape, ragged(16), dtype))
    assert_matches_definition(other_build, make_case(replace(shape, window=None, softcap=None), ragged(16), dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("head_size", [64, 20])
def test_write_kv(native: CpuBackend, dtype: torch.dtype, kv_dtype: torch.dtype, head_size: int) -> None:
    """Tokens land in their slots, rounded as torch rounds, and nothing else changes."""
    generator = torch.Generator().manual_seed(3)
    kv = torch.zeros(6, 3, 2, 3, 4, head_size, dtype=kv_dtype)
    slots = torch.randperm(24, generator=generator)[:11].contiguous()
    slots[[2, 5]] = -1
    fused = torch.randn(11, 9, head_size, generator=generator).to(dtype)
    native.write_kv(fused[:, 3:6], fused[:, 6:9], uniform_cache(kv, LAYER), KvSlots(slots))
    expected = torch.zeros_like(kv)
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            expected[slot // 4, LAYER, 0, :, slot % 4] = fused[token, 3:6].to(kv_dtype)
            expected[slot // 4, LAYER, 1, :, slot % 4] = fused[token, 6:9].to(kv_dtype)
    assert torch.equal(kv, expected)


def test_slot_beyond_the_pool_is_refused(native: CpuBackend) -> None:
    kv = torch.zeros(2, 1, 2, 1, 4, 8)
    rows = torch.ones(2, 1, 8)
    with pytest.raises(IndexError, match="slot 8 lies outside the pool of 2 blocks of 4"):
        native.write_kv(rows, rows, uniform_cache(kv, 0), KvSlots(torch.tensor([0, 8])))
    assert not kv.any()


def test_block_beyond_the_pool_is_refused(native: CpuBackend) -> None:
    case = make_case(Shape(), [(1, 40)])
    case.metadata.block_tables[0, 1] = case.kv.shape[0]
    with pytest.raises(IndexError, match="block_tables"):
        attend(native, case)


@pytest.mark.parametrize(("name", "change"), [("seq_lens", 10**6), ("query_starts", 50)])
def test_lengths_beyond_their_tensors_are_refused(native: CpuBackend, name: str, change: int) -> None:
    case = make_case(Shape(), [(1, 40)])
    getattr(case.metadata, name)[-1] = change
    with pytest.raises(IndexError, match=name):
        attend(native, case)


def test_wrong_arguments_are_named(native: CpuBackend) -> None:
    case = make_case(Shape(), [(1, 40)])
    metadata = case.metadata
    inputs = case.inputs(torch.empty(case.query.shape))
    with pytest.raises(ValueError, match=r"out is torch\.bfloat16"):
        native.attend(replace(inputs, out=inputs.out.bfloat16()))
    with pytest.raises(ValueError, match=r"seq_lens is torch\.int64"):
        native.attend(replace(inputs, metadata=replace(metadata, seq_lens=metadata.seq_lens.long())))
    with pytest.raises(ValueError, match="contiguous last dimension"):
        native.attend(replace(inputs, query=case.query.transpose(0, 2)))
    with pytest.raises(ValueError, match=r"got torch\.float64 and torch\.float32"):
        native.attend(replace(inputs, query=case.query.double(), out=inputs.out.double()))
    with pytest.raises(ValueError, match="window"):
        AttentionOptions(1.0, window=0)


def test_an_option_that_a_backend_lacks_is_refused_by_name(native: CpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuBackend, "options", frozenset({"window"}))
    case = make_case(Shape(), [(1, 40)])
    with pytest.raises(EngineError, match="the cpu attention backend has no attention sinks"):
        attend(native, replace(case, sinks=torch.zeros(4)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rotate_and_write_is_the_reference(native: CpuBackend, dtype: torch.dtype) -> None:
    """Queries rotate in place; keys reach the pool rotated, values as they are."""
    heads = torch.randn(5, 7, 16, generator=torch.Generator().manual_seed(6)).to(dtype)
    angles = torch.rand(9, 8, generator=torch.Generator().manual_seed(7))
    cos_sin, positions = torch.cat([angles.cos(), angles.sin()], dim=1), torch.tensor([3, 0, 8, 1, 1])
    slots = torch.tensor([4, -1, 0, 7, 2])
    results = []
    for backend in (native, ReferenceBackend()):
        own, kv = heads.clone(), torch.zeros(2, 3, 2, 2, 4, 16, dtype=dtype)
        backend.rotate_and_write(
            Rotation(own[:, :5], positions, cos_sin), own[:, 5:], uniform_cache(kv, LAYER), KvSlots(slots)
        )
        results.append((own[:, :3], own[:, 5:], kv))
    for ours, reference in zip(*results, strict=True):
        torch.testing.assert_close(ours, reference)
    assert torch.equal(results[0][1], heads[:, 5:])
    assert not torch.equal(results[0][0], heads[:, :3])


LENGTHS = [(1, 900), (70, 300), (1, 3), (1, 40)]
"""New tokens and all of them: decode in parts, a prompt behind others, a single tile."""


@pytest.fixture(scope="module", params=BUILDS, ids=lambda variant: variant.name)
def every_build(request: pytest.FixtureRequest) -> CpuKernels:
    return load_kernels() if request.param is NATIVE else CpuKernels(build_library(request.param))


def poison(case: Case, sequence: int, kind: str, tokens: range) -> torch.Tensor:
    """NaN in the last query of a sequence, or in keys or values of its ``tokens``, in the first KV head.

    Returns which outputs of its rows are to be NaN.
    """
    starts, expected = case.metadata.query_starts, torch.zeros(case.query.shape, dtype=torch.bool)
    first, last = int(starts[sequence]), int(starts[sequence + 1])
    if kind == "query":
        case.query[last - 1, 0, 3] = torch.nan
        expected[last - 1, 0] = True
        return expected
    for token in tokens:
        block = int(case.metadata.block_tables[sequence, token // case.shape.block_size])
        case.kv[block, LAYER, ("key", "value").index(kind), 0, token % case.shape.block_size, 5] = torch.nan
    heads = case.shape.num_heads // case.shape.num_kv_heads
    expected[first:last, :heads, 5 if kind == "value" else slice(None)] = True
    return expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sequence", range(len(LENGTHS)))
@pytest.mark.parametrize("kind", ["query", "key", "value"])
def test_a_nan_is_seen_by_who_attends_to_it(
    every_build: CpuKernels, kind: str, sequence: int, dtype: torch.dtype
) -> None:
    """All tokens that a query sees, so that whole parts of a sequence have no largest score."""
    case = make_case(Shape(6, 2, 64), LENGTHS, dtype)
    query_len, length = LENGTHS[sequence]
    expected = poison(case, sequence, kind, range(length - query_len))
    expected = poison(case, sequence, kind, range(1)) if query_len == length else expected
    torch.set_num_threads(3)
    result = attend(CpuBackend(every_build), case)[:-PADDING_ROWS]
    assert torch.equal(result.isnan(), expected[:-PADDING_ROWS]), "a NaN was lost, or made"


@pytest.mark.parametrize("first", [0, 300, 450])
def test_a_part_of_nothing_but_nan(every_build: CpuKernels, first: int) -> None:
    """A part of a sequence whose scores are all NaN has no largest one, and is merged all the same."""
    case = make_case(Shape(4, 1, 64), [(1, 900)])
    expected = poison(case, 0, "key", range(first, 900 if first else 600))
    torch.set_num_threads(3)
    result = attend(CpuBackend(every_build), case)[:-PADDING_ROWS]
    assert torch.equal(result.isnan(), expected[:-PADDING_ROWS])
    assert torch.equal(attend(ReferenceBackend(), case)[:-PADDING_ROWS].isnan(), expected[:-PADDING_ROWS])


def contiguous(case: Case, sequence: int, index: int) -> torch.Tensor:
    """One sequence's keys (index 0) or values (1) as [num_heads, kv_len, d], read token by token."""
    shape = case.shape
    kv_len = int(case.metadata.seq_lens[sequence])
    rows = []
    for position in range(kv_len):
        block = int(case.metadata.block_tables[sequence, position // shape.block_size])
        rows.append(case.kv[block, LAYER, index, :, position % shape.block_size])
    return torch.stack(rows, dim=1).repeat_interleave(shape.num_heads // shape.num_kv_heads, dim=0)


def visible(query_len: int, kv_len: int, window: int | None) -> torch.Tensor:
    """The mask spelled out position by position."""
    mask = torch.zeros(query_len, kv_len, dtype=torch.bool)
    for i in range(query_len):
        position = kv_len - query_len + i
        for key in range(kv_len):
            mask[i, key] = key <= position and (window is None or position - key < window)
    return mask


@pytest.mark.parametrize("window", [None, 5, 100])
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_against_torch(block_size: int, window: int | None) -> None:
    shape = Shape(6, 2, 16, block_size)
    lengths = [(1, 1), (7, 7), (1, 30), (4, 19)]
    case = make_case(shape, lengths)
    result = attend(ReferenceBackend(), Case(Shape(6, 2, 16, block_size, window), case.kv, case.query, case.metadata))
    start = 0
    for sequence, (query_len, kv_len) in enumerate(lengths):
        query = case.query[start : start + query_len].transpose(0, 1)
        expected = torch.nn.functional.scaled_dot_product_attention(
            query,
            contiguous(case, sequence, 0),
            contiguous(case, sequence, 1),
            attn_mask=visible(query_len, kv_len, window),
        )
        torch.testing.assert_close(result[start : start + query_len], expected.transpose(0, 1), rtol=1e-5, atol=1e-6)
        start += query_len


def test_softcap_bounds_the_scores() -> None:
    """With a tiny cap all scores are nearly equal: the result is the mean of the values."""
    case = make_case(Shape(2, 2, 8, softcap=1e-6), [(1, 10)])
    result = attend(ReferenceBackend(), case)[0]
    torch.testing.assert_close(result, contiguous(case, 0, 1).mean(dim=1), rtol=1e-4, atol=1e-5)


def test_a_sink_takes_weight_and_has_no_value() -> None:
    """With a sink of logit s the result shrinks by sigmoid(logsumexp(scores) - s): Xiao et al., 2023."""
    case = make_case(Shape(4, 2, 8), [(3, 10)])
    sinks = torch.tensor([0.0, 3.0, -2.0, float("-inf")])
    plain, with_sinks = attend(ReferenceBackend(), case), attend(ReferenceBackend(), replace(case, sinks=sinks))
    scores = case.query[:3].transpose(0, 1) @ contiguous(case, 0, 0).transpose(1, 2) * 8**-0.5
    totals = scores.masked_fill(~visible(3, 10, None), float("-inf")).logsumexp(-1)
    share = torch.sigmoid(totals - sinks[:, None]).transpose(0, 1)
    torch.testing.assert_close(with_sinks[:3], plain[:3] * share[:, :, None], rtol=1e-5, atol=1e-6)


def test_written_tokens_are_what_is_attended_to() -> None:
    """write_kv and attend agree about where a token lies; a slot of -1 is written nowhere."""
    backend = ReferenceBackend()
    case = make_case(Shape(4, 2, 8, 4), [(6, 6)])
    keys, values = torch.randn(6 + PADDING_ROWS, 2, 8), torch.randn(6 + PADDING_ROWS, 2, 8)
    table = case.metadata.block_tables[0]
    slots = torch.full((6 + PADDING_ROWS,), -1)
    slots[:6] = torch.tensor([int(table[p // 4]) * 4 + p % 4 for p in range(6)])
    before = case.kv.isnan().sum()
    backend.write_kv(keys, values, uniform_cache(case.kv, LAYER), KvSlots(slots))
    assert case.kv.isnan().sum() == before
    assert torch.equal(contiguous(case, 0, 0), keys[:6].transpose(0, 1).repeat_interleave(2, dim=0))
    assert torch.equal(contiguous(case, 0, 1), values[:6].transpose(0, 1).repeat_interleave(2, dim=0))
