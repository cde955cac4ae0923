"""DeepSeek V4: a short window of tokens, everything older compressed by 4 or by 128, hyper-connected residuals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.families.common import (
    Body,
    Sizes,
    decoder_body,
    layer_types,
    multi_token_layers,
    read_rope,
    read_sizes,
    repeated_layer,
)
from kvplan.catalog.families.positions import rope_of_type, with_ropes
from kvplan.catalog.families.softmax.mixtures import EXPERT_KEYS, TOP_K_KEYS
from kvplan.catalog.parts import MoeTraits, hyper_connections, hyper_head, linear, mixture, norm, norms
from kvplan.catalog.spec import CompressedAttention, ExtraModule, LayerSpec, MoeFeedForward, RopeSpec, SparseIndexer
from kvplan.catalog.tensors import Tensor

_INDEXED_RATIO = 4
"""Layers that compress by 4 choose what they read with an indexer; those that compress more read everything."""


@dataclass(frozen=True, slots=True)
class CompressedSizes:
    """The sizes of the attention that all layers share."""

    q_lora: int
    o_lora: int
    o_groups: int
    window: int
    indexer: SparseIndexer


def read_compressed_sizes(view: ConfigView, sizes: Sizes) -> CompressedSizes:
    """Return the sizes that the config names, with those of its indexer."""
    groups = view.integer("o_groups")
    if sizes.heads * sizes.head % groups:
        raise view.reject("o_groups", "a divisor of the attention's width")
    return CompressedSizes(
        q_lora=view.integer("q_lora_rank"),
        o_lora=view.integer("o_lora_rank"),
        o_groups=groups,
        window=view.integer("sliding_window", default=128),
        indexer=SparseIndexer(
            view.integer("index_n_heads"), view.integer("index_head_dim"), view.integer("index_topk")
        ),
    )


def _compression(name: str, hidden: int, head: int, ratio: int, width: int) -> tuple[Tensor, ...]:
    """What makes one vector of ``ratio`` tokens: values, gates, a bias per position, and a norm.

    The matrices are never quantized (vllm/models/deepseek_v4: compressor.py, and weights_proj in attention.py, read in
    0.25.1 to 0.33.0).
    """
    return (
        *linear(f"{name}.kv_proj", width, hidden, role="router"),
        *linear(f"{name}.gate_proj", width, hidden, role="router"),
        Tensor(f"{name}.position_bias", (ratio, width), "position"),
        *norm(f"{name}.kv_norm", head),
    )


def _attention(sizes: Sizes, parts: CompressedSizes, ratio: int) -> CompressedAttention:
    name, hidden, head = "self_attn", sizes.hidden, sizes.head
    tensors = linear(f"{name}.q_a_proj", parts.q_lora, hidden) + norm(f"{name}.q_a_norm", parts.q_lora)
    tensors += linear(f"{name}.q_b_proj", sizes.heads * head, parts.q_lora, "column")
    tensors += linear(f"{name}.kv_proj", head, hidden) + norm(f"{name}.kv_norm", head)
    tensors += linear(f"{name}.o_a_proj", parts.o_groups * parts.o_lora, sizes.heads * head // parts.o_groups, "column")
    tensors += linear(f"{name}.o_b_proj", hidden, parts.o_groups * parts.o_lora, "row")
    tensors += (Tensor(f"{name}.sinks", (sizes.heads,), "state", "column"),)
    if not ratio:
        return CompressedAttention(sizes.heads, head, parts.window, tensors=tensors)
    if ratio != _INDEXED_RATIO:
        tensors += _compression(f"{name}.compressor", hidden, head, ratio, head)
        return CompressedAttention(sizes.heads, head, parts.window, ratio, tensors=tensors)
    indexer = parts.indexer
    tensors += _compression(f"{name}.compressor", hidden, head, ratio, 2 * head)
    inner = f"{name}.compressor.indexer"
    tensors += _compression(inner, hidden, indexer.head_size, ratio, 2 * indexer.head_size)
    tensors += linear(f"{inner}.q_b_proj", indexer.num_heads * indexer.head_size, parts.q_lora)
    tensors += linear(f"{inner}.weights_proj", indexer.num_heads, hidden, role="router")
    return CompressedAttention(sizes.heads, head, parts.window, ratio, indexer, tensors)


def _mixture(view: ConfigView, hidden: int, *, hashed: bool) -> MoeFeedForward:
    """The first layers route by a table of token ids, which needs no load-balancing bias."""
    size = view.integer("moe_intermediate_size")
    return mixture(
        hidden,
        view.integer(*EXPERT_KEYS),
        view.integer(*TOP_K_KEYS),
        size,
        shared_intermediate=size * view.integer("n_shared_experts", default=1, minimum=0),
        traits=MoeTraits(router_bias=not hashed, shared_name="shared_experts"),
    )


def read_deepseek_v4(view: ConfigView) -> Body:
    """DeepSeek V4: ``compress_ratios`` says per layer 0 (window alone), 4 (with indexer) or 128."""
    sizes = read_sizes(view, head_default=512)
    ratios = _ratios(view, sizes.layers)
    parts = read_compressed_sizes(view, sizes)
    streams = view.integer("hc_mult", default=4, maximum=64)
    hashed = _hashed_layers(view, sizes.layers)
    rest = norms(2, sizes.hidden) + hyper_connections(sizes.hidden, streams)
    routed = {flag: _mixture(view, sizes.hidden, hashed=flag) for flag in (True, False)}
    mixers = {ratio: _attention(sizes, parts, ratio) for ratio in set(ratios)}
    layers = [
        LayerSpec(mixers[ratio], None, routed[is_hashed], rest)
        for is_hashed, ratio in zip(hashed, ratios[: sizes.layers], strict=True)
    ]
    head = hyper_head(sizes.hidden, streams)
    # The ratios go on with those of the multi-token layers, which join embedding and hidden state in a matrix each.
    own = LayerSpec(mixers[ratios[sizes.layers]], None, routed[False], rest + head)
    joint = linear("e_proj", sizes.hidden, sizes.hidden) + linear("h_proj", sizes.hidden, sizes.hidden)
    drafting = (
        _dspark_layers(view, sizes, replace(own, tensors=rest), head)
        if view.has("dspark_target_layer_ids")
        else multi_token_layers(view, own, sizes.hidden, joint=joint)
    )
    # The tower of the model that sees, whose config has its keys beside the text's.
    count = view.layers("vision_n_layers", default=0, minimum=0)
    extras = ((ExtraModule("vision tower", "vision", None, count),) if count else ()) + drafting
    body = decoder_body(view, sizes, layers, further=head, extras=extras, residual_streams=streams)
    return with_ropes(body, _ropes(view, ratios[: sizes.layers]))


_DSPARK_LAYERS = 3


def _dspark_layers(
    view: ConfigView, sizes: Sizes, layer: LayerSpec, head: tuple[Tensor, ...]
) -> tuple[ExtraModule, ...]:
    """DSpark: layers in place of the one for multi-token prediction, with what joins and reads them kept at the last.

    vllm/models/deepseek_v4/nvidia/dspark.py (read in 0.32.0), whose checkpoints' ``num_nextn_predict_layers`` is 1.
    """
    count = view.integer("n_mtp_layers", default=_DSPARK_LAYERS, maximum=64)
    targets = len(view.integers("dspark_target_layer_ids") or ())
    rank = view.integer("dspark_markov_rank")
    once = linear("main_proj", sizes.hidden, targets * sizes.hidden) + norms(2, sizes.hidden) + head
    once += linear("context_wkv_proj", count * sizes.head, sizes.hidden)
    once += linear("markov_head.embed", sizes.vocab, rank, "column", role="router")
    once += linear("markov_head.head", sizes.vocab, rank, "column", role="router")
    once += linear("confidence_head.proj", 1, sizes.hidden + rank, role="router")
    return repeated_layer(count - 1, layer, sizes.hidden, ()) + repeated_layer(1, layer, sizes.hidden, once)


_TYPES = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
"""What transformers 5 calls the layers of each ratio, which ``compress_rates`` may say otherwise."""


def _ratios(view: ConfigView, num_layers: int) -> list[int]:
    """One of each layer and of those of multi-token prediction; transformers writes types, and of the layers alone.

    A multi-token layer that nothing is said of has the window alone, as the published ones do.
    """
    types = layer_types(view, num_layers)
    if types is not None and not view.has("compress_ratios"):
        rates = view.section("compress_rates") or ConfigView({})
        if set(types) - set(_TYPES):
            raise view.reject("layer_types", "a list of " + ", ".join(_TYPES))
        known = {kind: rates.integer(kind, default=ratio, minimum=0) for kind, ratio in _TYPES.items()}
        return [*(known[kind] for kind in types), 0]
    ratios = view.integers("compress_ratios", minimum=0)
    if ratios is None or len(ratios) < num_layers:
        raise view.reject("compress_ratios", f"one number for each of {num_layers} layers")
    return [*ratios, 0] if len(ratios) == num_layers else ratios


def _hashed_layers(view: ConfigView, num_layers: int) -> list[bool]:
    """Which layers route by a table: the first ``num_hash_layers``, or those of ``mlp_layer_types``."""
    kinds = view.texts("mlp_layer_types")
    if kinds is None or view.has("num_hash_layers"):
        first = view.integer("num_hash_layers", default=0, minimum=0)
        return [index < first for index in range(num_layers)]
    if len(kinds) != num_layers or set(kinds) - {"hash_moe", "moe"}:
        raise view.reject("mlp_layer_types", f"hash_moe or moe for each of {num_layers} layers")
    return [kind == "hash_moe" for kind in kinds]


def _ropes(view: ConfigView, ratios: Sequence[int | None]) -> Iterator[RopeSpec]:
    """``compress_rope_theta`` and the scaling are of layers that compress; the others turn by ``rope_theta`` alone."""
    size = view.integer("qk_rope_head_dim", default=64)
    parameters = view.section("rope_parameters")
    if parameters is not None and parameters.has("compress"):  # as transformers 5 writes them
        main, scaled = (replace(rope_of_type(view, size, kind), rotary_size=size) for kind in ("main", "compress"))
    else:
        main = scaled = replace(read_rope(view, size), rotary_size=size)
        scaled = replace(scaled, theta=view.number("compress_rope_theta", default=160_000.0))
    for ratio in ratios:
        yield scaled if ratio else RopeSpec(main.theta, size)
