"""How releases of vLLM before 0.29 lay out the pages of compressed attention (DeepSeek V4) in blocks of one pool.

Layers that see everything are one group; the windows of each size (and what makes compressed vectors, which is kept
like a window) are cut into groups of equally many *tuples*: of layers of each page size one. What a block then takes
changed twice, and what a request must find room for once more (``VllmRelease.compressed_layout``).

Sources: vllm/v1/core/kv_cache_utils.py (group_and_unify_kv_cache_specs, _get_kv_cache_groups_uniform_groups,
_approximate_gcd, _get_kv_cache_config_deepseek_v4, _get_kv_cache_config_packed, _max_memory_usage_bytes_from_groups),
read in 0.21.0 to 0.28.0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kvplan.catalog.releases.vllm import CompressedLayout
from kvplan.errors import KvplanError
from kvplan.estimate.vllm.pages import LayerPage, least_padding, page_sizes


@dataclass(frozen=True, slots=True)
class TupleGroup:
    """Layers that share block tables. ``sizes``: how many of its pages are of each size, as they lie in a block."""

    page: LayerPage
    num_layers: int
    sizes: Counter[int]

    @property
    def num_bytes(self) -> int:
        return sum(size * count for size, count in self.sizes.items())


@dataclass(frozen=True, slots=True)
class TupleLayout:
    """``admitted_bytes``: for each block that a request needs, what the check whether one fits asks for."""

    groups: tuple[TupleGroup, ...]
    bytes_per_block: int
    admitted_bytes: int


def tuple_layout(pages: Sequence[LayerPage], layout: CompressedLayout) -> TupleLayout:
    """The groups, and the bytes of one block. KvplanError for pages that the release stops at."""
    whole = [page for page in pages if page.kind == "full"]
    windows: dict[tuple[int, int | None], list[LayerPage]] = {}
    for page in pages:
        if page.kind != "full":
            windows.setdefault((page.block_size, page.window_tokens), []).append(page)
    sizes = sorted({page.page_bytes for page in whole})
    padded = [_padded(found, sizes, layout) for found in windows.values()]
    counts = [_commonest(whole), *map(_commonest, padded)]
    num_tuples = least_padding(counts, counts[0])
    groups = [TupleGroup(whole[0], len(whole), page_sizes(whole))]
    for found in padded:
        groups.extend(_cut(found, num_tuples))
    most = max(max(group.sizes.values()) for group in groups)
    admitted = most * sum(sizes)
    return TupleLayout(tuple(groups), _bytes_per_block(groups, admitted, layout), admitted)


def _commonest(found: Sequence[LayerPage]) -> int:
    return max(page_sizes(found).values())


def _padded(found: Sequence[LayerPage], sizes: Sequence[int], layout: CompressedLayout) -> list[LayerPage]:
    """Windows with pages as large as the next of those that see everything; as they are where pages are packed."""
    if layout == "packed":
        return list(found)
    largest = max(page.page_bytes for page in found)
    if not sizes or largest > sizes[-1]:
        raise KvplanError(
            f"This release of vLLM stops at pages of {largest:,} bytes beside none as large that see everything.",
            hint="use fewer pipeline stages, or a later release: vllm@0.33",
        )
    fitting = {page.page_bytes: min(size for size in sizes if size >= page.page_bytes) for page in found}
    return [_of_size(page, fitting[page.page_bytes]) for page in found]


def _of_size(page: LayerPage, num_bytes: int) -> LayerPage:
    return LayerPage(page.kind, page.block_size, num_bytes, page.window_tokens)


def _cut(found: Sequence[LayerPage], num_tuples: int) -> list[TupleGroup]:
    """Groups of about ``num_tuples`` layers of each page size: every n-th tuple is in the same group."""
    sizes = page_sizes(found)
    each = max(sizes.values())
    num_groups = -(-each // num_tuples)
    groups = []
    for index in range(num_groups):
        tuples = len(range(index, each, num_groups))
        groups.append(TupleGroup(found[0], tuples * len(sizes), Counter(dict.fromkeys(sizes, tuples))))
    return groups


def _bytes_per_block(groups: Sequence[TupleGroup], whole_tuples: int, layout: CompressedLayout) -> int:
    if layout == "tuples":
        return whole_tuples
    if layout == "packed":
        return max(group.num_bytes for group in groups)
    slots: Counter[int] = Counter()
    for group in groups:
        slots |= group.sizes  # the larger of both counts
    return sum(size * count for size, count in slots.items())
