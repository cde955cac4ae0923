"""SGLang's defaults by the GPU's memory, and what divides them."""

from __future__ import annotations

import pytest

from kvplan.catalog.sglang_defaults import chunked_prefill_tokens, largest_graph_rows
from kvplan.units import GIB


@pytest.mark.parametrize(
    ("gib", "chunk", "one", "four"),
    [(16, 2048, 8, 8), (24, 2048, 24, 80), (40, 4096, 32, 160), (80, 8192, 256, 512), (180, 16384, 512, 512)],
)
def test_larger_gpus_read_more_at_once_and_capture_larger_steps(gib: int, chunk: int, one: int, four: int) -> None:
    assert chunked_prefill_tokens(gib * GIB) == chunk
    assert [largest_graph_rows(gib * GIB, ranks) for ranks in (1, 3, 4, 8)] == [one, one, four, four]
