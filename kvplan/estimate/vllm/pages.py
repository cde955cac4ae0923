"""One layer's share of a block in vLLM, and the pages of compressed attention, which are not as wide as its elements.

DeepSeek V4 keeps records of a format of its own, whatever is asked for: 448 elements of a vector in fp8, 64 in bfloat16
and 8 B of scales. The window has blocks of its own. What makes the next compressed vector, values and scores in
float32, is kept like a window, by 4 or by 8 tokens, and so needs room for all tokens that are in flight.

Sources (0.32.0 and 0.33.0): vllm/models/deepseek_v4/attention.py and compressor.py (get_kv_cache_spec), and
vllm/v1/attention/backends/mla/sparse_swa.py (DeepseekV4SWACache).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from kvplan.catalog.spec import CompressedAttention, LayerSpec, StateMixer
from kvplan.errors import KvplanError
from kvplan.estimate.dtypes import element_bytes

PageKind = Literal["full", "sliding", "chunked", "state", "every_state", "ngram_state", "ring", "cross"]
PER_REQUEST: Final = ("state", "ngram_state", "ring")
"""Kinds of pages that a request has so many of whatever its length."""

COMPRESSED_BLOCK: Final = 256
"""``--block-size`` where nothing is said, and what it must be a multiple of (vllm/models/deepseek_v4/sparse_mla.py)."""
_HEAD, _RECORD_BYTES, _ALIGNMENT = 512, 584, 576
_WINDOW_BLOCK = 64
_STATE_BLOCKS = {4: 4, 128: 8}
"""Tokens in a block of what makes compressed vectors, by how many tokens become one."""
_OVERLAPPING = 4
"""Vectors of so many tokens are made of twice as many, those before them too."""


@dataclass(frozen=True, slots=True)
class LayerPage:
    """What one layer keeps in one block: ``page_bytes`` for ``block_size`` tokens (a state or a ring: for one request).

    ``stride_bytes``: what the distance between blocks must be a multiple of. ``num_groups``: of convolved channels;
    layers that differ in them share no group.
    """

    kind: PageKind
    block_size: int
    page_bytes: int
    window_tokens: int | None = None
    stride_bytes: int = 1
    num_groups: int = 0


def compressed_pages(mixer: CompressedAttention, block_size: int) -> Iterator[LayerPage]:
    """The pages of one layer. KvplanError where vLLM has no kernels."""
    ratio = mixer.ratio
    if mixer.head_size != _HEAD or (ratio is not None and ratio not in _STATE_BLOCKS):
        raise KvplanError(
            f"It is not known how vLLM keeps vectors of {mixer.head_size} elements for {ratio or 1} tokens each.",
            hint="try --engine kvplan",
        )
    if block_size % COMPRESSED_BLOCK:
        raise KvplanError(
            f"vLLM keeps compressed attention in blocks of {COMPRESSED_BLOCK} tokens, not {block_size}.",
            hint=f"use --block-size {COMPRESSED_BLOCK}",
        )
    yield _page("sliding", _WINDOW_BLOCK, _WINDOW_BLOCK * _RECORD_BYTES, mixer.window_tokens)
    if ratio is None:
        return
    yield _page("full", block_size, block_size // ratio * _RECORD_BYTES)
    yield _state_page(ratio, mixer.head_size)
    if mixer.indexer is not None:
        size = mixer.indexer.head_size
        yield _page("full", block_size, block_size // ratio * (size + size // 128 * 4))
        yield _state_page(ratio, size)


def _convolved(layer: LayerSpec) -> StateMixer | None:
    state = layer.parallel_state
    return state if state is not None and state.kind == "stream_conv" else None


def without_streams(layer: LayerSpec) -> LayerSpec:
    """``layer`` without what ``stream_pages`` are of."""
    return layer if _convolved(layer) is None else replace(layer, parallel_state=None)


def stream_pages(layer: LayerSpec, tensor_parallel_size: int) -> Iterator[LayerPage]:
    """Inputs of Inkling's convolutions, kept as a window of as many tokens as a filter has, which a block holds.

    Each KV head has its part of the channels, made up to a power of two, in bfloat16 whatever the cache is in
    (vllm/models/inkling/nvidia/sconv_swa_attn.py, InklingConvState). KvplanError where a rank would have no head.
    """
    mixer = _convolved(layer)
    if mixer is None:
        return
    groups, kernel = mixer.num_groups, mixer.conv_kernel
    if groups % tensor_parallel_size:
        raise KvplanError(
            f"vLLM does not divide convolutions of {groups} KV heads over {tensor_parallel_size} ranks.",
            hint="use a --tensor-parallel-size that divides the KV heads",
        )
    channels = 1 << (mixer.conv_channels // groups - 1).bit_length()
    row_bytes = groups // tensor_parallel_size * channels * element_bytes("bfloat16")
    yield LayerPage("sliding", kernel, kernel * row_bytes, kernel, num_groups=groups)


def _state_page(ratio: int, head_size: int) -> LayerPage:
    tokens, overlap = _STATE_BLOCKS[ratio], 2 if ratio == _OVERLAPPING else 1
    return _page("sliding", tokens, tokens * 2 * overlap * head_size * 4, overlap * ratio)


def _page(kind: PageKind, block_size: int, num_bytes: int, window_tokens: int | None = None) -> LayerPage:
    return LayerPage(kind, block_size, -(-num_bytes // _ALIGNMENT) * _ALIGNMENT, window_tokens)


def page_sizes(pages: Iterable[LayerPage]) -> Counter[int]:
    """Return how many pages are of each size in bytes."""
    return Counter(page.page_bytes for page in pages)


def least_padding(counts: Sequence[int], least: int) -> int:
    """Return the number that pads ``counts`` least when they are made multiples of it, from ``least`` on.

    The largest of several (vllm/v1/core/kv_cache_utils.py, later kv_cache_planning.py: _approximate_gcd).
    """
    return min(range(least, max(counts) + 1), key=lambda each: (sum(-count % each for count in counts), -each))
