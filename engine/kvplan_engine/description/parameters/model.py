"""All parameters of a model, layer by layer, and those around the layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kvplan_engine.description.feed_forward import FeedForward, Mixture, Mlp
from kvplan_engine.description.mixers import (
    Attention,
    CompressedAttention,
    CrossAttention,
    LatentAttention,
    Mixer,
    State,
)
from kvplan_engine.description.model import Layer, ModelDescription, Shape
from kvplan_engine.description.norms import NormKind
from kvplan_engine.description.parameters.attention import attention_parameters
from kvplan_engine.description.parameters.cross import cross_parameters
from kvplan_engine.description.parameters.ends import (
    joined_parameters,
    layer_end_parameters,
    layer_input_parameters,
)
from kvplan_engine.description.parameters.latent import compressed_parameters, latent_parameters
from kvplan_engine.description.parameters.mixture import mixture_parameters
from kvplan_engine.description.parameters.mlp import mlp_parameters
from kvplan_engine.description.parameters.norms import norm_parameters
from kvplan_engine.description.parameters.parameter import Parameter, norm, projection
from kvplan_engine.description.parameters.state import state_parameters


def num_parameters(model: ModelDescription) -> int:
    """Elements of all parameters; a head that is the embedding too counts once."""
    return sum(parameter.num_elements for parameter in model_parameters(model))


def model_parameters(model: ModelDescription) -> Iterator[Parameter]:
    """Every parameter once: the embedding, layer by layer, the head. Of a stage, those that it has."""
    hidden, stage = model.hidden_size, model.stage
    of_layer = {layer: list(layer_parameters(layer, hidden)) for layer in model.distinct_layers}
    of_layers = [replace(each, layer=index) for index, layer in enumerate(model.layers) for each in of_layer[layer]]
    if model.joined is not None:
        yield from joined_parameters(model)
        yield from of_layers
        yield from norm("final_norm", model.norm.kind, hidden)
        return
    if stage.is_first or (stage.is_last and model.tie_word_embeddings):
        yield from projection("embedding", model.vocab_rows, hidden, split="vocabulary")
    if stage.is_first:
        yield from _after_embedding(model)
    yield from of_layers
    if not stage.is_last:
        return
    yield from norm("final_norm", model.norm.kind, hidden)
    if not model.tie_word_embeddings:
        yield from projection("head", model.vocab_rows, hidden, bias=model.head_bias, split="vocabulary")
    elif model.head_bias:
        yield Parameter("head", (model.vocab_rows,), "bias", "bias", split="vocabulary")
    yield from _others(model.others)


def _after_embedding(model: ModelDescription) -> Iterator[Parameter]:
    if model.learned_positions is not None:
        yield from projection("positions", model.learned_positions, model.hidden_size)
    if model.embedding_norm:
        yield from norm("embedding_norm", "layer", model.hidden_size)
    yield from layer_input_parameters(model)


def layer_parameters(layer: Layer, hidden_size: int) -> Iterator[Parameter]:
    """Yield the parameters of one layer, which they do not name. The parts of a second mixer begin with "second."."""
    for mixer, prefix in zip(layer.mixers, ("", "second."), strict=False):
        for parameter in _mixer_parameters(mixer, hidden_size, layer.norms.kind):
            yield replace(parameter, part=prefix + parameter.part)
    if layer.feed_forward is not None:
        yield from _feed_forward_parameters(layer.feed_forward, hidden_size)
    yield from norm_parameters(layer, hidden_size)
    yield from layer_end_parameters(layer, hidden_size)
    yield from _others(layer.others)


def _mixer_parameters(mixer: Mixer, hidden_size: int, norm_kind: NormKind) -> Iterator[Parameter]:
    match mixer:
        case Attention():
            return attention_parameters(mixer, hidden_size, norm_kind)
        case LatentAttention():
            return latent_parameters(mixer, hidden_size)
        case CompressedAttention():
            return compressed_parameters(mixer, hidden_size)
        case State():
            return state_parameters(mixer, hidden_size)
        case CrossAttention():
            return cross_parameters(mixer, hidden_size)
    raise TypeError(f"nothing says which parameters a {type(mixer).__name__} has")


def _feed_forward_parameters(feed_forward: FeedForward, hidden_size: int) -> Iterator[Parameter]:
    match feed_forward:
        case Mlp():
            return mlp_parameters(feed_forward, hidden_size)
        case Mixture():
            return mixture_parameters(feed_forward, hidden_size)
    raise TypeError(f"nothing says which parameters a {type(feed_forward).__name__} has")


def _others(shapes: Sequence[Shape]) -> Iterator[Parameter]:
    for shape in shapes:
        yield Parameter(shape.name, shape.sizes, "other", "")
