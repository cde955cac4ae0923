"""Llama 3.2 Vision: Llama with layers in between that attend to the image's tokens instead of the text's."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import attention, mlp, model, norms
from kvplan_engine.checkpoints.fields import head_size, kv_heads
from kvplan_engine.description.mixers import CrossAttention
from kvplan_engine.description.model import Layer, ModelDescription, Shape

_IMAGE_ROWS = 8
"""Rows of the embedding beyond the vocabulary, for the image's own token."""


def read_mllama(config: dict[str, Any]) -> ModelDescription:
    """transformers: MllamaTextModel, of the ``text_config`` in ``config``, and what its vision tower gives."""
    text = {**config["text_config"], "architectures": config["architectures"]}
    text.setdefault("dtype", text.get("torch_dtype") or config.get("dtype") or config.get("torch_dtype"))
    norm, feed_forward = norms(text), mlp(text, bias=False)
    plain = Layer((attention(text, qkv_bias=False, output_bias=False),), feed_forward, norm)
    gates = (Shape("cross_attn_attn_gate", (1,)), Shape("cross_attn_mlp_gate", (1,)))
    cross = Layer((_cross_attention(text, config.get("vision_config") or {}),), feed_forward, norm, others=gates)
    crossing = set(text.get("cross_attention_layers") or (3, 8, 13, 18, 23, 28, 33, 38))
    layers = [cross if index in crossing else plain for index in range(int(text["num_hidden_layers"]))]
    image_rows = Shape("embedding.image_rows", (_IMAGE_ROWS, int(text["hidden_size"])))
    return model(text, layers, norm, max_positions=131072, others=(image_rows,))


def _cross_attention(text: dict[str, Any], vision: dict[str, Any]) -> CrossAttention:
    """One image: tiles of 14 x 14 patches and a class token each, at most ``max_num_tiles`` of them."""
    heads, size = int(text["num_attention_heads"]), head_size(text)
    patches = (int(vision.get("image_size", 448)) // int(vision.get("patch_size", 14))) ** 2 + 1
    tokens = int(vision.get("max_num_tiles", 4)) * patches
    return CrossAttention(heads, kv_heads(text, heads), size, size, encoder_tokens=tokens, head_norm=True)
