"""What one rank keeps of every sequence, of models that kvplan's engine counts blocks for and computes no part of.

``ranks`` says what a rank computes, and refuses what it cannot. To count blocks it is enough to know what is kept; the
engine divides on its own (``kvplan_engine/description/counted_part.py``), and tests/agreement compares the two.
"""

from __future__ import annotations

from dataclasses import replace

from kvplan.catalog.spec import LayerSpec, Mixer, ModelSpec, SoftmaxAttention, StateMixer
from kvplan.errors import UsageError
from kvplan.estimate.kv_cache import rank_conv_channels, rank_kv_heads


def kept_part(spec: ModelSpec, layers: range, num_ranks: int) -> ModelSpec:
    """``layers`` of ``spec`` with what each of ``num_ranks`` keeps of them. UsageError where heads do not divide."""
    found = spec.layers[layers.start : layers.stop]
    known: dict[int, LayerSpec] = {}
    for layer in found:
        if id(layer) not in known:
            known[id(layer)] = _layer_part(layer, num_ranks)
    return replace(spec, layers=tuple(known[id(layer)] for layer in found))


def _layer_part(layer: LayerSpec, num_ranks: int) -> LayerSpec:
    mixer = None if layer.mixer is None else _mixer_part(layer.mixer, num_ranks)
    beside = None if layer.parallel_state is None else _state_part(layer.parallel_state, num_ranks)
    cross = layer.cross_attention
    if cross is not None:
        cross = replace(cross, num_kv_heads=rank_kv_heads(cross.num_kv_heads, num_ranks))
    return replace(layer, mixer=mixer, parallel_state=beside, cross_attention=cross)


def _mixer_part(mixer: Mixer, num_ranks: int) -> Mixer:
    """Latents and index keys are whole on every rank."""
    if isinstance(mixer, SoftmaxAttention):
        return replace(mixer, num_kv_heads=rank_kv_heads(mixer.num_kv_heads, num_ranks))
    return _state_part(mixer, num_ranks) if isinstance(mixer, StateMixer) else mixer


def _state_part(state: StateMixer, num_ranks: int) -> StateMixer:
    shape = state.recurrent_shape
    if shape:
        if shape[0] % num_ranks:
            raise UsageError(
                f"{shape[0]} heads of a state cannot be divided over {num_ranks} ranks.",
                hint=f"choose a --tensor-parallel-size that divides {shape[0]}",
            )
        shape = (shape[0] // num_ranks, *shape[1:])
    channels = rank_conv_channels(state, num_ranks)
    return replace(state, conv_channels=channels, conv_group_channels=0, recurrent_shape=shape)
