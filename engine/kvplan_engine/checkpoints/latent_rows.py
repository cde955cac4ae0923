"""The rows of latent attention's projections that RoPE turns: neighbours, where a checkpoint pairs them, as halves.

As ``row_order`` does it for ordinary attention: rows are moved once, when the weights are loaded.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from kvplan_engine.description.mixers import LatentAttention


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
