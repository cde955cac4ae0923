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


def norm_parameters(layer: Layer, hidden_size: int) -> Iterator[Parameter]:
    """The norms around a layer's mixers and around its feed-forward."""
    places = layer.norms.places
    parts = (_ATTENTION[places] if layer.mixers else ()) + (_MLP[places] if layer.feed_forward is not None else ())
    for part in parts:
        yield from norm(part, layer.norms.kind, hidden_size)
