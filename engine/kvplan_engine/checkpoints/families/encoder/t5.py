"""T5, mT5, UMT5: the decoder of an encoder-decoder, with relative positions as a bias of the scores."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import model, norms
from kvplan_engine.checkpoints.fields import activation
from kvplan_engine.description.feed_forward import Mlp
from kvplan_engine.description.mixers import Attention, CrossAttention
from kvplan_engine.description.model import Layer, ModelDescription, Shape


def read_t5(config: dict[str, Any]) -> ModelDescription:
    """transformers: T5Stack as a decoder, MT5, UMT5. UMT5 has a relative bias in each layer, the others in the first.

    Scores are not scaled. ``n_positions`` is the length of the training data and limits nothing.
    """
    hidden, heads, size = int(config["d_model"]), int(config["num_heads"]), int(config["d_kv"])
    norm = norms(config, key="layer_norm_epsilon")
    mixers = (Attention(heads, heads, size, size, scale=1.0), CrossAttention(heads, heads, size, size))
    cross_norm = Shape("cross_attention_norm", (hidden,))
    bias = Shape("relative_attention_bias", (_buckets(config), heads))
    number = int(config.get("num_decoder_layers") or config["num_layers"])
    in_all = _family(config) == "UMT5"
    layers = [
        Layer(mixers, _mlp(config), norm, others=(cross_norm, bias) if in_all or index == 0 else (cross_norm,))
        for index in range(number)
    ]
    own = {"hidden_size": hidden, "max_position_embeddings": None}
    encoder = _encoder_shapes(config, num_biases=int(config["num_layers"]) if in_all else 1)
    return model({**config, **own}, layers, norm, max_positions=None, tied=True, others=encoder)


def _encoder_shapes(config: dict[str, Any], num_biases: int) -> tuple[Shape, ...]:
    """The encoder, which is served with the decoder: its layers' weights by kind, its biases and last norm."""
    hidden, heads, size = int(config["d_model"]), int(config["num_heads"]), int(config["d_kv"])
    number, feed_forward = int(config["num_layers"]), _mlp(config)
    return (
        Shape("encoder.attention", (number, 4, heads * size, hidden)),
        Shape("encoder.mlp", (number, 3 if feed_forward.gated else 2, feed_forward.size, hidden)),
        Shape("encoder.norms", (2 * number + 1, hidden)),
        Shape("encoder.relative_attention_bias", (num_biases, _buckets(config), heads)),
    )


def _buckets(config: dict[str, Any]) -> int:
    return int(config.get("relative_attention_num_buckets", 32))


def _family(config: dict[str, Any]) -> str:
    return str(config["architectures"][0]).removesuffix("ForConditionalGeneration")


def _mlp(config: dict[str, Any]) -> Mlp:
    """``feed_forward_proj`` is an activation, behind "gated-" where it has a gate; a gated GELU is the tanh formula."""
    *gate, name = str(config.get("feed_forward_proj", "relu")).split("-")
    act = activation("gelu_new" if gate and name == "gelu" else name)
    return Mlp(int(config["d_ff"]), act, gated=bool(gate))
