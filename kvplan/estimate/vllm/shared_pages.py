"""Pages of DeepSeek V4.1, whose layers share compressed vectors: those of windows, vectors, keys and open groups.

A record of a vector is in MXFP8 on Blackwell's data-centre GPUs (512 elements and 16 scales), and as V4's elsewhere.
What of a group of two tokens is still open is kept for each request, values and scores in float32, in a ring.

Sources (0.33.0): vllm/models/deepseek_v41/attention.py (DeepseekV4Attention, DeepseekV4IndexerCache) and compressor.py
(CompressorStateCache), and vllm/v1/attention/backends/mla/sparse_swa.py (DeepseekV4SWACache).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeGuard

from kvplan.catalog.spec import CompressedAttention, Mixer
from kvplan.errors import KvplanError
from kvplan.estimate.vllm.pages import COMPRESSED_BLOCK, LayerPage, PageKind

MXFP8: Final = "mxfp8"
"""The KV cache's dtype where records are in MXFP8."""
_FEWEST_ROWS = 8
_WINDOW_BLOCK = 32


@dataclass(frozen=True, slots=True)
class _Records:
    """Bytes of a vector, what a page's bytes are a multiple of, and the distance between blocks."""

    num_bytes: int
    alignment: int
    stride_bytes: int = 1


_BY_DTYPE = {MXFP8: _Records(528, 512, 528)}
_AS_V4 = _Records(584, 576)


def is_shared(mixer: Mixer | None) -> TypeGuard[CompressedAttention]:
    """Whether it is DeepSeek V4.1's attention."""
    return isinstance(mixer, CompressedAttention) and mixer.window_block == _WINDOW_BLOCK


def shared_pages(
    mixer: CompressedAttention, block_size: int, kv_dtype: str, num_speculative_tokens: int
) -> Iterator[LayerPage]:
    """The pages of one layer: its window, and vectors, keys and a ring where the layer keeps them.

    KvplanError for blocks that its kernels do not take.
    """
    if block_size % COMPRESSED_BLOCK:
        raise KvplanError(
            f"vLLM keeps compressed attention in blocks of {COMPRESSED_BLOCK} tokens, not {block_size}.",
            hint=f"use --block-size {COMPRESSED_BLOCK}",
        )
    records = _BY_DTYPE.get(kv_dtype, _AS_V4)
    yield _page("sliding", mixer.window_block, mixer.window_block * records.num_bytes, records, mixer.window_tokens)
    if mixer.ratio is None or not mixer.keeps_vectors or mixer.indexer is None:
        return
    rows = block_size // mixer.ratio
    yield _page("full", block_size, rows * records.num_bytes, records)
    key_bytes = mixer.indexer.head_size + mixer.indexer.head_size // 128 * 4
    yield _page("full", block_size, rows * key_bytes, records)
    if mixer.ratio > 1:
        open_rows = max(_FEWEST_ROWS, 1 << (num_speculative_tokens + 1).bit_length())
        yield LayerPage("ring", 1, open_rows * 2 * mixer.head_size * 4, stride_bytes=records.stride_bytes)


def _page(
    kind: PageKind, block_size: int, num_bytes: int, records: _Records, window_tokens: int | None = None
) -> LayerPage:
    padded = -(-num_bytes // records.alignment) * records.alignment
    return LayerPage(kind, block_size, padded, window_tokens, records.stride_bytes)
