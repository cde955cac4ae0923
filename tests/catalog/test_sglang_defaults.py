"""SGLang's defaults by the GPU's memory, and what divides them."""

from __future__ import annotations

import pytest

from kvplan.catalog.sglang_defaults import (
    attends_on_each_gpu,
    chunked_prefill_tokens,
    group_prefill_tokens,
    largest_graph_rows,
)
from kvplan.units import GIB


@pytest.mark.parametrize(
    ("gib", "chunk", "one", "four"),
    [(16, 2048, 8, 8), (24, 2048, 24, 80), (40, 4096, 32, 160), (80, 8192, 256, 512), (180, 16384, 512, 512)],
)
def test_larger_gpus_read_more_at_once_and_capture_larger_steps(gib: int, chunk: int, one: int, four: int) -> None:
    assert chunked_prefill_tokens(gib * GIB) == chunk
    assert [largest_graph_rows(gib * GIB, ranks) for ranks in (1, 3, 4, 8)] == [one, one, four, four]


@pytest.mark.parametrize(
    ("gib", "chunk", "one", "four"), [(24, 2048, 8, 80), (40, 8192, 160, 160), (141, 8192, 160, 160)]
)
def test_first_releases_knew_two_sizes_of_gpus(gib: int, chunk: int, one: int, four: int) -> None:
    release = (0, 4, 3)
    assert chunked_prefill_tokens(gib * GIB, release) == chunk
    assert [largest_graph_rows(gib * GIB, ranks, release) for ranks in (1, 4)] == [one, four]


def test_groups_share_a_chunk_but_had_half_of_it_each_before() -> None:
    assert (group_prefill_tokens(8192, 8), group_prefill_tokens(8192, 8, (0, 4, 5))) == (1024, 1024)
    assert (group_prefill_tokens(8192, 8, (0, 4, 3)), group_prefill_tokens(8192, 1, (0, 4, 3))) == (4096, 8192)
    assert [attends_on_each_gpu(release) for release in ((0, 4, 4), (0, 4, 5), None)] == [True, False, False]
