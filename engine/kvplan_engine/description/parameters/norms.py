"""A layer's norms, by where they stand."""

from __future__ import annotations

from collections.abc import Iterator

from kvplan_engine.description.model import Layer
from kvplan_engine.description.norms import NormPlaces
from kvplan_engine.description.parameters.parameter import Parameter, norm

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
