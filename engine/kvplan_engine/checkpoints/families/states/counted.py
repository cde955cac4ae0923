"""Qwen 4, GLM 5.3 Flash, Inkling: they only count."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice
from math import isqrt
from typing import Any

from kvplan_engine.checkpoints.families.common import (
    after_dense_ones,
    attention,
    by_period,
    decoder,
    mlp,
    norms,
    routed,
    whole,
)
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.latent.parts import indexer, latent_attention, stream_shapes
from kvplan_engine.checkpoints.families.mixtures.parts import grouped_sigmoid
from kvplan_engine.checkpoints.families.states.parts import gated_delta, gated_mixture, kimi_delta_by_keys
from kvplan_engine.checkpoints.families.wrappers.multimodal import text_of
from kvplan_engine.checkpoints.fields import window
from kvplan_engine.description.feed_forward import FeedForward, Mixture
from kvplan_engine.description.mixers import FULL, Attention, Indexer, LatentAttention, Mixer, State
from kvplan_engine.description.model import ModelDescription, Shape

_REFUSED = ("tie_word_embeddings", "attention_bias")


# Qwen 4: Gated DeltaNet, sparse attention by keys of groups, hyper-connections, tables of n-grams. It only counts.


def read_qwen4(config: dict[str, Any]) -> ModelDescription:
    """transformers: Qwen4ExpTextModel. Norms are those of the connections, none of a block's own."""
    refused = next((key for key in _REFUSED if config.get(key)), None)
    if refused is not None:
        raise ValueError(f"it has {refused}")
    none = norms(config, "rms_none")
    state, mixer, mixture = gated_delta(config), _qwen4_attention(config), gated_mixture(config)
    connections = (*_connection(config, "attention_connection"), *_connection(config, "mlp_connection"))
    lookups = dict(zip(_looking_up(config), _table_rows(config), strict=False))
    kinds = by_period(config, whole(config, "full_attention_interval", default=4), "linear_attention")
    mixers: list[tuple[Mixer, ...]] = [(state if kind == "linear_attention" else mixer,) for kind in kinds]
    shapes = [connections] * len(kinds)
    for index, rows in lookups.items():
        mixers[index] = (*mixers[index], _convolution(config))
        shapes[index] = (*connections, *_lookup(config, rows))
    last = _connection(config, "last_connection", injects=False)
    return decoder(config, none, mixers, mixture, shapes=shapes, max_positions=32768, others=last)


def _qwen4_attention(config: dict[str, Any]) -> Attention:
    size = whole(config, "indexer_head_dim")
    found = attention(config, size=whole(config, "head_dim", default=256), head_norm="head", gate="element")
    group = whole(config, "indexer_compress_ratio")
    index = Indexer(
        whole(config, "indexer_n_heads"), size, whole(config, "indexer_budget"), pool=group, key_dtype="model"
    )
    return replace(found, head_norm_kind="rms_plus_one", indexer=index)


def _wide(config: dict[str, Any]) -> int:
    """Elements of all residual streams."""
    return whole(config, "hc_count", default=4) * int(config["hidden_size"])


def _connection(config: dict[str, Any], name: str, *, injects: bool = True) -> tuple[Shape, ...]:
    """How a block's input is made of the streams and, where it ``injects``, what each of them gets of its output."""
    wide, rank = _wide(config), whole(config, "hc_lowrank", default=320)
    sizes = {"norm": (wide,), "down": (rank, wide), "up": (wide, rank)}
    sizes |= {"inject": (whole(config, "hc_count", default=4), wide)} if injects else {}
    return tuple(Shape(f"{name}.{part}", each) for part, each in sizes.items())


def _looking_up(config: dict[str, Any]) -> list[int]:
    return sorted({int(number) - 1 for number in config.get("ple_layer_ids") or ()})


def _num_tables(config: dict[str, Any]) -> int:
    return (whole(config, "ngram_size", default=3) - 1) * whole(config, "heads_per_ngram", default=8)


