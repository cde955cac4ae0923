"""Inkling: windows and full layers, in each convolutions beside attention. It is described and not run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.common import attention, mlp, model, norms
from kvplan_engine.checkpoints.families.wrappers.multimodal import text_of
from kvplan_engine.checkpoints.fields import window
from kvplan_engine.description.feed_forward import FeedForward, Mixture
from kvplan_engine.description.mixers import FULL, Attention, State
from kvplan_engine.description.model import Layer, ModelDescription, Shape


def read_inkling(config: dict[str, Any]) -> ModelDescription:
    """Read it as vLLM does (vllm/models/inkling/configs.py): the published keys, or those of transformers."""
    text = _uniform({**text_of(config), "architectures": config["architectures"]})
    hidden, norm, dense = int(text["hidden_size"]), norms(text), int(text.get("dense_mlp_idx", 0))
    layers = []
    for index in range(int(text["num_hidden_layers"])):
        is_local = index in text["local_layer_ids"]
        mixer = _attention(text, is_local)
        kv_size = mixer.num_kv_heads * (mixer.key_size + mixer.value_size)
        streams = State("stream_conv", kv_size + 2 * hidden, text["kernel"], ())
        part = _mixture(text) if index >= dense else mlp(text, int(text["dense_intermediate_size"]), bias=False)
        layers.append(Layer((mixer, streams), part, norm, others=_others(text, mixer, part, is_local)))
    found = replace(model(text, layers, norm, max_positions=None), tie_word_embeddings=False)
    embedding_norm = (Shape("embed_norm", (hidden,)),) if text.get("use_embed_norm", False) else ()
    return replace(found, others=embedding_norm)


def _uniform(text: dict[str, Any]) -> dict[str, Any]:
    if text.get("layer_types"):
        text = _from_transformers(text)
    dense = text.get("dense_intermediate_size")
    experts = text["intermediate_size"] if dense else text.get("moe_intermediate_size") or text["intermediate_size"]
    return {
        **text,
        "kernel": int(text.get("sconv_kernel_size") or text.get("conv_kernel_size") or 4),
        "vocab_size": text.get("padded_vocab_size") or text["vocab_size"],
        "dense_intermediate_size": dense or text["intermediate_size"],
        "intermediate_size": experts,
        "max_position_embeddings": text.get("max_position_embeddings") or text.get("model_max_length"),
        "attention_bias": False,
    }


def _from_transformers(text: dict[str, Any]) -> dict[str, Any]:
    """transformers 5 writes kinds of layers, and its class has every part that the published keys turn on."""
    always = {"use_embed_norm": True, "use_global_scale": True, "use_gate_bias": True}
    kinds, parts = enumerate(text["layer_types"]), list(text.get("mlp_layer_types") or ())
    own = {
        "local_layer_ids": [index for index, kind in kinds if kind == "hybrid_sliding"],
        "dense_mlp_idx": text.get("dense_mlp_idx", parts.count("dense")),
    }
    return {**always, **text, **own}


def _attention(text: dict[str, Any], is_local: bool) -> Attention:
    own = {key: text.get(f"swa_{key}") for key in ("num_attention_heads", "num_key_value_heads", "head_dim")}
    keys = {**text, **{key: value for key, value in own.items() if is_local and value is not None}}
    kept = window(text.get("sliding_window_size", 512)) if is_local else FULL
    return attention(keys, kept=kept, head_norm="head", rope=None)


def _mixture(text: dict[str, Any]) -> Mixture:
    """Its router also chooses how much the shared experts count."""
    size, shared = int(text["intermediate_size"]), int(text["n_shared_experts"])
    return Mixture(
        int(text["n_routed_experts"]),
        int(text["num_experts_per_tok"]),
        mlp(text, size, bias=False),
        scoring="sigmoid",
        correction=False,
        shared=mlp(text, size * shared, bias=False),
    )


def _others(text: dict[str, Any], mixer: Attention, part: FeedForward, is_local: bool) -> tuple[Shape, ...]:
    """What a token's distance to another adds to a score, and what the router has for shared experts."""
    rel, hidden = int(text.get("d_rel", 16)), int(text["hidden_size"])
    extent = int(text.get("sliding_window_size", 512) if is_local else text.get("rel_extent", 1024))
    shapes = [Shape("rel", (mixer.num_heads * rel, hidden)), Shape("rel_logits", (rel, extent))]
    if isinstance(part, Mixture):
        shapes.append(Shape("router.shared", (int(text["n_shared_experts"]), hidden)))
        if text.get("use_gate_bias", False):
            shapes.append(Shape("router.bias", (part.num_experts,)))
    if text.get("use_global_scale", False):
        shapes.append(Shape("global_scale", (1,)))
    return tuple(shapes)
