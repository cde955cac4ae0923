"""The rows of queries and keys, from the order of a checkpoint into the one that the kernels want.

RoPE turns pairs of a head's elements. Some families pair neighbours, 2i and 2i + 1, where the kernels pair elements
half of the rotary size apart. Scores are sums over a head's elements, so their order does not matter as long as queries
and keys have the same: the rows are moved once, when the weights are loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from kvplan_engine.checkpoints.tensor_names import RowOrder
from kvplan_engine.description.mixers import Attention, LatentAttention, Rope, State
from kvplan_engine.description.model import WeightFactor
from kvplan_engine.description.parameters import Parameter


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


# The rows of latent attention's projections that RoPE turns: neighbours, where a checkpoint pairs them, as halves.
#
# As ``row_order`` does it for ordinary attention: rows are moved once, when the weights are loaded.


def latent_rows(attention: LatentAttention, part: str) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """What a stored tensor of ``part`` becomes; None where it is used as it is stored."""
    if attention.rope is None:
        return None
    if part.startswith("indexer."):
        return _index_rows(attention, part)
    if not attention.rope.neighbours:
        return None
    period = {
        "query": attention.nope_size + attention.rope_size,
        "query_up": attention.nope_size + attention.rope_size,
        "kv_down": attention.row_size,
    }.get(part)
    if period is None:
        return None
    return lambda tensor: _as_halves(tensor, period, attention.rope_size)


def _index_rows(attention: LatentAttention, part: str) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """The index turns the first elements of its heads."""
    indexer = attention.indexer
    if indexer is None or not indexer.neighbours or part == "indexer.head_weights":
        return None
    return lambda tensor: _first_as_halves(tensor, indexer.head_size, attention.rope_size)


def _first_as_halves(tensor: torch.Tensor, period: int, rotary: int) -> torch.Tensor:
    """Reorder the first ``rotary`` of every ``period`` rows, likewise."""
    turning, still = tensor.unflatten(0, (-1, period)).split([rotary, period - rotary], dim=1)
    return torch.cat([turning[:, 0::2], turning[:, 1::2], still], dim=1).flatten(0, 1)


def _as_halves(tensor: torch.Tensor, period: int, rotary: int) -> torch.Tensor:
    """Reorder the last ``rotary`` of every ``period`` rows: all firsts of a pair before all seconds."""
    rows = tensor.unflatten(0, (-1, period))
    still, turning = rows.split([period - rotary, rotary], dim=1)
    return torch.cat([still, turning[:, 0::2], turning[:, 1::2]], dim=1).flatten(0, 1)


# The rows of layers with a state, and of gates beside queries, from the order of a checkpoint into the parameters'.


def state_rows(state: State, part: str, num_stored: int) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """What brings a stored tensor of ``part`` into the parameter's order; num_stored: of how many it is one.

    Qwen3-Next has what is projected in one tensor: for each key head its query, key, values and gates, and in another
    one its strengths and decays.
    """
    if part == "A_log" and state.kind == "kimi_delta":  # stored [1, 1, heads, 1]
        return torch.Tensor.flatten
    if state.kind != "gated_delta" or num_stored != 1:
        return None
    group = state.num_heads // state.key_heads
    values = group * state.value_size
    match part:
        case "in":
            return partial(_apart, sizes=(state.key_size, state.key_size, values, values), order=(0, 1, 2, 3))
        case "decay_and_strength":
            return partial(_apart, sizes=(group, group), order=(1, 0))
    return None


def _apart(tensor: torch.Tensor, sizes: tuple[int, ...], order: tuple[int, ...]) -> torch.Tensor:
    """Runs of sum(sizes) rows, one for each key head: all heads' rows of each size together, in ``order``."""
    parts = tensor.unflatten(0, (-1, sum(sizes))).split(sizes, dim=1)
    return torch.cat([parts[place].flatten(0, 1) for place in order])


def beside_queries(attention: Attention, part: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """The queries ("qkv") or the gates of a tensor that has a head's query and gate side by side, head after head."""
    return partial(_of_each_head, heads=attention.num_heads, place=0 if part == "qkv" else 1)


def _of_each_head(tensor: torch.Tensor, heads: int, place: int) -> torch.Tensor:
    return tensor.unflatten(0, (heads, 2, -1))[:, place].flatten(0, 1)


# Factors of a model's activations that are linear in a weight, and so are multiplied into it when it is loaded.


def scaling_of(parameter: Parameter, label: str, factors: tuple[WeightFactor, ...]) -> partial[torch.Tensor] | None:
    """What multiplies a stored tensor of ``parameter`` with the layer's ``factors``; None where none applies.

    label: of the rows that the tensor fills, "" for all of them.
    """
    own = {each.label: each for each in factors if each.part == parameter.part}
    if not own:
        return None
    all_rows = parameter.rows or (("", parameter.shape[0]),)
    rows = [(name, size) for name, size in all_rows if label in ("", name)]
    return partial(_scaled, factors=[(size, _factor(own.get(name), parameter)) for name, size in rows])


def _factor(factor: WeightFactor | None, parameter: Parameter) -> float:
    if factor is None:
        return 1.0
    return factor.bias if parameter.leaf == "bias" else factor.weight


def _scaled(tensor: torch.Tensor, factors: list[tuple[int, float]]) -> torch.Tensor:
    """Runs of rows of ``tensor`` times a factor each, in float32 so that it is rounded once."""
    wide = tensor.float()
    runs = wide.split([size for size, _ in factors])
    return torch.cat([rows * factor for rows, (_, factor) in zip(runs, factors, strict=True)])
