"""DeepSeek V4 and V4.1, whose vectors are compressed, and Hunyuan 4: several residual streams (hyper-connections)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.common import after_dense_ones, decoder, mlp, norms, rope, routed, whole
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.latent.parts import head_shapes, indexer, latent_attention, stream_shapes
from kvplan_engine.checkpoints.families.mixtures.parts import grouped_sigmoid
from kvplan_engine.checkpoints.families.wrappers.multimodal import text_of
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.description.mixers import CompressedAttention, Kept, LatentAttention, Rope
from kvplan_engine.description.model import ModelDescription, Shape

_INDEXED_RATIO = 4
"""Layers that keep one vector in four choose among them; of those with one in 128, all are read."""

_RATES = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}


# DeepSeek V4: compressed attention, four residual streams (hyper-connections), first layers that route by a hash.


def read_deepseek_v4(config: dict[str, Any]) -> ModelDescription:
    """transformers: DeepseekV4Model."""
    mixers = [_deepseek_v4_attention(config, ratio) for ratio in _ratios(config)]
    parts = [_deepseek_v4_mixture(config, hashed) for hashed in _hashed_layers(config)]
    return decoder(config, norms(config), mixers, parts, shapes=stream_shapes(config), others=head_shapes(config))


def _ratios(config: dict[str, Any]) -> list[int | None]:
    """``compress_ratios``, with 0 for the window alone; the list goes on with the layers of multi-token prediction.

    transformers 5 writes ``layer_types`` instead, and ``compress_rates`` of the kinds that compress.
    """
    number = int(config["num_hidden_layers"])
    if config.get("compress_ratios") is None and config.get("layer_types") is not None:
        rates = {"sliding_attention": 0, **_RATES, **(config.get("compress_rates") or {})}
        return [int(rates[kind]) or None for kind in config["layer_types"]]
    return [int(ratio) or None for ratio in config["compress_ratios"][:number]]


def _hashed_layers(config: dict[str, Any]) -> list[bool]:
    kinds = config.get("mlp_layer_types")
    if kinds is not None and "num_hash_layers" not in config:
        return [kind == "hash_moe" for kind in kinds]
    number, hashed = int(config["num_hidden_layers"]), int(config.get("num_hash_layers", 3))
    return [index < hashed for index in range(number)]


def _deepseek_v4_attention(config: dict[str, Any], ratio: int | None) -> CompressedAttention:
    return CompressedAttention(
        num_heads=int(config["num_attention_heads"]),
        head_size=int(config.get("head_dim", 512)),
        kept=Kept("window", int(config.get("sliding_window", 128))),
        ratio=ratio,
        indexer=indexer(config) if ratio == _INDEXED_RATIO else None,
        rope=_rope(config, ratio),
        q_rank=int(config["q_lora_rank"]),
        output_groups=int(config["o_groups"]),
        output_rank=int(config["o_lora_rank"]),
    )


def _rope(config: dict[str, Any], ratio: int | None) -> Rope:
    """Layers that compress have a base of their own, and the scaling; the others have neither."""
    size = int(config.get("qk_rope_head_dim", 64))
    kinds = config.get("rope_parameters") or {}
    if "compress" in kinds:  # as transformers 5 writes them
        parameters = kinds["main" if ratio is None else "compress"]
        return rope({**config, "rope_parameters": parameters}, size, rotary_size=size, neighbours=True)
    if ratio is None:
        return Rope(float(config.get("rope_theta", 10000.0)), size, neighbours=True)
    own = {**config, "rope_theta": config.get("compress_rope_theta", 160000.0)}
    return rope(own, size, rotary_size=size, neighbours=True)


def _deepseek_v4_mixture(config: dict[str, Any], hashed: bool) -> Mixture:
    """``hashed``: a table says which experts a token id takes, so no correction chooses them."""
    limit = float(config.get("swiglu_limit", 10.0))
    expert = mlp(config, whole(config, "moe_intermediate_size"), bias=False, limit=limit)
    return _by_square_root(config, whole(config, "n_shared_experts", default=0), correction=not hashed, expert=expert)


def _by_square_root(config: dict[str, Any], shared: int, **others: Any) -> Mixture:
    """Experts that the square root of a softplus chooses. shared: how many experts all tokens take."""
    return routed(
        config,
        "n_routed_experts",
        whole(config, "moe_intermediate_size") * shared,
        scoring="sqrt_softplus",
        normalised=bool(config.get("norm_topk_prob", True)),
        scale=float(config.get("routed_scaling_factor", 1.5)),
        **others,
    )


# DeepSeek V4.1: few layers keep compressed vectors, which the others read; tables of n-grams. It only counts.


def read_deepseek_v41(config: dict[str, Any]) -> ModelDescription:
    """Reads a config as vLLM does (vllm/models/deepseek_v41)."""
    text = {**text_of(config), "architectures": config["architectures"]}
    mixture = _by_square_root(text, whole(text, "n_shared_experts", default=1), correction=True)
    tables = dict(zip(text.get("engram_layer_ids") or (), text.get("engram_num_embeddings") or (), strict=True))
    ratios = text["compress_ratios"][: whole(text, "num_hidden_layers")]
    mixers = [_deepseek_v41_attention(text, index, int(ratio)) for index, ratio in enumerate(ratios)]
    always = (*stream_shapes(text), Shape("router.images", (mixture.num_experts,)))
    shapes = [(*always, *_compressing(text, mixer)) for mixer in mixers]
    for index in set(range(len(mixers))) & set(tables):
        shapes[index] += _engram(text, int(tables[index]))
    return decoder(text, norms(text), mixers, mixture, shapes=shapes)


def _deepseek_v41_attention(config: dict[str, Any], index: int, ratio: int) -> CompressedAttention:
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


# Hunyuan 4: gated latent attention with sinks, to tokens that an index chose; experts; several residual streams.


def read_hunyuan4(config: dict[str, Any]) -> ModelDescription:
    """Read it as vLLM does. What gates the streams, and the sinks, only count."""
    streams = bool(config.get("enable_ihc", True))
    shapes = stream_shapes(config, mixes=False) if streams else ()
    if config.get("learnable_sink", True):
        shapes += (Shape("sinks", (int(config["num_attention_heads"]),)),)
    mixers = [
        _hunyuan4_attention(config, chooses=_chooses(config, index), attends_to_all=kind == "full_attention")
        for index, kind in enumerate(config["layer_types"])
    ]
    mixture, sparse, dense = grouped_sigmoid(config, shared=1), after_dense_ones(config, 1), mlp(config, bias=False)
    ends = head_shapes(config) if streams else ()
    return decoder(config, norms(config), mixers, mixture, sparse, dense=dense, shapes=shapes, others=ends)


def _hunyuan4_attention(config: dict[str, Any], *, chooses: bool, attends_to_all: bool) -> LatentAttention:
    if attends_to_all:
        return latent_attention(config, gate=_gate(config))
    index = indexer(config) if chooses else None
    return latent_attention(config, gate=_gate(config), indexer=index, sparse_top_k=int(config["index_topk"]))


def _gate(config: dict[str, Any]) -> int:
    if not config.get("gated_mla", True):
        return 0
    heads = int(config["num_attention_heads"])
    return heads if config.get("gating_type") == "headwise" else heads * int(config["v_head_dim"])


def _chooses(config: dict[str, Any], index: int) -> bool:
    kinds = config.get("indexer_types")
    return index in (0, 1) or index % 4 == 1 if kinds is None else bool(kinds[index] == "full")


COMPRESSED = (
    Family(("HYV4ForCausalLM",), read_hunyuan4),
    Family(("DeepseekV41ForCausalLM",), read_deepseek_v41),
    Family(("DeepseekV4ForCausalLM", "DeepseekV4ForConditionalGeneration"), read_deepseek_v4),
)
