"""The rows of queries and keys, from the order of a checkpoint into the one that the kernels want.

RoPE turns pairs of a head's elements. Some families pair neighbours, 2i and 2i + 1, where the kernels pair elements
half of the rotary size apart. Scores are sums over a head's elements, so their order does not matter as long as queries
and keys have the same: the rows are moved once, when the weights are loaded.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvplan_engine.checkpoints.tensor_names import RowOrder
from kvplan_engine.description.mixers import Attention, Rope


@dataclass(frozen=True, slots=True)
class StoredHeads:
    """Rows of one stored tensor: ``num_queries`` heads, then ``num_keys``, then rows that stay where they are.

    group: queries for each KV head. rope: None where nothing turns.
    """

    num_queries: int
    num_keys: int
    head_size: int
    group: int
    rope: Rope | None
    is_norm: bool = False

    @property
    def must_move(self) -> bool:
        return self.is_norm or (self.rope is not None and (self.rope.neighbours or self.rope.offset > 0))


def heads_of(attention: Attention, part: str, label: str) -> StoredHeads | None:
    """The heads in the rows called ``label`` of ``part``, "" being all of them; None where there are none to move."""
    group = attention.num_heads // attention.num_kv_heads
    queries, keys = attention.num_heads, attention.num_kv_heads
    if part != "qkv":
        one_weight = attention.head_norm == "head"
        queries, keys = (1 if one_weight else queries), (1 if one_weight else keys)
        label = "query" if part == "query_norm" else "key"
    counts = {"": (queries, keys), "query": (queries, 0), "key": (0, keys)}.get(label)
    if counts is None:
        return None
    return StoredHeads(*counts, attention.key_size, group, attention.rope, part != "qkv")


def arrange_heads(tensor: torch.Tensor, heads: StoredHeads, *, order: RowOrder) -> torch.Tensor:
    """``tensor`` [rows, ...] with queries before keys before values, and each head in the order of the kernels.

    order: that they are stored in, see ``TensorNames.row_order``.
    """
    if heads.is_norm:  # some store [heads, head_size]
        tensor = tensor.flatten()
    if order == "kv_heads":
        tensor = _ungrouped(tensor, heads)
    elif order == "quarters":
        queries, values, keys = tensor.unflatten(0, (4, 3, -1)).unbind(1)
        tensor = torch.cat([part.flatten(0, 1) for part in (queries, keys, values)])
    if not heads.must_move:
        return tensor
    moved = (heads.num_queries + heads.num_keys) * heads.head_size
    turned = _halves(tensor[:moved].unflatten(0, (-1, heads.head_size)), heads)
    return torch.cat([turned.flatten(0, 1), tensor[moved:]])


def _ungrouped(tensor: torch.Tensor, heads: StoredHeads) -> torch.Tensor:
    groups = tensor.unflatten(0, (-1, heads.group + 2, heads.head_size))
    parts = groups.split([heads.group, 1, 1], dim=1)
    return torch.cat([part.flatten(0, 2) for part in parts])


def _halves(rows: torch.Tensor, heads: StoredHeads) -> torch.Tensor:
    """rows [heads, head_size, ...]: the rotary ones first, and of neighbours all firsts before all seconds."""
    rope = heads.rope
    if rope is None:
        return rows
    end = rope.offset + rope.rotary_size
    rotary = rows[:, rope.offset : end]
    if rope.neighbours:
        rotary = torch.cat([rotary[:, 0::2], rotary[:, 1::2]], dim=1)
    return torch.cat([rotary, rows[:, : rope.offset], rows[:, end:]], dim=1)
