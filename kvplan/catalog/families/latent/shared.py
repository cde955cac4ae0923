"""DeepSeek V4.1: a window in each layer; few layers compress what is older, and the others read their vectors.

Facts of vLLM 0.33 (vllm/models/deepseek_v41: attention.py, compressor.py, common/engram.py, nvidia/model.py and
dspark.py, and transformers_utils/configs/deepseek_v41.py); transformers 5.24 has no class of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.families.common import Body, Sizes, decoder_body, read_rope, read_sizes
from kvplan.catalog.families.latent.compressed import CompressedSizes, read_compressed_sizes
from kvplan.catalog.families.positions import with_ropes
from kvplan.catalog.families.wrappers.multimodal import text_section
from kvplan.catalog.parts import MoeTraits, hyper_connections, linear, mixture, norm, norms
from kvplan.catalog.spec import CompressedAttention, ExtraModule, LayerSpec, MoeFeedForward, RopeSpec
from kvplan.catalog.tensors import Tensor, count_elements

_WINDOW_BLOCK = 32
_PUBLISHED: dict[str, object] = {
    "compress_ratios": [0] * 2 + [2] * 18 + [1] * 20 + [0] * 3,
    "kv_source_layer_ids": [2, 8, 14, 20],
    "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36],
    "index_n_heads": 32,
    "index_head_dim": 128,
    "index_topk": 512,
    "engram_head_dim": 256,
    "engram_num_embeddings": [384_006_168, 384_016_682],
}
"""Keys of DeepSeek-V4.1-Flash, the only one there is, for a config that quotes it in part."""
_PUBLISHED_LAYERS = 40
_TABLE_BYTES = 1 + 1 / 32
"""Bytes of an element of an Engram table: fp8, and an exponent of 8 bits for every 32."""


@dataclass(frozen=True, slots=True)
class _SharedVectors:
    """The sizes of the attention that all layers share, and which of them keep or choose vectors."""

    attention: CompressedSizes
    kv_sources: frozenset[int]
    index_sources: frozenset[int]


def read_deepseek_v41(view: ConfigView) -> Body:
    """DeepSeek V4.1: ``compress_ratios`` says per layer 0 (window alone), 1 or 2 tokens in a vector."""
    text = _completed(text_section(view) or view)
    sizes = read_sizes(text, head_default=512)
    ratios = text.integers("compress_ratios", minimum=0) or []
    if len(ratios) < sizes.layers or set(ratios) - {0, 1, 2}:
        raise text.reject("compress_ratios", f"0, 1 or 2 for each of {sizes.layers} layers")
    shared = _read_shared(text, sizes)
    streams = text.integer("hc_mult", default=4, maximum=64)
    rest = norms(2, sizes.hidden) + hyper_connections(sizes.hidden, streams)
    routed = _mixture(text, sizes.hidden, text.integer("n_routed_experts"), text.integer("num_experts_per_tok"))
    engrams = _engrams(text, sizes.hidden, streams)
    known: dict[tuple[object, ...], LayerSpec] = {}
    layers = []
    for index in range(sizes.layers):
        kind = (ratios[index], index in shared.kv_sources, index in shared.index_sources, engrams.get(index))
        if kind not in known:
            others = rest + engrams.get(index, ())
            known[kind] = LayerSpec(_attention(text, sizes, shared, index, ratios[index]), None, routed, others)
        layers.append(known[kind])
    extras = (*_vision(view, sizes.hidden), *_drafting_layers(text, sizes, shared, rest))
    body = decoder_body(text, sizes, layers, extras=extras, residual_streams=streams)
    # ``compress_rope_theta`` and the scaling are of layers that read compressed vectors.
    size = text.integer("qk_rope_head_dim", default=64)
    plain = replace(read_rope(text, size), rotary_size=size)
    scaled = replace(plain, theta=text.number("compress_rope_theta", default=160_000.0))
    return with_ropes(body, tuple(scaled if ratio else RopeSpec(plain.theta, size) for ratio in ratios[: sizes.layers]))


def _completed(text: ConfigView) -> ConfigView:
    """Return the config with the published one's keys where it lacks them; each such key is an assumption."""
    missing = [key for key in _PUBLISHED if not text.has(key)]
    if not missing or text.config.get("num_hidden_layers") != _PUBLISHED_LAYERS:
        return text
    if not text.has("engram_layer_ids"):
        missing = [key for key in missing if not key.startswith("engram")]
    for key in missing:
        text.assume(f"'{text.path}{key}' is not in the config: that of DeepSeek-V4.1-Flash.")
    return text.changed({key: _PUBLISHED[key] for key in missing})


