"""Decoders that attend to an encoder as well: T5, Whisper, Llama 3.2 Vision. The encoder itself is left out."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import attention, decoder, mlp, norms
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.fields import activation, head_size, kv_heads
from kvplan_engine.description.feed_forward import Mlp
from kvplan_engine.description.mixers import Attention, CrossAttention
from kvplan_engine.description.model import ModelDescription, Shape
from kvplan_engine.description.norms import Norms

_IMAGE_ROWS = 8
"""Rows of the embedding beyond the vocabulary, for the image's own token."""


# Llama 3.2 Vision: Llama with layers in between that attend to the image's tokens instead of the text's.


def read_mllama(config: dict[str, Any]) -> ModelDescription:
    """transformers: MllamaTextModel, of the ``text_config`` in ``config``, and what its vision tower gives."""
    text = {**config["text_config"], "architectures": config["architectures"]}
    text.setdefault("dtype", text.get("torch_dtype") or config.get("dtype") or config.get("torch_dtype"))
    plain = attention(text, qkv_bias=False, output_bias=False)
    cross = _cross_attention(text, config.get("vision_config") or {})
    gates = (Shape("cross_attn_attn_gate", (1,)), Shape("cross_attn_mlp_gate", (1,)))
    named = set(text.get("cross_attention_layers") or (3, 8, 13, 18, 23, 28, 33, 38))
    crossing = [index in named for index in range(int(text["num_hidden_layers"]))]
    return decoder(
        text,
        norms(text),
        [cross if each else plain for each in crossing],
        mlp(text, bias=False),
        shapes=[gates if each else () for each in crossing],
        max_positions=131072,
        others=(Shape("embedding.image_rows", (_IMAGE_ROWS, int(text["hidden_size"]))),),
    )


def _cross_attention(text: dict[str, Any], vision: dict[str, Any]) -> CrossAttention:
    """One image: tiles of 14 x 14 patches and a class token each, at most ``max_num_tiles`` of them."""
    heads, size = int(text["num_attention_heads"]), head_size(text)
    patches = (int(vision.get("image_size", 448)) // int(vision.get("patch_size", 14))) ** 2 + 1
    tokens = int(vision.get("max_num_tiles", 4)) * patches
    return CrossAttention(heads, kv_heads(text, heads), size, size, encoder_tokens=tokens, head_norm=True)


# T5, mT5, UMT5: the decoder of an encoder-decoder, with relative positions as a bias of the scores.


def read_t5(config: dict[str, Any]) -> ModelDescription:
    """transformers: T5Stack as a decoder, MT5, UMT5. UMT5 has a relative bias in each layer, the others in the first.

    Scores are not scaled. ``n_positions`` is the length of the training data and limits nothing.
    """
    hidden, heads, size = int(config["d_model"]), int(config["num_heads"]), int(config["d_kv"])
    cross_norm = Shape("cross_attention_norm", (hidden,))
    bias = Shape("relative_attention_bias", (_buckets(config), heads))
    number = int(config.get("num_decoder_layers") or config["num_layers"])
    in_all = config["architectures"][0].startswith("UMT5")
    return decoder(
        {**config, "hidden_size": hidden, "max_position_embeddings": None},
        norms(config, key="layer_norm_epsilon"),
        (Attention(heads, heads, size, size, scale=1.0), CrossAttention(heads, heads, size, size)),
        _mlp(config),
        shapes=[(cross_norm, bias) if in_all or index == 0 else (cross_norm,) for index in range(number)],
        max_positions=None,
        tied=True,
        others=_encoder_shapes(config, num_biases=int(config["num_layers"]) if in_all else 1),
    )


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


def _mlp(config: dict[str, Any]) -> Mlp:
    """``feed_forward_proj`` is an activation, behind "gated-" where it has a gate; a gated GELU is the tanh formula."""
    *gate, name = str(config.get("feed_forward_proj", "relu")).split("-")
    act = activation("gelu_new" if gate and name == "gelu" else name)
    return Mlp(int(config["d_ff"]), act, gated=bool(gate))


# Whisper's decoder: attention over its own tokens and over the audio encoder's 1,500.


def read_whisper(config: dict[str, Any]) -> ModelDescription:
    """transformers: WhisperDecoder. Queries, values and outputs have biases, keys have none."""
    hidden, heads = int(config["d_model"]), int(config["decoder_attention_heads"])
    size = hidden // heads
    tokens = int(config.get("max_source_positions", 1500))
    mixers = (
        Attention(heads, heads, size, size, scale=size**-0.5, output_bias=True),
        CrossAttention(heads, heads, size, size, encoder_tokens=tokens, bias=True),
    )
    names = ("query.bias", "value.bias", "cross_attention_norm.weight", "cross_attention_norm.bias")
    act = activation(config.get("activation_function", "gelu"))
    feed_forward = Mlp(int(config["decoder_ffn_dim"]), act, gated=False, bias=True)
    positions = int(config.get("max_target_positions", 448))
    own = {"hidden_size": hidden, "num_hidden_layers": config["decoder_layers"], "max_position_embeddings": positions}
    return decoder(
        {**config, **own},
        Norms("layer", 1e-5),
        mixers,
        feed_forward,
        shapes=tuple(Shape(name, (hidden,)) for name in names),
        tied=True,
        learned_positions=positions,
        embedding_scale=hidden**0.5 if config.get("scale_embedding", False) else 1.0,
    )


ENCODER = (
    Family(("T5ForConditionalGeneration", "MT5ForConditionalGeneration", "UMT5ForConditionalGeneration"), read_t5),
    Family(("WhisperForConditionalGeneration",), read_whisper),
    Family(("MllamaForConditionalGeneration",), read_mllama),
)
