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
from kvplan_engine.description.norms import NormKind, NormPlaces
from kvplan_engine.description.parameters.mixers import (
    attention_parameters,
    compressed_parameters,
    cross_parameters,
    latent_parameters,
    state_parameters,
)
from kvplan_engine.description.parameters.parameter import Parameter, Rows, norm, projection

# The MLP; a mixture of experts: the router, all experts' matrices below each other, the shared expert.


def mlp_parameters(mlp: Mlp, hidden_size: int, prefix: str = "") -> Iterator[Parameter]:
    """Parameters of one MLP. prefix: before the parts' names, for an MLP inside of another part ("shared.")."""
    rows: Rows = (("gate", mlp.size), ("up", mlp.size)) if mlp.gated else (("up", mlp.size),)
    yield from projection(f"{prefix}up", rows, hidden_size, bias=mlp.bias, split="outputs")
    yield from projection(f"{prefix}down", hidden_size, mlp.size, bias=mlp.bias, split="inputs")
    if mlp.activation == "xielu":  # its two slopes are learned
        yield Parameter(f"{prefix}activation.alpha_p", (1,), "bias", "")
        yield Parameter(f"{prefix}activation.alpha_n", (1,), "bias", "")


# The parameters of a mixture of experts: the experts' matrices one below the other.


def mixture_parameters(mixture: Mixture, hidden_size: int) -> Iterator[Parameter]:
    """Parameters of a layer: the router, the experts [experts x rows, inputs], the shared expert, what is beside it."""
    choices = mixture.num_experts + mixture.num_idle
    yield from projection("router", choices, hidden_size, bias=mixture.router_bias)
    if mixture.correction:
        yield Parameter("correction", (choices,), "bias", "")
    yield from _expert_parameters(mixture, mixture.latent_size or hidden_size)
    if mixture.shared is not None:
        yield from mlp_parameters(mixture.shared, hidden_size, "shared.")
    if mixture.shared_gate:
        yield from projection("shared_gate", 1, hidden_size)
    if mixture.apart:
        yield Parameter("router_scale", (hidden_size,), "norm", "")
        yield Parameter("expert_scale", (mixture.num_experts,), "norm", "")
        for part in ("experts_norm", "experts_post_norm", "shared_post_norm"):
            yield from norm(part, "rms", hidden_size)
    if mixture.latent_size is not None:
        yield from projection("latent_down", mixture.latent_size, hidden_size)
        yield from projection("latent_up", hidden_size, mixture.latent_size)
        if mixture.latent_norm:
            yield from norm("latent_norm", "rms", mixture.latent_size)


def _expert_parameters(mixture: Mixture, inner_size: int) -> Iterator[Parameter]:
    expert, count = mixture.expert, len(mixture.held_experts)
    up: Rows = (("gate", expert.size), ("up", expert.size)) if expert.gated else (("up", expert.size),)
    for parameter in projection("experts.up", up * count, inner_size, bias=expert.bias, split="outputs"):
        yield _of_experts(mixture, parameter)
    down: Rows = (("down", inner_size),) * count
    for parameter in projection("experts.down", down, expert.size, bias=expert.bias, split="inputs"):
        yield _of_experts(mixture, parameter)


def _of_experts(mixture: Mixture, parameter: Parameter) -> Parameter:
    """Return the parameter as ranks divide it that have whole experts, where they do."""
    if not mixture.whole_experts:
        return parameter
    return replace(parameter, split="experts", num_experts=len(mixture.held_experts))


# The parameters of joined inputs, of layers' own inputs, and of what ends a layer.


def layer_input_parameters(model: ModelDescription) -> Iterator[Parameter]:
    """The second embedding, its projection from the first and the norm of each layer's share."""
    inputs = model.layer_inputs
    if inputs is None:
        return
    columns = model.num_layers * inputs.size
    yield from projection("layer_inputs.embedding", inputs.rows, columns)
    yield from projection("layer_inputs.projection", columns, model.hidden_size)
    yield from norm("layer_inputs.norm", model.norm.kind, inputs.size)


def joined_parameters(model: ModelDescription) -> Iterator[Parameter]:
    """The norms of both inputs of multi-token prediction, and the projection [hidden, 2 hidden] of both."""
    for part in ("joined.embedding_norm", "joined.hidden_norm"):
        yield from norm(part, model.norm.kind, model.hidden_size)
    yield from projection("joined.projection", model.hidden_size, 2 * model.hidden_size)


def layer_end_parameters(layer: Layer, hidden_size: int) -> Iterator[Parameter]:
    """Gate, projection and norm of the layer's own input, and the factor."""
    if layer.end is None:
        return
    if layer.end.input_size:
        yield from projection("input_gate", layer.end.input_size, hidden_size)
        yield from projection("input_output", hidden_size, layer.end.input_size)
        yield from norm("input_norm", layer.norms.kind, hidden_size)
    yield Parameter("layer_scale", (1,), "norm", "")


# A layer's norms, by where they stand.


_ATTENTION: dict[NormPlaces, tuple[str, ...]] = {
    "before": ("attention_norm",),
    "after": ("attention_post_norm",),
    "both": ("attention_norm", "attention_post_norm"),
    "parallel": ("attention_norm",),
    "parallel_two": ("attention_norm",),
}
_MLP: dict[NormPlaces, tuple[str, ...]] = {
    "before": ("mlp_norm",),
    "after": ("mlp_post_norm",),
    "both": ("mlp_norm", "mlp_post_norm"),
    "parallel": (),
    "parallel_two": ("mlp_norm",),
}


def norm_parts(layer: Layer) -> tuple[str, ...]:
    """The names of the layer's norms, around its mixers and around its feed-forward."""
    places = layer.norms.places
    return (_ATTENTION[places] if layer.mixers else ()) + (_MLP[places] if layer.feed_forward is not None else ())


def norm_parameters(layer: Layer, hidden_size: int) -> Iterator[Parameter]:
    """Their weights and biases."""
    for part in norm_parts(layer):
        yield from norm(part, layer.norms.kind, hidden_size)


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
