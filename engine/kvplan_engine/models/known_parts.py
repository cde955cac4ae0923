"""What the decoder computes; anything else of a description is refused by name, before weights are loaded."""

from __future__ import annotations

from kvplan_engine.checkpoints.families import names_of
from kvplan_engine.description.feed_forward import FeedForward, Mlp
from kvplan_engine.description.mixers import Attention, LatentAttention, Mixer, Rope, State
from kvplan_engine.description.model import Layer, ModelDescription
from kvplan_engine.errors import EngineError
from kvplan_engine.layers.rope import ROPE_TYPES
from kvplan_engine.memory.breakdown import MEASURE_INSTEAD

_STATE_KINDS = ("gated_delta", "kimi_delta", "mamba1", "mamba2", "short_conv")


def refuse_unknown_parts(model: ModelDescription) -> None:
    """EngineError that names what the decoder lacks for ``model``; it comes with a way to measure the model anyway."""
    for layer in model.distinct_layers:
        _refuse_if(_lacking(layer), model)
    if model.head_bias and model.tie_word_embeddings:
        _refuse_if("a bias of an output head that is the embedding", model)
    if model.others or names_of(model)[0] is None:
        _refuse_if("all of its parts", model)


def _refuse_if(lacking: str | None, model: ModelDescription) -> None:
    if lacking is not None:
        raise EngineError(
            f"the engine does not run {model.architecture} yet: it lacks {lacking}.", hint=MEASURE_INSTEAD
        )


def _lacking(layer: Layer) -> str | None:
    """The first thing in ``layer`` that no part computes."""
    if layer.others:
        return "all of its parts"
    lacking = [_lacking_in_mixer(mixer) for mixer in layer.mixers]
    if layer.feed_forward is not None:
        lacking.append(_lacking_in_feed_forward(layer.feed_forward))
    return next(filter(None, lacking), None)


def _lacking_in_mixer(mixer: Mixer) -> str | None:
    match mixer:
        case Attention():
            return _lacking_in_attention(mixer)
        case LatentAttention():
            return _lacking_in_latent(mixer)
        case State():
            return _lacking_in_state(mixer)
        case _:
            return type(mixer).__name__


def _lacking_in_latent(attention: LatentAttention) -> str | None:
    if attention.gate:
        return "a gate of latent attention"
    if attention.indexer is not None and attention.indexer.pool > 1:
        return "index keys of pools"
    return _lacking_in_rope(attention.rope)


def _lacking_in_state(state: State) -> str | None:
    if state.kind not in _STATE_KINDS:
        return f"states of {state.kind.replace('_', ' ')}"
    if state.full_gate or state.full_decay:
        return "a full gate of Kimi's states"
    return "states without a convolution" if state.conv_kernel < 2 else None


def _lacking_in_attention(attention: Attention) -> str | None:
    if attention.kept.kind not in ("full", "window"):
        return f"attention that keeps a {attention.kept.kind}"
    named = {
        "an index of keys": attention.indexer is not None,
        "queries from a latent": attention.query_rank is not None,
    }
    return next((name for name, wanted in named.items() if wanted), None) or _lacking_in_rope(attention.rope)


def _lacking_in_rope(rope: Rope | None) -> str | None:
    if rope is None or rope.scaling.get("rope_type", "default") in ROPE_TYPES:
        return None
    return f"the RoPE scaling '{rope.scaling['rope_type']}' (it has {', '.join(ROPE_TYPES)})"


def _lacking_in_feed_forward(part: FeedForward) -> str | None:
    if isinstance(part, Mlp):
        if part.activation == "situ":
            return "the activation 'situ'"
        return "a gate within limits" if part.activation == "swiglu_oai" or part.limit is not None else None
    named = {
        "experts that do nothing": part.num_idle > 0,
        "the activation 'situ'": part.expert.activation == "situ",
        "a norm behind its experts": part.latent_norm,
    }
    return next((name for name, wanted in named.items() if wanted), None)
