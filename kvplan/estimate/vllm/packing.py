"""Pages of unequal size side by side in a block (DeepSeek V4, Step 5): a group for each kind, some split to fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import lcm

from kvplan.estimate.vllm.pages import PER_REQUEST, LayerPage, PageKind, least_padding, page_sizes


def packed_groups(pages: Sequence[LayerPage]) -> tuple[list[tuple[LayerPage, int]], int]:
    """The layers of each group, by one of their pages, and the bytes of a block.

    Kinds that see everything stay whole; the widest of them is the block. Windows, states and rings are cut into as
    many groups as it takes to fit into it. But where layers of one kind have pages of several sizes, equally many of
    each, all kinds are cut to about as many layers (vllm/v1/core/kv_cache_planning.py, _get_packed_kv_cache_groups).
    """
    kinds: dict[tuple[PageKind, int | None, int], list[LayerPage]] = {}
    for page in pages:
        kinds.setdefault((page.kind, page.window_tokens, page.block_size), []).append(page)
    repeats = _repeats_per_group(kinds.values())
    recycled = PER_REQUEST if repeats else (*PER_REQUEST, "sliding")
    bytes_per_block = max(
        _widest_bytes(found, len(found) if kind in recycled else _num_groups(found, repeats))
        for (kind, _, _), found in kinds.items()
    )
    groups: list[tuple[LayerPage, int]] = []
    for (kind, _, _), found in kinds.items():
        num_groups = _num_groups(found, repeats)
        if kind in recycled:
            fitting = max(bytes_per_block // found[0].page_bytes, 1)
            num_groups = max(num_groups, _ceil_div(len(found), fitting))
        each, left = divmod(len(found), num_groups)
        groups.extend((found[0], each + (1 if index < left else 0)) for index in range(num_groups))
    stride = lcm(*(page.stride_bytes for page in pages))
    return groups, _ceil_div(bytes_per_block, stride) * stride


def _is_balanced(found: Sequence[LayerPage]) -> bool:
    return len(set(page_sizes(found).values())) == 1


def _repeats_per_group(kinds: Iterable[Sequence[LayerPage]]) -> int | None:
    """Layers of each page size in a group where some kind has several sizes, equally many of each; else None."""
    balanced = [page_sizes(found) for found in kinds if _is_balanced(found)]
    counts = [max(sizes.values()) for sizes in balanced]
    least = max((max(sizes.values()) for sizes in balanced if len(sizes) > 1), default=0)
    return least_padding(counts, least) if least else None


def _num_groups(found: Sequence[LayerPage], repeats: int | None) -> int:
    return _ceil_div(max(page_sizes(found).values()), repeats) if repeats and _is_balanced(found) else 1


def _widest_bytes(found: Sequence[LayerPage], num_groups: int) -> int:
    return sum(_ceil_div(count, num_groups) * size for size, count in page_sizes(found).items())


def _ceil_div(number: int, divisor: int) -> int:
    return -(-number // divisor)
