"""Decoding sequences with a common prefix, whose keys and values are read once for all of them: as defined."""

from __future__ import annotations

from ctypes import byref
from dataclasses import replace

import pytest
import torch
from kernel_builds import BUILDS
from paged_cases import Case, Shape, assert_matches_definition, attend, make_case

from kvplan_engine.attention.cpu import CpuBackend
from kvplan_engine.kernels.build import NATIVE, build_library
from kvplan_engine.kernels.cpu.library import CpuKernels, load_kernels

pytestmark = pytest.mark.usefixtures("one_thread")

HEADS = [(2, 2), (6, 2), (8, 2), (10, 1), (9, 3)]
PREFIX = 144  # a multiple of every block size here


@pytest.fixture(scope="module")
def kernels() -> CpuKernels:
    return load_kernels(NATIVE)


@pytest.fixture(scope="module", params=BUILDS, ids=lambda variant: variant.name)
def every_build(request: pytest.FixtureRequest) -> CpuKernels:
    return load_kernels() if request.param is NATIVE else CpuKernels(build_library(request.param))


def with_shared_blocks(case: Case, members: list[int], num_tokens: int) -> Case:
    """The first ``num_tokens`` of all ``members`` lie in the first one's blocks."""
    tables = case.metadata.block_tables.clone()
    num_blocks = num_tokens // case.shape.block_size
    tables[members, :num_blocks] = tables[members[0], :num_blocks]
    return replace(case, metadata=replace(case.metadata, block_tables=tables))


def tokens_read_once(kernels: CpuKernels, case: Case) -> int:
    out = torch.empty(case.query.shape, dtype=case.query.dtype)
    args = CpuBackend(kernels).attention_args(case.inputs(out, scale=1.0))
    return int(kernels.tokens_read_once(byref(args)))


def two_groups(shape: Shape, dtype: torch.dtype = torch.float32, kv_dtype: torch.dtype | None = None) -> Case:
    """Seven sequences behind one prefix and six behind another, between others: prefills, short and lone ones."""
    lengths = [(1, PREFIX + 1), (1, 300), (40, 40), (1, PREFIX + 7), (1, 5), (3, 200), (1, 200), (1, 400)]
    lengths += [(1, PREFIX + 2 + 9 * index) for index in range(9)] + [(0, 150), (30, PREFIX + 30)]
    case = make_case(shape, lengths, dtype, kv_dtype)
    case = with_shared_blocks(case, [0, 3, 6, 8, 9, 10, 11], PREFIX)
    return with_shared_blocks(case, [1, 12, 13, 14, 15, 16, 18], PREFIX)


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("block_size", [1, 16, 48])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), HEADS)
def test_matches_definition(
    kernels: CpuKernels, num_heads: int, num_kv_heads: int, block_size: int, num_threads: int
) -> None:
    case = two_groups(Shape(num_heads, num_kv_heads, 64, block_size))
    assert tokens_read_once(kernels, case) == (6 + 5) * PREFIX, "the sequence that is no decode counts among members"
    torch.set_num_threads(num_threads)
    assert_matches_definition(CpuBackend(kernels), case)


@pytest.mark.parametrize("head_size", [13, 80, 256])
@pytest.mark.parametrize(
    ("dtype", "kv_dtype"),
    [(torch.bfloat16, torch.bfloat16), (torch.float32, torch.bfloat16), (torch.bfloat16, torch.float8_e4m3fn)],
    ids=str,
)
def test_other_types_head_sizes_and_builds(
    every_build: CpuKernels, head_size: int, dtype: torch.dtype, kv_dtype: torch.dtype
) -> None:
    case = two_groups(Shape(6, 2, head_size, softcap=20.0), dtype, kv_dtype)
    assert tokens_read_once(every_build, case) > 0
    torch.set_num_threads(2)
    assert_matches_definition(CpuBackend(every_build), case)


@pytest.mark.parametrize("num_threads", [1, 2, 4])
@pytest.mark.parametrize(("members", "prefix"), [(2, 2048), (5, 800), (70, 160)])
def test_long_prefixes_and_large_groups(kernels: CpuKernels, members: int, prefix: int, num_threads: int) -> None:
    """A prefix in several parts, and groups of more rows than are computed together."""
    lengths = [(1, prefix + 1 + 37 * (index % 9)) for index in range(members)]
    case = with_shared_blocks(make_case(Shape(9, 3, 32), lengths), list(range(members)), prefix)
    assert tokens_read_once(kernels, case) == (members - 1) * prefix
    torch.set_num_threads(num_threads)
    assert_matches_definition(CpuBackend(kernels), case)


def test_what_ends_a_shared_prefix(kernels: CpuKernels) -> None:
    """The first block that differs, the newest token of a member, a window, too few rows or tokens."""
    lengths = [(1, 401)] * 8
    case = with_shared_blocks(make_case(Shape(4, 2), lengths), list(range(8)), 320)
    assert tokens_read_once(kernels, case) == 7 * 320
    whole = with_shared_blocks(make_case(Shape(4, 2), [(1, 400)] * 8), list(range(8)), 400)
    assert tokens_read_once(kernels, whole) == 7 * 384, "the block of the newest token belongs to nobody else"
    assert_matches_definition(CpuBackend(kernels), whole)
    assert tokens_read_once(kernels, replace(case, shape=replace(case.shape, window=350))) == 0
    assert tokens_read_once(kernels, with_shared_blocks(make_case(Shape(4, 2), lengths), [0, 1], 320)) == 0
    assert tokens_read_once(kernels, with_shared_blocks(make_case(Shape(4, 2), lengths), list(range(8)), 112)) == 0
    assert tokens_read_once(kernels, with_shared_blocks(make_case(Shape(12, 1), lengths), list(range(8)), 320)) == 0


def test_a_row_does_not_see_who_else_shares(kernels: CpuKernels) -> None:
    """Adding a member changes no other member's result beyond rounding, nor a lone sequence's at all."""
    lengths = [(1, 350 + index) for index in range(9)]
    case = with_shared_blocks(make_case(Shape(6, 2), lengths), list(range(8)), 320)
    alone = make_case(Shape(6, 2), lengths)
    for sequence in range(8):
        sources = case.metadata.block_tables[sequence, :20].long()
        alone.kv[alone.metadata.block_tables[sequence, :20].long()] = case.kv[sources]
    shared, separate = (attend(CpuBackend(kernels), each) for each in (case, alone))
    torch.testing.assert_close(shared[:9], separate[:9], rtol=1e-5, atol=1e-6)
    assert torch.equal(shared[8], separate[8])
