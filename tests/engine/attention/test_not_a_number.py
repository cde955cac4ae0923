"""A NaN stays a NaN in attention on the CPU, whichever way a step goes, in the rows that see it and nowhere else."""

from __future__ import annotations

import pytest
import torch
from kernel_builds import BUILDS
from paged_cases import LAYER, PADDING_ROWS, Case, Shape, attend, make_case

from kvplan_engine.attention.cpu import CpuBackend
from kvplan_engine.attention.reference import ReferenceBackend
from kvplan_engine.kernels.build import NATIVE, build_library
from kvplan_engine.kernels.cpu.library import CpuKernels, load_kernels

pytestmark = pytest.mark.usefixtures("one_thread")

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
