"""Layers for multi-token prediction: a checkpoint's own drafter, named apart from the language model."""

from __future__ import annotations

from dataclasses import replace

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.parts import linear, norms
from kvplan.catalog.spec import ExtraModule, LayerSpec
from kvplan.catalog.tensors import Tensor, count_elements

MULTI_TOKEN_KEYS = ("num_nextn_predict_layers", "num_mtp_modules")


def multi_token_layers(
    view: ConfigView,
    layer: LayerSpec,
    hidden: int,
    *,
    keys: tuple[str, ...] = MULTI_TOKEN_KEYS,
    joint: tuple[Tensor, ...] | None = None,
    default: int = 0,
) -> tuple[ExtraModule, ...]:
    """DeepSeek V3's multi-token-prediction layers: a layer like the last one, three norms, a projection of both inputs.

    The embedding and the head are those of the model, though the checkpoint repeats them. ``keys``: how the config
    calls their number, ``default``: where it is silent; ``joint``: how embedding and hidden state are joined, by
    default one matrix over both.
    """
    return repeated_layer(view.integer(*keys, default=default, minimum=0, maximum=64), layer, hidden, joint)


def repeated_layer(
    count: int, layer: LayerSpec, hidden: int, joint: tuple[Tensor, ...] | None = None
) -> tuple[ExtraModule, ...]:
    """``count`` such layers that are alike; none where it is 0."""
    if not count:
        return ()
    joint = linear("eh_proj", hidden, 2 * hidden) if joint is None else joint
    whole = replace(layer, tensors=layer.tensors + norms(3, hidden) + joint)
    tensors = whole.all_tensors
    return (ExtraModule("mtp", "multi_token_prediction", count * count_elements(tensors), count, tensors, whole),)
