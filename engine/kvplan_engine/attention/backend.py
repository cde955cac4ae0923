"""The interface between a model's layers and whatever computes paged attention."""

from __future__ import annotations

from typing import Protocol

import torch

from kvplan_engine.attention.metadata import AttentionMetadata


class AttentionBackend(Protocol):
    """Writes keys and values into the paged pool and attends over it.

    ``kv`` is the pool, [num_blocks, num_layers, 2, num_kv_heads, block_size, head_size]; index 0 of the third axis
    holds keys, 1 values. Queries, keys and values may be row-strided views (of a fused projection, say) as long as
    their last dimension is contiguous.
    """

    name: str

    def write_kv(
        self, key: torch.Tensor, value: torch.Tensor, kv: torch.Tensor, layer: int, slots: torch.Tensor
    ) -> None:
        """Store ``key`` and ``value`` [T, num_kv_heads, head_size] of one layer at ``slots`` [T]; -1 stores nothing."""
        ...

    def attend(
        self,
        query: torch.Tensor,
        kv: torch.Tensor,
        layer: int,
        metadata: AttentionMetadata,
        out: torch.Tensor,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> None:
        """Causal attention of ``query`` [T, num_heads, head_size] over the pool, into ``out`` of the same shape.

        Query token i of sequence s sits at position seq_lens[s] - query_len + i and sees the positions up to its own;
        with ``window`` only the last ``window`` of them, itself included. ``softcap`` c turns a score x into
        c * tanh(x / c). Query head h reads KV head h // (num_heads // num_kv_heads).
        """
        ...