def _table_rows(config: dict[str, Any]) -> Iterator[int]:
    """Rows of one layer's tables after the other's: each table has a prime number of rows, the next one every time."""
    base = whole(config, "ngram_vocab_size_base", default=20_000_000)
    multiple = whole(config, "make_ngram_vocab_size_divisible_by", default=128)
    primes = (number for number in count(max(base, 2)) if all(number % each for each in range(2, isqrt(number) + 1)))
    while True:
        yield -(-sum(islice(primes, _num_tables(config))) // multiple) * multiple


def _width(config: dict[str, Any]) -> int:
    return whole(config, "ple_embed_dim", "hidden_size")


def _lookup(config: dict[str, Any], rows: int) -> tuple[Shape, ...]:
    wide, width = _wide(config), _width(config)
    sizes = {
        "table": (rows, width // _num_tables(config)),
        "keys": (wide, width),
        "values": (int(config["hidden_size"]), width),
        "norms": (3, wide),
    }
    return tuple(Shape(f"ngrams.{part}", each) for part, each in sizes.items())


def _convolution(config: dict[str, Any]) -> State:
    """Its taps are as many tokens apart as the longest n-gram has."""
    taps = whole(config, "ple_conv_kernel_size", default=4)
    kept = (taps - 1) * whole(config, "ngram_size", default=3)
    return State("ngram_conv", _wide(config), kept + 1, (), conv_taps=taps)


# GLM 5.3 Flash: three Kimi Delta Attentions, then latent attention without positions; experts; several streams.


def read_glm_next(config: dict[str, Any]) -> ModelDescription:
    """Read it as vLLM does. What mixes the streams only counts."""
    shapes = stream_shapes(config) if config.get("mhc", True) else ()
    kinds = by_period(config, 4, "linear_attention")
    state, latent = kimi_delta_by_keys(config), _glm_next_attention(config)
    mixers = [state if kind == "linear_attention" else latent for kind in kinds]
    mixture, sparse = grouped_sigmoid(config, shared=1), after_dense_ones(config, 3)
    mixture = replace(mixture, correction=config.get("topk_method", "noaux_tc") == "noaux_tc")
    return decoder(config, norms(config), mixers, mixture, sparse, dense=mlp(config, bias=False), shapes=shapes)


def _glm_next_attention(config: dict[str, Any]) -> LatentAttention:
    index = replace(indexer(config), pool=whole(config, "index_kpool", default=16))
    return latent_attention(config, rope=None, indexer=index, sparse_top_k=int(config["index_topk"]))


# Inkling: windows and full layers, in each convolutions beside attention. It is described and not run.


def read_inkling(config: dict[str, Any]) -> ModelDescription:
    """Read it as vLLM does (vllm/models/inkling/configs.py): the published keys, or those of transformers."""
    text = _uniform({**text_of(config), "architectures": config["architectures"]})
    hidden, first = int(text["hidden_size"]), int(text.get("dense_mlp_idx", 0))
    mixture, dense = _inkling_mixture(text), mlp(text, int(text["dense_intermediate_size"]), bias=False)
    mixers, shapes, sparse = [], [], [index >= first for index in range(int(text["num_hidden_layers"]))]
    for index, is_sparse in enumerate(sparse):
        is_local = index in text["local_layer_ids"]
        mixer = _inkling_attention(text, is_local)
        kv_size = mixer.num_kv_heads * (mixer.key_size + mixer.value_size)
        mixers.append((mixer, State("stream_conv", kv_size + 2 * hidden, text["kernel"], ())))
        shapes.append(_others(text, mixer, mixture if is_sparse else dense, is_local))
    ends = (Shape("embed_norm", (hidden,)),) if text.get("use_embed_norm", False) else ()
    keys = {**text, "tie_word_embeddings": False}
    return decoder(
        keys, norms(text), mixers, mixture, sparse, dense=dense, shapes=shapes, max_positions=None, others=ends
    )


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


def _inkling_attention(text: dict[str, Any], is_local: bool) -> Attention:
    own = {key: text.get(f"swa_{key}") for key in ("num_attention_heads", "num_key_value_heads", "head_dim")}
    keys = {**text, **{key: value for key, value in own.items() if is_local and value is not None}}
    kept = window(text.get("sliding_window_size", 512)) if is_local else FULL
    return attention(keys, kept=kept, head_norm="head", rope=None)


def _inkling_mixture(text: dict[str, Any]) -> Mixture:
    """Its router also chooses how much the shared experts count."""
    size, shared = int(text["intermediate_size"]), int(text["n_shared_experts"])
    return routed(text, "n_routed_experts", size * shared, expert=mlp(text, size, bias=False), scoring="sigmoid")


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


COUNTED = (
    Family(("Glm5NextForCausalLM",), read_glm_next),
    Family(("InklingForCausalLM", "InklingForConditionalGeneration"), read_inkling),
    Family(("Qwen4ExpForCausalLM",), read_qwen4),
)
