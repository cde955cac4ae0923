"""DeepSeek V4.1: few layers keep compressed vectors, which the others read; tables of n-grams. It only counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.common import mlp, model, norms
from kvplan_engine.checkpoints.families.latent.parts import indexer
from kvplan_engine.checkpoints.families.latent.streams import stream_shapes
from kvplan_engine.checkpoints.families.mixtures.parts import whole
from kvplan_engine.checkpoints.families.wrappers.multimodal import text_of
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.description.mixers import CompressedAttention, Kept
from kvplan_engine.description.model import Layer, ModelDescription, Shape


def read_deepseek_v41(config: dict[str, Any]) -> ModelDescription:
    """Reads a config as vLLM does (vllm/models/deepseek_v41)."""
    text = {**text_of(config), "architectures": config["architectures"]}
    number, norm = whole(text, "num_hidden_layers"), norms(text)
    mixture, streams = _mixture(text), stream_shapes(text)
    bias = Shape("router.images", (mixture.num_experts,))
    tables = dict(zip(text.get("engram_layer_ids") or (), text.get("engram_num_embeddings") or (), strict=True))
    layers = []
    for index, ratio in enumerate(text["compress_ratios"][:number]):
        mixer = _attention(text, index, int(ratio))
        others = (*streams, bias, *_compressing(text, mixer))
        if index in tables:
            others += _engram(text, int(tables[index]))
        layers.append(Layer((mixer,), mixture, norm, others=others))
    return model(text, layers, norm)


def _attention(config: dict[str, Any], index: int, ratio: int) -> CompressedAttention:
    plain = CompressedAttention(
        num_heads=whole(config, "num_attention_heads"),
        head_size=whole(config, "head_dim", default=512),
        kept=Kept("window", whole(config, "sliding_window", default=128)),
        q_rank=whole(config, "q_lora_rank"),
        output_groups=whole(config, "o_groups"),
        output_rank=whole(config, "o_lora_rank"),
    )
    if not ratio:
        return plain
    keeps, chooses = index in config["kv_source_layer_ids"], index in config["index_source_layer_ids"]
    return replace(plain, ratio=ratio, indexer=indexer(config), is_shared=True, keeps_vectors=keeps, chooses=chooses)


def _compressing(config: dict[str, Any], mixer: CompressedAttention) -> tuple[Shape, ...]:
    """What makes vectors and keys where a layer keeps them, and what chooses among them."""
    if mixer.ratio is None or mixer.indexer is None:
        return ()
    hidden, size, index = whole(config, "hidden_size"), mixer.head_size, mixer.indexer
    sizes: dict[str, tuple[int, ...]] = {}
    if mixer.keeps_vectors:
        sizes |= {"compressor.kv": (size, hidden), "compressor.norm": (size,)}
        sizes |= {} if mixer.ratio == 1 else {"compressor.gate": (size, hidden)}
        sizes |= {"indexer.key": (index.head_size, size), "indexer.key_norm": (index.head_size,)}
    if mixer.chooses:
        sizes |= {"indexer.query": (index.num_heads * index.head_size, mixer.q_rank)}
        sizes |= {"indexer.head_weights": (index.num_heads, hidden)}
    return tuple(Shape(name, shape) for name, shape in sizes.items())


def _mixture(config: dict[str, Any]) -> Mixture:
    size, shared = whole(config, "moe_intermediate_size"), whole(config, "n_shared_experts", default=1)
    return Mixture(
        whole(config, "n_routed_experts"),
        whole(config, "num_experts_per_tok"),
        mlp(config, size, bias=False),
        scoring="sqrt_softplus",
        normalised=bool(config.get("norm_topk_prob", True)),
        scale=float(config.get("routed_scaling_factor", 1.5)),
        correction=True,
        shared=mlp(config, size * shared, bias=False) if shared else None,
    )


def _engram(config: dict[str, Any], rows: int) -> tuple[Shape, ...]:
    """A table of n-grams' hashes, and what brings its rows into the streams."""
    width, hidden, streams = whole(config, "engram_head_dim"), whole(config, "hidden_size"), whole(config, "hc_mult")
    columns = (whole(config, "engram_max_ngram_size") - 1) * whole(config, "engram_n_heads")
    sizes = {
        "table": (rows, width),
        "wkv": (hidden * (streams + 1), columns * width),
        "query": (streams, hidden),
        "key": (streams, hidden),
    }
    return tuple(Shape(f"engram.{name}", shape) for name, shape in sizes.items())
