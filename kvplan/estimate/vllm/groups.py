"""How vLLM cuts a model's caches into groups that share one pool of equal blocks, and what a request takes of it.

Written from the rules of vllm/v1/core/kv_cache_utils.py and vllm/v1/kv_cache_interface.py; tests/estimate compares the
figures with those that vLLM 0.32's own planner gives.

A *page* is one layer's share of a block. Models of one kind of layer are one group. In a hybrid, every page is first
made equally large; then each kind is cut into groups of equally many layers, because a block of the pool is one page
for each layer of a group, whichever group takes it.

    10 full, 52 sliding layers -> 1 full group of 10, 6 sliding groups of 9, 9, 9, 9, 8, 8 (padded to 10 pages each)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import lcm

from kvplan.catalog.releases.vllm import VllmRelease
from kvplan.catalog.spec import CompressedAttention, CrossAttention, LayerSpec, SoftmaxAttention
from kvplan.errors import KvplanError
from kvplan.estimate.cache_entries import (
    KIND_NAMES,
    CacheEntry,
    CacheSettings,
    EntryKind,
    layer_entries,
    rank_kv_heads,
    refuse_scales,
)
from kvplan.estimate.dtypes import element_bytes
from kvplan.estimate.vllm.packing import packed_groups
from kvplan.estimate.vllm.pages import PER_REQUEST, LayerPage, PageKind, compressed_pages, stream_pages, without_streams
from kvplan.estimate.vllm.shared_pages import is_shared, shared_pages
from kvplan.estimate.vllm.tuples import tuple_layout

_PAGE_KINDS: dict[EntryKind, PageKind] = {
    "full": "full",
    "latent": "full",
    "compressed": "full",
    "indexer": "full",
    "sliding": "sliding",
    "chunked": "chunked",
}
"""How vLLM keeps each kind of entry that is made of tokens; states and cross attention have pages of their own."""
_STATES: dict[EntryKind, PageKind] = {
    "conv_state": "state",
    "recurrent_state": "state",
    "ngram_state": "ngram_state",
}
"""The page that each part of a state is in."""
_ALIGNMENT_TOKENS = 16
POOLED_KEYS = 32
"""Index keys of the smallest page that their kernel reads on Hopper and B200 (vllm/utils/deep_gemm.py,
get_paged_mqa_page_sizes)."""
_ROWS_APART = {1: 32}
"""By bytes of an element: latents' rows of which a block beside pooled index keys has a whole number, as FlashInfer on
Blackwell reads them in 8 bits; kernels of Hopper take any (customize_spec in vllm/v1/attention/backends/mla)."""
_RING_STRIDE = 1024
"""Bytes of a row of Step 5's ring, which are counted across blocks (vllm/models/step5/nvidia/csa_tail_ring.py)."""


@dataclass(frozen=True, slots=True)
class PageGroup:
    """Layers that share block tables. ``num_layers`` are real ones; the pool gives every group equally many pages."""

    page: LayerPage
    num_layers: int
    num_bytes: int | None = None
    """Its pages in one block, where the concurrency that is printed weighs groups by it."""


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """A rank's caches as vLLM sees them: groups, and the bytes of one block of the shared pool."""

    groups: tuple[PageGroup, ...]
    bytes_per_block: int
    asked_block_size: int | None = None
    """``--block-size`` where blocks of some groups are others by design (compressed attention)."""
    admitted_bytes: int | None = None
    """What the check whether one request fits asks for a block, where that is more than the block takes."""

    @property
    def bytes_per_admitted_block(self) -> int:
        return self.bytes_per_block if self.admitted_bytes is None else self.admitted_bytes

    @property
    def block_size(self) -> int:
        """Tokens of a block as vLLM prints them: the smallest among the groups."""
        if self.asked_block_size is not None:
            return self.asked_block_size
        sizes = [group.page.block_size for group in self.groups if group.page.kind not in PER_REQUEST]
        return min(sizes, default=1)


@dataclass(frozen=True, slots=True)
class RequestShape:
    """What decides how many blocks one request takes. ``in_flight_tokens``: scheduled but not yet settled."""

    max_model_len: int
    in_flight_tokens: int
    states_per_request: int = 1
    encoder_tokens: int = 0


def blocks_per_request(plan: BlockPlan, shape: RequestShape) -> int:
    """Blocks that one request of ``max_model_len`` tokens can come to hold, over all groups."""
    return sum(_group_blocks(group.page, shape) for group in plan.groups)


