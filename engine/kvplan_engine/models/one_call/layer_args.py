"""Layers as the CPU kernels' call takes them, and which it takes."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import pointer

from kvplan_engine.description.feed_forward import Mixture, Mlp
from kvplan_engine.description.model import Layer
from kvplan_engine.description.uniform import attention_of
from kvplan_engine.kernels.cpu.step_args import LayerArgs, PackedLinearArgs
from kvplan_engine.layers.norm import Norm
from kvplan_engine.models.decoder_layer import DecoderLayer
from kvplan_engine.models.feed_forwards.mixture_part import MixturePart
from kvplan_engine.models.feed_forwards.mlp_part import MlpPart


def all_layer_args(layers: Sequence[DecoderLayer], final_norm: Norm) -> list[LayerArgs] | None:
    """All ``layers`` but for what depends on the pool; None where the kernels lack a part of one.

    Valid while the layers are. The mixtures among them share a step's memory, so these must be of one description.
    """
    mixtures = {layer.description.feed_forward for layer in layers if isinstance(layer.feed_forward, MixturePart)}
    if len(mixtures) > 1 or not all(_is_taken(layer.description) for layer in layers):
        return None
    next_norms = [layer.attention_norm for layer in layers[1:]] + [final_norm]
    args = [_layer_args(layer, norm) for layer, norm in zip(layers, next_norms, strict=True)]
    complete = [each for each in args if each is not None]
    return complete if len(complete) == len(args) else None


def _is_taken(layer: Layer) -> bool:
    """Whether the call has what the layer is made of."""
    attention = attention_of(layer)
    return (
        attention is not None
        and attention.head_norm in ("none", "head")
        and not attention.norm_after_rope
        and attention.gate == "none"
        and attention.clip is attention.growing_scale is None
        and not (attention.value_is_key or attention.value_norm)
        and layer.end is None
        and isinstance(layer.feed_forward, (Mlp, Mixture))
        and layer.norms.places in ("before", "both")
        and layer.residual_scale == 1.0
    )


def _layer_args(layer: DecoderLayer, next_norm: Norm | None) -> LayerArgs | None:
    """One layer; None where the kernels lack a product, the activation or the mixture."""
    attention, products = layer.attention, _products(layer)
    if attention is None or products is None or layer.mlp_norm is None or next_norm is None:
        return None
    norms: dict[str, Norm | None] = {"mlp_norm": layer.mlp_norm, "next_norm": next_norm}
    norms |= {"query_norm": attention.query_norm, "key_norm": attention.key_norm}
    norms |= {"attention_post_norm": layer.attention_post_norm, "mlp_post_norm": layer.mlp_post_norm}
    storage = layer.mlp_norm.layer_args().storage
    for product in products.values():
        product.storage = storage  # a quantised weight is multiplied with x of either
    args = LayerArgs(**products, **{name: norm.layer_args() for name, norm in norms.items() if norm is not None})
    if isinstance(layer.feed_forward, MixturePart):
        mixture = layer.feed_forward.layer_args
        if mixture is None:
            return None
        args.mixture = pointer(mixture)
    return args


def _products(layer: DecoderLayer) -> dict[str, PackedLinearArgs] | None:
    """The layer's products by their names in the call; None where one is not the kernels'."""
    attention, mlp = layer.attention, layer.feed_forward
    if attention is None:
        return None
    projections = {"qkv": attention.qkv, "output": attention.output}
    if isinstance(mlp, MlpPart):
        if mlp.up.activation is None:
            return None
        projections |= {"up": mlp.up, "down": mlp.down}
    found = {name: args for name, projection in projections.items() if (args := projection.layer_args) is not None}
    return found if len(found) == len(projections) else None
