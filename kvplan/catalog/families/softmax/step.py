"""Step 5: every few layers attend to regions of eight tokens that an index chooses, the others to a window.

Facts of vLLM 0.33 (vllm/models/step5/nvidia/: config.py, model.py, mtp.py); transformers 5.24 has no class of it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.families.common import (
    MULTI_TOKEN_KEYS,
    Body,
    Sizes,
    decoder_body,
    read_sizes,
    repeated_layer,
    stacked,
)
from kvplan.catalog.families.positions import FULL_TYPE, WINDOW_TYPE, with_ropes
from kvplan.catalog.families.softmax.heterogeneous import step3_sparse_layers, step_ropes
from kvplan.catalog.families.softmax.mixtures import MixtureFamily, read_feed_forwards
from kvplan.catalog.families.softmax.plain import PlainFamily
from kvplan.catalog.parts import FULL, AttentionTraits, MoeTraits, attention, feed_forward, linear, norm, norms, sliding
from kvplan.catalog.spec import ExtraModule, LayerSpec, RopeSpec, SoftmaxAttention, SparseIndexer
from kvplan.catalog.tensors import Tensor

_INDEX_KEY, _REGION = 256, 8
_FIXED = {"proxy_dim": _INDEX_KEY, "region_block_size": _REGION, "sparse_indexer_num_k_heads": 1}
"""What vLLM takes no other value of."""
_FAMILY = MixtureFamily(
    PlainFamily(),
    step3_sparse_layers,
    expert_size=("moe_intermediate_size",),
    shared_size=("share_expert_dim",),
    router_bias=True,
    traits=MoeTraits(shared_name="shared_experts", float32_router=True),
)


def read_step5(view: ConfigView) -> Body:
    """Step 5: ``layer_types`` goes on with those of the multi-token layers; full layers have an index and its keys."""
    view = _with_defaults(view)
    sizes = read_sizes(view)
    count = view.integer(*MULTI_TOKEN_KEYS, default=0, minimum=0, maximum=64)
    types = view.texts("layer_types_with_mtp") or view.texts("layer_types") or []
    if len(types) < sizes.layers + count or set(types) - {FULL_TYPE, WINDOW_TYPE}:
        known = f"{FULL_TYPE} or {WINDOW_TYPE}"
        raise view.reject("layer_types", f"{known} for each of {sizes.layers + count} layers, multi-token ones last")
    indexer = _indexer(view)
    mixers = {kind: _attention(view, sizes, kind, indexer) for kind in dict.fromkeys(types)}
    parts = read_feed_forwards(view, _FAMILY, sizes)
    layers = stacked(sizes, [mixers[kind] for kind in types[: sizes.layers]], parts)
    drafting = Counter(types[sizes.layers : sizes.layers + count])
    extras = sum((_drafter(view, sizes, mixers[kind], number) for kind, number in drafting.items()), ())
    single = {key: value for key, value in view.config.items() if not isinstance(value, list)}
    inner = ConfigView(single, path=view.path, assumptions=view.assumptions)
    return with_ropes(decoder_body(inner, sizes, layers, extras=extras), _ropes(view, inner, sizes, types))


def _with_defaults(view: ConfigView) -> ConfigView:
    """Keys under the names that other families have, and vLLM's defaults; refuses what vLLM does."""
    if view.flag("attention_bias", default=False):
        raise view.reject("attention_bias", "false")
    if not view.flag("use_moe_router_bias", default=False):
        raise view.reject("use_moe_router_bias", "true")
    active = view.integer("moe_top_k")
    sparse = next((key for key in ("moe_layers_enum", "moe_layer_list") if view.has(key)), "")
    own = {
        "num_key_value_heads": view.integer("num_attention_groups"),
        "moe_layers_enum": view.config.get(sparse),
        "share_expert_dim": view.integer("share_expert_dim", default=active * view.integer("moe_intermediate_size")),
    }
    return view.changed(own)


