"""What several ranks cannot share: refused by name, before anything is loaded. No torch."""

from __future__ import annotations

from collections.abc import Iterator

from kvplan_engine.description.feed_forward import Mixture, Mlp
from kvplan_engine.description.mixers import (
    FULL,
    Attention,
    CompressedAttention,
    CrossAttention,
    LatentAttention,
    Mixer,
    State,
)
from kvplan_engine.description.model import Layer, ModelDescription
from kvplan_engine.errors import SettingsError


def check_stages(model: ModelDescription, count: int) -> None:
    """SettingsError where ``count`` stages cannot share the stack."""
    if count > model.num_layers:
        raise SettingsError(
            f"{model.num_layers} layers cannot be divided over {count} stages.", hint="lower pipeline_parallel_size"
        )
    attention = [mixer for layer in model.distinct_layers for mixer in layer.mixers]
    is_alike = all(isinstance(each, Attention) and each.kept == FULL for each in attention)
    named = {
        "layers that keep unlike tokens": not is_alike,
        "layers that read what others keep": any(getattr(each, "reads_layer", None) is not None for each in attention),
        "inputs of each layer's own": model.layer_inputs is not None,
        "parameters of no part": bool(model.others),
    }
    found = next((name for name, is_there in named.items() if is_there), None)
    if found is not None:
        raise SettingsError(
            f"the engine does not divide {model.architecture} into stages yet: it has {found}.",
            hint="use pipeline_parallel_size=1",
        )


def check_division(model: ModelDescription, count: int) -> None:
    """SettingsError, with the first thing in ``model`` that ``count`` ranks cannot share."""
    undivided = next(filter(None, map(_undivided, model.distinct_layers)), None)
    undivided = undivided or ("parameters of no part" if model.others else None)
    if undivided is not None:
        raise SettingsError(
            f"the engine does not divide {model.architecture} over {count} ranks yet: it has {undivided}.",
            hint="use tensor_parallel_size=1",
        )
    for number, what in (each for layer in model.distinct_layers for each in _divided_sizes(layer)):
        if number % count:
            raise SettingsError(
                f"{number:,} {what} cannot be divided over {count} ranks.",
                hint=f"choose a tensor_parallel_size that divides {number:,}",
            )
    for layer in model.distinct_layers:
        _check_kv_heads(layer, count)
        _check_experts(layer, count)


def _check_kv_heads(layer: Layer, count: int) -> None:
    for mixer in layer.mixers:
        heads = mixer.num_kv_heads if isinstance(mixer, Attention) else count
        if heads % count and count % heads:
            raise SettingsError(
                f"{heads} KV heads cannot be divided over {count} ranks, nor each be held by as many of them.",
                hint=f"choose a tensor_parallel_size that divides {heads}, or a multiple of it",
            )


def _check_experts(layer: Layer, count: int) -> None:
    """Refuse fewer experts than ranks: whole ones need not divide, but each rank has one."""
    part = layer.feed_forward
    if isinstance(part, Mixture) and part.whole_experts and part.num_experts < count:
        raise SettingsError(
            f"{part.num_experts} whole experts cannot be divided over {count} ranks.",
            hint="lower tensor_parallel_size, or leave enable_expert_parallel out",
        )


def _divided_sizes(layer: Layer) -> Iterator[tuple[int, str]]:
    for mixer in layer.mixers:
        if isinstance(mixer, Attention):
            yield mixer.num_heads, "attention heads"
    part = layer.feed_forward
    if isinstance(part, Mlp):
        yield part.size, "inner elements of an MLP"
    if isinstance(part, Mixture):
        if not part.whole_experts:
            yield part.expert.size, "inner elements of an expert"
        if part.shared is not None:
            yield part.shared.size, "inner elements of the shared expert"


def _undivided(layer: Layer) -> str | None:
    """What of ``layer`` no split is declared for, or needs more than sums over ranks."""
    lacking = [_undivided_mixer(mixer) for mixer in layer.mixers]
    lacking.append("parameters of no part" if layer.others else None)
    return next(filter(None, lacking), None)


_UNDIVIDED_MIXERS: dict[type[Mixer], str] = {
    LatentAttention: "latent attention",
    CompressedAttention: "compressed attention",
    State: "layers with a state",
    CrossAttention: "cross attention",
}


def _undivided_mixer(mixer: Mixer) -> str | None:
    if not isinstance(mixer, Attention):
        return _UNDIVIDED_MIXERS[type(mixer)]
    named = {
        "slopes (ALiBi)": mixer.alibi,
        "a norm across all heads": mixer.head_norm == "all",
        "an index of keys": mixer.indexer is not None,
        "attention that layers share": mixer.shared_weights,
    }
    return next((name for name, is_there in named.items() if is_there), None)
