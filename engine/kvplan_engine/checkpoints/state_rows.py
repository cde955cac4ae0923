"""The rows of layers with a state, and of gates beside queries, from the order of a checkpoint into the parameters'."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from kvplan_engine.description.mixers import Attention, State


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
