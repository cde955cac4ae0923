"""Gemma 3n: several residual streams (AltUp), an input of each layer's own, and last layers that read earlier KV."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import attention, by_period, mlp, model, norms, rope, window
from kvplan_engine.description.mixers import Attention
from kvplan_engine.description.model import Layer, LayerInputs, ModelDescription, Shape


def read_gemma3n(config: dict[str, Any]) -> ModelDescription:
    """transformers: Gemma3nTextModel. Its norms' weights are stored as they are."""
    norm = norms(config, "rms", "both")
    kinds = by_period(config, 5)
    first_shared = len(kinds) - int(config.get("num_kv_shared_layers", 15))
    others = layer_shapes(config)
    layers = [
        Layer(
            (_attention(config, kind, read_layer(kinds, index, first_shared)),),
            mlp(config, _inner(config, index), activation="gelu_tanh", bias=False),
            norm,
            others=others,
        )
        for index, kind in enumerate(kinds)
    ]
    return model(
        config,
        layers,
        norm,
        tied=True,
        embedding_scale=float(config["hidden_size"]) ** 0.5,
        logits_softcap=float(config.get("final_logit_softcapping", 30.0)),
        layer_inputs=layer_inputs(config),
        others=_streams(config),
    )


def read_layer(kinds: list[str], index: int, first_shared: int) -> int | None:
    """The layer whose keys and values layer ``index`` reads: the last unshared one of its kind."""
    if index < first_shared or first_shared <= 0:
        return None
    return max(layer for layer in range(first_shared) if kinds[layer] == kinds[index])


def layer_inputs(config: dict[str, Any]) -> LayerInputs:
    """The second embedding."""
    size = int(config.get("hidden_size_per_layer_input", 256))
    return LayerInputs(int(config.get("vocab_size_per_layer_input", 262144)), size)


def _input_shapes(config: dict[str, Any]) -> tuple[Shape, ...]:
    """What adds the layer's own input to it: a gate, a projection back, a norm."""
    hidden, size = int(config["hidden_size"]), int(config.get("hidden_size_per_layer_input", 256))
    return (
        Shape("per_layer_input_gate", (size, hidden)),
        Shape("per_layer_projection", (hidden, size)),
        Shape("post_per_layer_input_norm", (hidden,)),
    )


def layer_shapes(config: dict[str, Any]) -> tuple[Shape, ...]:
    """AltUp's mixing of the streams, and the low-rank residual block beside attention (LAuReL)."""
    hidden, streams = int(config["hidden_size"]), int(config.get("altup_num_inputs", 4))
    rank = int(config.get("laurel_rank", 64))
    return (
        Shape("altup.correct_output_scale", (hidden,)),
        Shape("altup.correction_coefs", (streams, streams)),
        Shape("altup.prediction_coefs", (streams**2, streams)),
        Shape("altup.modality_router", (streams, hidden)),
        Shape("altup.router_norm", (hidden,)),
        Shape("laurel.linear_left", (rank, hidden)),
        Shape("laurel.linear_right", (hidden, rank)),
        Shape("laurel.post_laurel_norm", (hidden,)),
        *_input_shapes(config),
    )


def _streams(config: dict[str, Any]) -> tuple[Shape, ...]:
    hidden, further = int(config["hidden_size"]), int(config.get("altup_num_inputs", 4)) - 1
    return (
        Shape("altup_projections", (further, hidden, hidden)),
        Shape("altup_unembed_projections", (further, hidden, hidden)),
    )


def _inner(config: dict[str, Any], index: int) -> int:
    size = config.get("intermediate_size", 16384)
    return int(size[index] if isinstance(size, list) else size)


def _attention(config: dict[str, Any], kind: str, reads_layer: int | None) -> Attention:
    size = int(config.get("head_dim", 256))
    return attention(
        config,
        kept=window(config, kind, 512),
        size=size,
        rope=rope(config, size, kind, theta=1000000.0 if kind == "full_attention" else 10000.0),
        scale=1.0,
        head_norm="head",
        reads_layer=reads_layer,
    )