def _indexer(view: ConfigView) -> SparseIndexer | None:
    """None where ``sparse_config`` turns it off; vLLM serves no checkpoint without that section."""
    section = view.section("sparse_config")
    if section is None:
        raise view.reject("sparse_config", "an object")
    if not section.flag("enabled", default=True):
        return None
    for key, value in _FIXED.items():
        if section.integer(key, default=value) != value:
            raise section.reject(key, f"{value}")
    if section.texts("apply_to_layer_types") not in (None, [FULL_TYPE]):
        raise section.reject("apply_to_layer_types", f"{FULL_TYPE} alone")
    regions = section.integer("topk", default=512)
    heads = section.integer("sparse_indexer_num_heads", default=16)
    return SparseIndexer(heads, _INDEX_KEY, regions * _REGION, _REGION, 2 * _INDEX_KEY, key_format="plain")


def _attention(view: ConfigView, sizes: Sizes, kind: str, indexer: SparseIndexer | None) -> SoftmaxAttention:
    """Sliding layers may have heads of their own; full ones have the index."""
    heads, kv_heads, head = sizes.heads, sizes.kv_heads, sizes.head
    other = view.section("attention_other_setting")
    if other is not None and other.text("attention_type") == kind:
        heads = other.integer("num_attention_heads", default=heads)
        kv_heads = other.integer("num_attention_groups", default=kv_heads)
        head = other.integer("head_dim", default=head)
    window = FULL
    if kind == WINDOW_TYPE:
        heads = view.integer("swa_num_attention_heads", default=heads)
        window = sliding(view.integer("sliding_window"))
    if heads % kv_heads:
        raise view.reject("num_attention_groups", f"a divisor of the {heads} heads")
    gate = view.flag("use_head_wise_attn_gate", default=False)
    traits = AttentionTraits(qk_norm="head", output_gate="head" if gate else "none")
    mixer = attention(sizes.hidden, heads, kv_heads, head, window=window, traits=traits)
    if indexer is None or kind == WINDOW_TYPE:
        return mixer
    return replace(mixer, indexer=indexer, tensors=mixer.tensors + _index_tensors(sizes.hidden, heads, indexer))


def _index_tensors(hidden: int, heads: int, indexer: SparseIndexer) -> tuple[Tensor, ...]:
    """Queries, a key and its gate of each token, weights of the queries: none is quantized. ssmax_s is not used."""
    name, size = "self_attn.sparse_indexer", indexer.head_size
    return (
        *linear(f"{name}_q", indexer.num_heads * size, hidden, "column", role="router"),
        *linear(f"{name}_k", size, hidden, role="router"),
        *linear(f"{name}_z", size, hidden, role="router"),
        *linear(f"{name}_w", indexer.num_heads, hidden, "column", role="router"),
        *norm(f"{name}_q_norm", size),
        *norm(f"{name}_k_norm", size, bias=True),
        Tensor("self_attn.ssmax_s", (heads,), "state"),
    )


def _drafter(view: ConfigView, sizes: Sizes, mixer: SoftmaxAttention, count: int) -> tuple[ExtraModule, ...]:
    """Multi-token layers are dense, and each has a head of its own."""
    part = feed_forward(sizes.hidden, view.integer("intermediate_size"))
    layer = LayerSpec(mixer, None, part, norms(2, sizes.hidden))
    head = Tensor("shared_head.head", (sizes.vocab, sizes.hidden), "head", "vocab")
    return repeated_layer(count, layer, sizes.hidden, (*linear("eh_proj", sizes.hidden, 2 * sizes.hidden), head))


def _ropes(view: ConfigView, inner: ConfigView, sizes: Sizes, types: list[str]) -> tuple[RopeSpec, ...]:
    """A scaling is for the layers of ``yarn_only_types`` alone, where the config lists any."""
    scaled = view.texts("yarn_only_types") or [FULL_TYPE, WINDOW_TYPE]
    ropes = step_ropes(view, inner, sizes)
    return tuple(
        rope if kind in scaled else RopeSpec(rope.theta, rope.rotary_size)
        for rope, kind in zip(ropes, types, strict=False)
    )
