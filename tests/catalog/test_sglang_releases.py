"""SGLang's defaults by the GPU's memory, and what divides them."""

from __future__ import annotations

import pytest

from kvplan.catalog.releases.sglang import sglang_release
from kvplan.units import GIB


@pytest.mark.parametrize(
    ("gib", "chunk", "one", "four"),
    [(16, 2048, 8, 8), (24, 2048, 24, 80), (40, 4096, 32, 160), (80, 8192, 256, 512), (180, 16384, 512, 512)],
)
def test_larger_gpus_read_more_at_once_and_capture_larger_steps(gib: int, chunk: int, one: int, four: int) -> None:
    release = sglang_release()
    assert release.chunked_prefill_tokens(gib * GIB) == chunk
    assert [release.largest_graph_rows(gib * GIB, ranks) for ranks in (1, 3, 4, 8)] == [one, one, four, four]


@pytest.mark.parametrize(
    ("version", "gib", "chunk", "one", "four"),
    [
        ("0.4.6", 141, 8192, 256, 256),
        ("0.5.2", 24, 2048, 8, 80),
        ("0.5.2", 80, 8192, 160, 160),
        ("0.5.2", 141, 8192, 256, 256),
        ("0.5.2", 180, 16384, 512, 512),
        ("0.5.3", 24, 2048, 16, 80),
    ],
)
def test_releases_between_captured_smaller_steps(version: str, gib: int, chunk: int, one: int, four: int) -> None:
    release = sglang_release(version)
    assert release.chunked_prefill_tokens(gib * GIB) == chunk
    assert [release.largest_graph_rows(gib * GIB, ranks) for ranks in (1, 4)] == [one, four]


@pytest.mark.parametrize(
    ("gib", "chunk", "one", "four"), [(24, 2048, 8, 80), (40, 8192, 160, 160), (141, 8192, 160, 160)]
)
def test_first_releases_knew_two_sizes_of_gpus(gib: int, chunk: int, one: int, four: int) -> None:
    release = sglang_release("0.4.3")
    assert release.chunked_prefill_tokens(gib * GIB) == chunk
    assert [release.largest_graph_rows(gib * GIB, ranks) for ranks in (1, 4)] == [one, four]


def test_groups_share_a_chunk_but_had_half_of_it_each_before() -> None:
    newest, before, since = sglang_release(), sglang_release("0.4.3"), sglang_release("0.4.5")
    assert (newest.group_prefill_tokens(8192, 8), since.group_prefill_tokens(8192, 8)) == (1024, 1024)
    assert (before.group_prefill_tokens(8192, 8), before.group_prefill_tokens(8192, 1)) == (4096, 8192)
    releases = [sglang_release(version) for version in ("0.4.4", "0.4.5", "latest")]
    assert [release.attends_on_each_gpu for release in releases] == [True, False, False]