def printed_blocks_per_request(plan: BlockPlan, shape: RequestShape) -> int:
    """What the concurrency that is printed divides by: those blocks, or their bytes in blocks of the first group."""
    sizes = [group.num_bytes for group in plan.groups]
    if None in sizes:
        return blocks_per_request(plan, shape)
    total = sum(_group_blocks(group.page, shape) * (group.num_bytes or 0) for group in plan.groups)
    return _ceil_div(total, sizes[0] or 1)


def _group_blocks(page: LayerPage, shape: RequestShape) -> int:
    length, window = shape.max_model_len, page.window_tokens or 0
    if page.kind in ("state", "ngram_state"):
        return shape.states_per_request
    if page.kind == "every_state":  # one for each block of tokens, and one for each draft token
        return _ceil_div(length, page.block_size) + shape.states_per_request - 1
    if page.kind == "ring":
        return 1
    if page.kind == "cross":
        return _ceil_div(shape.encoder_tokens, page.block_size)
    if page.kind == "sliding":
        # One more: the window need not start where a block does.
        return _ceil_div(min(window - 1 + shape.in_flight_tokens, length), page.block_size) + 1
    if page.kind == "chunked":
        return _ceil_div(min(window + shape.in_flight_tokens, length), page.block_size)
    return _ceil_div(length, page.block_size)


def longest_that_fits(plan: BlockPlan, shape: RequestShape, pool_bytes: int) -> int:
    """The largest ``max_model_len``, at most the given one, of which one request fits the pool; 0 when none does."""
    low, high = 0, shape.max_model_len
    block_bytes = plan.bytes_per_admitted_block
    if blocks_per_request(plan, shape) * block_bytes <= pool_bytes:
        return high
    if block_bytes > pool_bytes:
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        needed = blocks_per_request(plan, replace(shape, max_model_len=middle)) * block_bytes
        low, high = (middle, high) if needed <= pool_bytes else (low, middle - 1)
    return low


def plan_blocks(
    layers: Sequence[LayerSpec],
    cache: CacheSettings,
    block_size: int,
    release: VllmRelease,
    *,
    state_chunk: int | None = None,
) -> BlockPlan:
    """Groups and block bytes of the layers on one rank. KvplanError where vLLM would refuse the combination.

    state_chunk: tokens of a kernel's chunk, of which a block has whole ones, where the state behind every block is
    kept for cached prefixes (``ResolvedSettings.state_chunk``).
    """
    pages = _layer_pages(layers, cache, block_size, release, state_chunk)
    if not pages:
        raise KvplanError("This model keeps no cache on one of the ranks.", hint="use fewer pipeline stages")
    if release.hybrid == "full":
        pages = [replace(page, kind="full", window_tokens=None) if page.window_tokens else page for page in pages]
    kinds = {(page.kind, page.window_tokens, page.block_size) for page in pages}
    if len(kinds) == 1 and (pages[0].kind != "state" or len({page.page_bytes for page in pages}) == 1):
        return BlockPlan((PageGroup(pages[0], len(pages)),), sum(page.page_bytes for page in pages))
    if any(isinstance(layer.mixer, CompressedAttention) for layer in layers):
        return _compressed_plan(pages, block_size, release)
    has_rings = any(page.kind == "ring" for page in pages)
    if has_rings and not release.packs_odd_pages:
        raise KvplanError(f"vLLM {release.text} has no pooled index keys.", hint="try a later release: vllm@0.33")
    if has_rings and cache.kv_dtype == "fp8_ds_mla":
        raise KvplanError("It is not known how vLLM keeps fp8_ds_mla beside pooled index keys.", hint="use fp8")
    if release.packs_odd_pages and (has_rings or not _can_be_made_equal(pages)):
        return _packed_plan(pages)
    return _hybrid_plan(_equal_pages(pages, release), release)