def _read_shared(text: ConfigView, sizes: Sizes) -> _SharedVectors:
    sources = {key: text.integers(key) or [] for key in ("kv_source_layer_ids", "index_source_layer_ids")}
    for key, listed in sources.items():
        if any(index >= sizes.layers for index in listed):
            raise text.reject(key, f"numbers of layers below {sizes.layers}")
    return _SharedVectors(
        attention=read_compressed_sizes(text, sizes),
        kv_sources=frozenset(sources["kv_source_layer_ids"]),
        index_sources=frozenset(sources["index_source_layer_ids"]),
    )


def _attention(text: ConfigView, sizes: Sizes, shared: _SharedVectors, index: int, ratio: int) -> CompressedAttention:
    name, hidden, head, parts = "self_attn", sizes.hidden, sizes.head, shared.attention
    tensors = linear(f"{name}.wq_a", parts.q_lora, hidden) + norm(f"{name}.q_norm", parts.q_lora)
    tensors += linear(f"{name}.wq_b", sizes.heads * head, parts.q_lora, "column")
    tensors += linear(f"{name}.wkv", head, hidden) + norm(f"{name}.kv_norm", head)
    tensors += linear(f"{name}.wo_a", parts.o_groups * parts.o_lora, sizes.heads * head // parts.o_groups, "column")
    tensors += linear(f"{name}.wo_b", hidden, parts.o_groups * parts.o_lora, "row")
    tensors += (Tensor(f"{name}.attn_sink", (sizes.heads,), "state", "column"),)
    if not ratio:
        return CompressedAttention(sizes.heads, head, parts.window, window_block=_WINDOW_BLOCK, tensors=tensors)
    if not shared.kv_sources or min(shared.kv_sources) > index:
        raise text.reject("kv_source_layer_ids", f"a layer up to {index}, which reads compressed vectors")
    keeps, chooses = index in shared.kv_sources, index in shared.index_sources
    if keeps and not chooses:
        raise text.reject("index_source_layer_ids", f"layer {index} among them, which has the keys")
    return CompressedAttention(
        sizes.heads,
        head,
        parts.window,
        ratio,
        parts.indexer,
        tensors + _compressing(sizes, shared, ratio, keeps=keeps, chooses=chooses),
        keeps_vectors=keeps,
        chooses=chooses,
        window_block=_WINDOW_BLOCK,
    )


def _compressing(sizes: Sizes, shared: _SharedVectors, ratio: int, *, keeps: bool, chooses: bool) -> tuple[Tensor, ...]:
    """What makes vectors and keys where a layer keeps them, and what chooses among them. A ratio of 1 has no gate."""
    found: tuple[Tensor, ...] = ()
    name, indexer = "self_attn", shared.attention.indexer
    if keeps:
        for each in ("wkv", "wgate")[: 1 if ratio == 1 else 2]:
            found += linear(f"{name}.compressor.{each}", sizes.head, sizes.hidden, role="router")
        found += norm(f"{name}.compressor.norm", sizes.head)
        found += linear(f"{name}.indexer.wk", indexer.head_size, sizes.head, role="router")
        found += norm(f"{name}.indexer.k_norm", indexer.head_size)
    if chooses:
        found += linear(f"{name}.indexer.wq_b", indexer.num_heads * indexer.head_size, shared.attention.q_lora)
        found += linear(f"{name}.indexer.weights_proj", indexer.num_heads, sizes.hidden, role="router")
    return found


def _mixture(text: ConfigView, hidden: int, experts: int, active: int) -> MoeFeedForward:
    """The router has a second correction, which tokens of images take."""
    size = text.integer("moe_intermediate_size")
    part = mixture(
        hidden,
        experts,
        active,
        size,
        shared_intermediate=size * text.integer("n_shared_experts", default=1, minimum=0),
        traits=MoeTraits(router_bias=True, shared_name="shared_experts"),
    )
    return replace(part, tensors=(*part.tensors, Tensor("mlp.gate.bias_vl", (experts,), "bias")))


def _engrams(text: ConfigView, hidden: int, streams: int) -> dict[int, tuple[Tensor, ...]]:
    """Tensors by layer: a table of n-grams' hashes, and what brings its rows into the streams.

    The table lies in the host's memory. A position has a row for each head of each length of n-gram.
    """
    layers = text.integers("engram_layer_ids") or []
    if not layers:
        return {}
    rows = text.integers("engram_num_embeddings", minimum=1) or []
    if len(rows) != len(layers):
        raise text.reject("engram_num_embeddings", f"a number of rows for each of {len(layers)} layers")
    width = text.integer("engram_head_dim")
    columns = (text.integer("engram_max_ngram_size", minimum=2) - 1) * text.integer("engram_n_heads")
    return {
        index: (
            Tensor("engram.embed", (count, width), "lookup", "vocab", stored_bytes=_TABLE_BYTES),
            *linear("engram.wkv", hidden * (streams + 1), columns * width, "column"),
            Tensor("engram.q_weight", (streams, hidden), "norm"),
            Tensor("engram.k_weight", (streams, hidden), "norm"),
        )
        for index, count in zip(layers, rows, strict=True)
    }


def _drafting_layers(
    text: ConfigView, sizes: Sizes, shared: _SharedVectors, rest: tuple[Tensor, ...]
) -> tuple[ExtraModule, ...]:
    """DSpark: layers with a window alone and fewer experts; one projection in front of them and a small head behind."""
    count = text.integer("num_nextn_predict_layers", default=0, minimum=0, maximum=64)
    if not count:
        return ()
    experts = text.integer("dspark_n_routed_experts", default=text.integer("n_routed_experts"))
    active = text.integer("dspark_num_experts_per_tok", default=text.integer("num_experts_per_tok"))
    mixer = _attention(text, sizes, shared, sizes.layers, 0)
    layer = LayerSpec(mixer, None, _mixture(text, sizes.hidden, experts, active), rest)
    rank = text.integer("dspark_markov_rank", default=256)
    targets = len(text.integers("dspark_target_layer_ids") or [0] * count)
    once = linear("main_proj", sizes.hidden, targets * sizes.hidden) + norm("main_norm", sizes.hidden)
    once += linear("markov_head.embed", sizes.vocab, rank, role="router")
    once += linear("markov_head.head", sizes.vocab, rank, role="router")
    once += linear("confidence_head.proj", 1, sizes.hidden + rank, role="router") + norm("norm", sizes.hidden)
    number = count * count_elements(layer.all_tensors) + count_elements(once)
    return (ExtraModule("mtp", "multi_token_prediction", number, count),)


def _vision(view: ConfigView, hidden: int) -> tuple[ExtraModule, ...]:
    """The tower of ``vision_config`` and the aligner (vllm/models/deepseek_v4/common/vision.py)."""
    section = view.section("vision_config")
    if section is None:
        return ()
    count, width = (
        section.layers("num_hidden_layers", default=0, minimum=0),
        section.integer("hidden_size", default=1024),
    )
    if not count:
        return ()
    inner, patch = section.integer("intermediate_size", default=2816), section.integer("patch_size", default=14)
    block = 4 * width * width + 4 * width + 3 * width * inner + 2 * width
    tower = count * block + 3 * patch * patch * width + width
    merged = section.integer("downsample_ratio", default=3) ** 2 * width
    aligner = hidden * merged + hidden * hidden
    return (ExtraModule("vision tower", "vision", tower, count), ExtraModule("projector", "projector", aligner))
