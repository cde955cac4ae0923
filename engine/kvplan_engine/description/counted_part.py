"""What one rank keeps of every sequence, for models that no rank computes a part of yet (``load_format="none"``).

``division`` says what a rank computes, and refuses what it cannot. To count blocks it is enough to know what is kept:

    attention, cross attention    KV heads divided, or one on each rank where there are fewer heads than ranks
    latents and index keys        whole on every rank: all heads read the same vectors
    states                        heads and channels divided; Mamba-2's groups, which heads share, at least one a rank
    n-grams' inputs               whole on every rank
"""

from __future__ import annotations

from dataclasses import replace

from kvplan_engine.description.mixers import Attention, CrossAttention, Mixer, State
from kvplan_engine.description.model import Layer, ModelDescription
from kvplan_engine.errors import SettingsError


def counted_part(model: ModelDescription, layers: range, num_ranks: int) -> ModelDescription:
    """``layers`` of ``model`` as one of ``num_ranks`` keeps them. SettingsError where heads cannot be divided."""
    kept = model.layers[layers.start : layers.stop]
    parts = {layer: _kept_by_rank(layer, num_ranks) for layer in dict.fromkeys(kept)}
    return replace(model, layers=tuple(parts[layer] for layer in kept), num_ranks=num_ranks)


def _kept_by_rank(layer: Layer, num_ranks: int) -> Layer:
    return replace(layer, mixers=tuple(_mixer_part(mixer, num_ranks) for mixer in layer.mixers))


def _mixer_part(mixer: Mixer, num_ranks: int) -> Mixer:
    match mixer:
        case Attention() | CrossAttention():
            return replace(mixer, num_kv_heads=_kv_heads(mixer.num_kv_heads, num_ranks))
        case State():
            return _state_part(mixer, num_ranks)
        case _:
            return mixer


def _kv_heads(heads: int, num_ranks: int) -> int:
    if heads % num_ranks and num_ranks % heads:
        raise SettingsError(
            f"{heads} KV heads cannot be divided over {num_ranks} ranks, nor each be held by as many of them.",
            hint=f"choose a tensor_parallel_size that divides {heads}, or a multiple of it",
        )
    return max(heads // num_ranks, 1)


def _state_part(state: State, num_ranks: int) -> State:
    channels = state.conv_channels
    if state.kind == "mamba2":
        heads, rows, columns = state.recurrent_shape
        of_groups = 2 * max(state.num_groups, 1) * columns
        assert of_groups + heads * rows == channels, "Mamba-2 convolves its inputs, B and C"
        if state.num_groups % num_ranks:  # each rank has a whole group of its own
            channels += 2 * num_ranks * columns - of_groups
    if state.kind != "ngram_conv":
        channels = _divided(channels, num_ranks, "channels of a convolution")
    shape = state.recurrent_shape
    if shape:
        shape = (_divided(shape[0], num_ranks, "heads of a state"), *shape[1:])
    return replace(state, conv_channels=channels, recurrent_shape=shape)


def _divided(number: int, num_ranks: int, what: str) -> int:
    if number % num_ranks:
        raise SettingsError(
            f"{number:,} {what} cannot be divided over {num_ranks} ranks.",
            hint=f"choose a tensor_parallel_size that divides {number:,}",
        )
    return number // num_ranks