def _layer_pages(
    layers: Sequence[LayerSpec],
    cache: CacheSettings,
    block_size: int,
    release: VllmRelease,
    state_chunk: int | None,
) -> list[LayerPage]:
    per_layer = [layer_entries(without_streams(replace(layer, cross_attention=None)), cache) for layer in layers]
    states = [_state_bytes(entries) for entries in per_layer]
    state_bytes = max((size for kinds in states for size in kinds.values()), default=0)
    token_bytes = [entry.token_bytes for entries in per_layer for entry in entries if entry.token_bytes]
    if state_bytes and token_bytes:
        _check_pools(layers, block_size, release)
        alignment = _alignment(per_layer, block_size, release)
        if state_chunk is not None:
            alignment = lcm(state_chunk, max(alignment, block_size))
        block_size = hybrid_block_size(block_size, state_bytes, max(token_bytes), alignment)
    pages: list[LayerPage] = []
    for layer, entries, of_layer in zip(layers, per_layer, states, strict=True):
        pages.extend(stream_pages(layer, cache.tensor_parallel_size))
        if is_shared(layer.mixer):
            pages.extend(shared_pages(layer.mixer, block_size, cache.kv_dtype, cache.num_speculative_tokens))
            continue
        if isinstance(layer.mixer, CompressedAttention):
            pages.extend(compressed_pages(layer.mixer, block_size))
            continue
        kept = [_page(entry, block_size) for entry in entries if entry.token_bytes]
        pages.extend(_with_rings(kept, layer, entries, cache))
        padded = block_size * max(token_bytes, default=0)
        for kind, size in of_layer.items():
            is_every = state_chunk is not None and kind == "state"
            pages.append(
                LayerPage("every_state" if is_every else kind, block_size if is_every else 1, max(padded, size))
            )
        if layer.cross_attention is not None and (release.v1 or not entries):
            page = _cross_page(layer.cross_attention, cache, block_size)
            # The first engine had one kind of block, with room for every layer, also those that only look at images.
            pages.append(page if release.v1 else replace(page, kind="full"))
    return pages


def _state_bytes(entries: Sequence[CacheEntry]) -> dict[PageKind, int]:
    """What a layer keeps for each request, by the page that it is in; rings apart."""
    found: dict[PageKind, int] = {}
    for entry in entries:
        if entry.kind in _STATES and entry.state_bytes:
            kind = _STATES[entry.kind]
            found[kind] = found.get(kind, 0) + entry.state_bytes
    return found


def _check_pools(layers: Sequence[LayerSpec], block_size: int, release: VllmRelease) -> None:
    """KvplanError where means of keys are not known, or a block is not made of whole pools of them."""
    mixers = (mixer for layer in layers for mixer in layer.mixers if isinstance(mixer, SoftmaxAttention))
    indexers = (mixer.indexer for mixer in mixers if mixer.indexer is not None)
    pools = {indexer.pool for indexer in indexers if indexer.key_format == "model"}
    if pools and not release.keeps_grouped_keys:
        raise KvplanError(
            f"It is not known how vLLM {release.text} keeps {KIND_NAMES['indexer']} of several tokens.",
            hint="use vllm@0.33",
        )
    for pool in pools:
        if block_size % pool:
            raise KvplanError(
                f"vLLM refuses blocks of {block_size} tokens for keys of groups of {pool}.",
                hint="use a --block-size that is a multiple of both",
            )


def _alignment(per_layer: Sequence[Sequence[CacheEntry]], block_size: int, release: VllmRelease) -> int:
    """Tokens that a block beside states is a multiple of; with pooled index keys those of 32 keys or more."""
    entries = [entry for layer in per_layer for entry in layer]
    if not any(entry.kind == "latent" for entry in entries):
        return _ALIGNMENT_TOKENS
    pool = max(entry.tokens_per_row for entry in entries)
    return release.latent_state_alignment if pool == 1 else max(block_size, POOLED_KEYS * pool)


def _with_rings(
    pages: list[LayerPage], layer: LayerSpec, entries: Sequence[CacheEntry], cache: CacheSettings
) -> list[LayerPage]:
    """``pages`` of one layer, with the ring of the tokens that are not enough for a pooled index key yet.

    It is a page of its own; beside latents blocks have whole rows of these. Step 5's is as large as the page of keys
    and values, which prefill reads pool by pool, so that blocks begin at a multiple of a pool's
    (vllm/models/step5/nvidia/: csa_tail_ring.py; sparse_attention.py, customize_spec).
    """
    needed = sum(entry.state_bytes for entry in entries if entry.kind == "index_tail")
    if not needed:
        return pages
    main, mixer = pages[0], layer.mixer
    if not isinstance(mixer, SoftmaxAttention) or mixer.indexer is None:
        rows = _ROWS_APART.get(element_bytes(cache.kv_dtype), 1)
        stride = rows * main.page_bytes // main.block_size
        return [replace(main, stride_bytes=stride), *pages[1:], LayerPage("ring", 1, needed)]
    if mixer.indexer.key_format == "model":
        return [*pages, LayerPage("ring", 1, needed)]
    if main.page_bytes < needed:
        raise KvplanError(
            f"vLLM keeps the {needed:,} B of an open region in one page of keys and values: {main.page_bytes:,} B.",
            hint="use a larger --block-size",
        )
    region_bytes = main.page_bytes * mixer.indexer.pool // main.block_size
    ring = LayerPage("ring", main.block_size, main.page_bytes, stride_bytes=_RING_STRIDE)
    return [replace(main, stride_bytes=region_bytes), *pages[1:], ring]


