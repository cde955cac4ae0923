"""DeepSeek V4: a short window of tokens, everything older compressed by 4 or by 128, hyper-connected residuals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.families.common import Body, Sizes, read_rope, read_sizes
from kvplan.catalog.families.latent.streams import hyper_connections, hyper_head
from kvplan.catalog.families.multi_token import multi_token_layers
from kvplan.catalog.families.positions import with_ropes
from kvplan.catalog.families.softmax.mixtures import EXPERT_KEYS, TOP_K_KEYS
from kvplan.catalog.families.states.hybrid import hybrid_body
from kvplan.catalog.parts import MoeTraits, linear, mixture, norm, norms
from kvplan.catalog.spec import CompressedAttention, ExtraModule, LayerSpec, MoeFeedForward, RopeSpec, SparseIndexer
from kvplan.catalog.tensors import Tensor

_INDEXED_RATIO = 4
"""Layers that compress by 4 choose what they read with an indexer; those that compress more read everything."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """The sizes of the attention that all layers share."""

    q_lora: int
    o_lora: int
    o_groups: int
    window: int
    indexer: SparseIndexer


def _compression(name: str, hidden: int, head: int, ratio: int, width: int) -> tuple[Tensor, ...]:
    """What makes one vector of ``ratio`` tokens: values, gates, a bias per position, and a norm."""
    return (
        *linear(f"{name}.kv_proj", width, hidden),
        *linear(f"{name}.gate_proj", width, hidden),
        Tensor(f"{name}.position_bias", (ratio, width), "position"),
        *norm(f"{name}.kv_norm", head),
    )


def _attention(sizes: Sizes, parts: _Parts, ratio: int) -> CompressedAttention:
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
    tensors += linear(f"{inner}.weights_proj", indexer.num_heads, hidden)
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
    ratios = view.integers("compress_ratios", minimum=0)
    if ratios is None or len(ratios) < sizes.layers:
        raise view.reject("compress_ratios", f"one number for each of {sizes.layers} layers")
    parts = _Parts(
        q_lora=view.integer("q_lora_rank"),
        o_lora=view.integer("o_lora_rank"),
        o_groups=view.integer("o_groups"),
        window=view.integer("sliding_window", default=128),
        indexer=SparseIndexer(
            view.integer("index_n_heads"), view.integer("index_head_dim"), view.integer("index_topk")
        ),
    )
    if sizes.heads * sizes.head % parts.o_groups:
        raise view.reject("o_groups", "a divisor of the attention's width")
    streams = view.integer("hc_mult", default=4, maximum=64)
    hashed = view.integer("num_hash_layers", default=0, minimum=0)
    rest = norms(2, sizes.hidden) + hyper_connections(sizes.hidden, streams)
    routed = {flag: _mixture(view, sizes.hidden, hashed=flag) for flag in (True, False)}
    mixers = {ratio: _attention(sizes, parts, ratio) for ratio in set(ratios)}
    layers = [
        LayerSpec(mixers[ratio], None, routed[index < hashed], rest)
        for index, ratio in enumerate(ratios[: sizes.layers])
    ]
    head = hyper_head(sizes.hidden, streams)
    # The ratios go on with those of the multi-token layers, which join embedding and hidden state in a matrix each.
    own = LayerSpec(mixers[ratios[min(sizes.layers, len(ratios) - 1)]], None, routed[False], rest + head)
    joint = linear("e_proj", sizes.hidden, sizes.hidden) + linear("h_proj", sizes.hidden, sizes.hidden)
    extras = _vision(view) + multi_token_layers(view, own, sizes.hidden, joint=joint)
    body = replace(hybrid_body(view, sizes, layers, extras=extras), residual_streams=streams)
    return with_ropes(replace(body, tensors=body.tensors + head), _ropes(view, ratios[: sizes.layers]))


def _vision(view: ConfigView) -> tuple[ExtraModule, ...]:
    """The tower of the model that sees, whose config has its keys beside the text's."""
    count = view.layers("vision_n_layers", default=0, minimum=0)
    return (ExtraModule("vision tower", "vision", None, count),) if count else ()


def _ropes(view: ConfigView, ratios: Sequence[int | None]) -> Iterator[RopeSpec]:
    """``compress_rope_theta`` and the scaling are of layers that compress; the others turn by ``rope_theta`` alone."""
    size = view.integer("qk_rope_head_dim", default=64)
    scaled = replace(read_rope(view, size), rotary_size=size)
    compressing = replace(scaled, theta=view.number("compress_rope_theta", default=160_000.0))
    for ratio in ratios:
        yield compressing if ratio else RopeSpec(scaled.theta, size)