def _page(entry: CacheEntry, block_size: int) -> LayerPage:
    kind = _PAGE_KINDS.get(entry.kind)
    if kind is None:
        raise KvplanError(f"It is not known how vLLM keeps {KIND_NAMES[entry.kind]}.", hint="try --engine kvplan")
    return LayerPage(kind, block_size, entry.token_bytes * (block_size // entry.tokens_per_row), entry.window_tokens)


def _cross_page(cross: CrossAttention, cache: CacheSettings, block_size: int) -> LayerPage:
    refuse_scales(cache.kv_dtype, "an encoder's tokens")
    heads = rank_kv_heads(cross.num_kv_heads, cache.tensor_parallel_size)
    token_bytes = heads * (cross.head_size_k + cross.head_size_v) * element_bytes(cache.kv_dtype)
    return LayerPage("cross", block_size, token_bytes * block_size)


def hybrid_block_size(block_size: int, state_bytes: int, token_bytes: int, alignment: int = _ALIGNMENT_TOKENS) -> int:
    """Tokens per block of a model with states: raised until an attention page is no smaller than a state."""
    return max(block_size, alignment * _ceil_div(state_bytes, alignment * token_bytes))


def _equal_pages(pages: list[LayerPage], release: VllmRelease) -> list[LayerPage]:
    """Every page as large as the largest: states are padded, attention takes more tokens per block."""
    largest = max(page.page_bytes for page in pages)
    return [_enlarged(page, largest, release) for page in pages]


def _enlarged(page: LayerPage, largest: int, release: VllmRelease) -> LayerPage:
    if page.page_bytes == largest:
        return page
    if page.kind in ("state", "every_state"):
        return replace(page, page_bytes=largest)
    if largest % page.page_bytes == 0:
        return replace(page, page_bytes=largest, block_size=page.block_size * (largest // page.page_bytes))
    if release.pads_odd_pages:
        return replace(page, page_bytes=largest)
    sizes = f"{page.page_bytes:,} and {largest:,} bytes"
    raise KvplanError(
        f"It is not known how vLLM {release.text} shares blocks between layers with pages of {sizes}.",
        hint="try a later release: vllm@0.33",
    )


def _hybrid_plan(pages: list[LayerPage], release: VllmRelease) -> BlockPlan:
    counts: dict[LayerPage, int] = {}
    for page in pages:
        counts[page] = counts.get(page, 0) + 1
    fewest, most = min(counts.values()), max(counts.values())
    group_size = most if release.hybrid == "balanced" and most < fewest * 1.5 else fewest
    groups: list[PageGroup] = []
    for page, count in counts.items():
        num_groups = _ceil_div(count, group_size)
        each, left = divmod(count, num_groups)
        groups.extend(PageGroup(page, each + (1 if index < left else 0)) for index in range(num_groups))
    return BlockPlan(tuple(groups), group_size * pages[0].page_bytes)


def _can_be_made_equal(pages: list[LayerPage]) -> bool:
    largest = max(page.page_bytes for page in pages)
    return all(page.kind in ("state", "every_state") or largest % page.page_bytes == 0 for page in pages)


def _packed_plan(pages: Sequence[LayerPage]) -> BlockPlan:
    groups, bytes_per_block = packed_groups(pages)
    return BlockPlan(tuple(PageGroup(page, num_layers) for page, num_layers in groups), bytes_per_block)


def _compressed_plan(pages: list[LayerPage], block_size: int, release: VllmRelease) -> BlockPlan:
    if release.compressed_layout == "none":
        raise KvplanError(f"vLLM {release.text} has no compressed attention.", hint="try a later release: vllm@0.33")
    if release.compressed_layout == "kinds":
        return replace(_packed_plan(pages), asked_block_size=block_size)
    found = tuple_layout(pages, release.compressed_layout)
    weighs = release.prints_compressed_bytes
    return BlockPlan(
        groups=tuple(
            PageGroup(each.page, each.num_layers, each.num_bytes if weighs else None) for each in found.groups
        ),
        bytes_per_block=found.bytes_per_block,
        asked_block_size=block_size,
        admitted_bytes=found.admitted_bytes,
    )


def _ceil_div(number: int, divisor: int) -> int:
    return -(-number // divisor)
