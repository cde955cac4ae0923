"""Hybrids of attention and linear attention: Qwen3-Next, Qwen 3.5, OLMo Hybrid, Kimi Linear and K3, MiniMax, Alice."""

from __future__ import annotations

from dataclasses import replace

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.families.common import (
    Body,
    Sizes,
    decoder_body,
    layer_types,
    multi_token_layers,
    read_rope,
    read_sizes,
    softmax_attention,
    stacked,
)
from kvplan.catalog.families.latent.deepseek import LatentSizes, latent_attention, read_latent_sizes
from kvplan.catalog.families.positions import with_ropes
from kvplan.catalog.families.softmax.mixtures import (
    MixtureFamily,
    after_dense_ones,
    after_first_layer,
    read_feed_forwards,
    stepped,
)
from kvplan.catalog.families.softmax.plain import Flag, PlainFamily
from kvplan.catalog.families.states.state import (
    DeltaSizes,
    gated_delta_net,
    kimi_delta,
    lightning_attention,
    read_state_dtype,
)
from kvplan.catalog.parts import AttentionTraits, MoeTraits, feed_forward, linear, norm, norms
from kvplan.catalog.spec import FeedForward, LayerSpec, StateMixer
from kvplan.catalog.tensors import Tensor

QWEN_MIXTURE = MixtureFamily(
    PlainFamily(),
    stepped,
    expert_size=("moe_intermediate_size",),
    shared_size=("shared_expert_intermediate_size",),
    traits=MoeTraits(shared_gate=True),
)
_KIMI_MIXTURE = MixtureFamily(
    PlainFamily(),
    after_first_layer,
    expert_size=("moe_intermediate_size",),
    shared_count=("num_shared_experts",),
    router_bias=True,
    traits=MoeTraits(name="block_sparse_moe", shared_name="shared_experts"),
)
_ALICE_MIXTURE = MixtureFamily(
    PlainFamily(),
    expert_size=("moe_intermediate_size",),
    shared_size=("shared_expert_intermediate_size",),
    router_bias=True,
    traits=MoeTraits(shared_gate=True),
)


_BAILING_HYBRID = MixtureFamily(
    PlainFamily(),
    after_dense_ones,
    shared_count=("num_shared_experts",),
    shared_each=("moe_shared_expert_intermediate_size",),
    router_bias=Flag(("moe_router_enable_expert_bias",), False),
    router_dtype="router_dtype",
    traits=MoeTraits(shared_name="shared_experts"),
)


def linear_layers(view: ConfigView, num_layers: int, others: tuple[str, ...] = ("full_attention",)) -> list[bool]:
    """Which layers are linear: ``layer_types``, or all but each ``full_attention_interval``-th.

    ``others``: what those types call a layer that is not.
    """
    types = layer_types(view, num_layers)
    if types is not None:
        if set(types) - {"linear_attention", *others}:
            raise view.reject("layer_types", "linear_attention or full_attention for each layer")
        return [kind == "linear_attention" for kind in types]
    step = view.integer("full_attention_interval", default=4)
    return [(index + 1) % step != 0 for index in range(num_layers)]


def read_qwen3_next(view: ConfigView) -> Body:
    """Qwen3-Next and Qwen 3.5: three gated delta nets, then one gated attention; dense or mixture."""
    sizes = read_sizes(view, head_default=256)
    delta = read_delta_net(view, sizes.hidden)
    bias = view.flag("attention_bias", default=False)
    gated = view.flag("attn_output_gate", default=True)
    traits = AttentionTraits.biased(bias, bias, qk_norm="head", output_gate="element" if gated else "none")
    softmax = softmax_attention(sizes, traits)
    parts = _qwen_feed_forwards(view, sizes)
    layers = stacked(sizes, [delta if linear else softmax for linear in linear_layers(view, sizes.layers)], parts)
    last = LayerSpec(softmax, None, parts[-1], norms(2, sizes.hidden))
    # Qwen3-Next's config names none: vLLM takes one (vllm/model_executor/models/qwen3_next_mtp.py, num_mtp_layers).
    silent = 1 if view.text("model_type", default="") == "qwen3_next" else 0
    keys = ("mtp_num_hidden_layers", "num_nextn_predict_layers")
    extras = multi_token_layers(view, last, sizes.hidden, keys=keys, default=silent)
    return decoder_body(view, sizes, layers, rotary_share=0.25, extras=extras)


def read_delta_net(view: ConfigView, hidden: int) -> StateMixer:
    """A gated delta net by Qwen's keys."""
    return gated_delta_net(
        hidden,
        DeltaSizes(
            key_heads=view.integer("linear_num_key_heads"),
            key_head=view.integer("linear_key_head_dim"),
            value_heads=view.integer("linear_num_value_heads"),
            value_head=view.integer("linear_value_head_dim"),
            kernel=view.integer("linear_conv_kernel_dim", default=4),
        ),
        state_dtype=read_state_dtype(view),
    )


def _qwen_feed_forwards(view: ConfigView, sizes: Sizes) -> list[FeedForward]:
    if view.has("num_experts") and view.integer("num_experts", minimum=0):
        return read_feed_forwards(view, QWEN_MIXTURE, sizes)
    return [feed_forward(sizes.hidden, view.integer("intermediate_size"))] * sizes.layers


def read_olmo_hybrid(view: ConfigView) -> Body:
    """OLMo Hybrid: three gated delta nets with as many key as value heads, then one attention with OLMo 2's norms."""
    sizes = read_sizes(view)
    head = 3 * (sizes.hidden // sizes.heads) // 4
    delta = gated_delta_net(
        sizes.hidden,
        DeltaSizes(
            key_heads=view.integer("linear_num_key_heads", default=sizes.heads),
            key_head=view.integer("linear_key_head_dim", default=head),
            value_heads=view.integer("linear_num_value_heads", default=sizes.heads),
            value_head=view.integer("linear_value_head_dim", default=2 * head),
            kernel=view.integer("linear_conv_kernel_dim", default=4),
        ),
        state_dtype=read_state_dtype(view),
    )
    bias = view.flag("attention_bias", default=False)
    traits = AttentionTraits.biased(bias, bias, qk_norm="full")
    softmax = softmax_attention(sizes, traits)
    parts = [feed_forward(sizes.hidden, view.integer("intermediate_size"))] * sizes.layers
    mixers = [delta if is_linear else softmax for is_linear in linear_layers(view, sizes.layers)]
    return decoder_body(view, sizes, stacked(sizes, mixers, parts))


def read_kimi_linear(view: ConfigView) -> Body:
    """Kimi Linear: three Kimi Delta Attentions, then one latent attention without rotary positions.

    Kimi K3 adds gates of full rank, experts behind a projection, and a residual that each block weighs anew.
    """
    sizes = read_sizes(view, head_default=1)
    keys = _kimi_linear_keys(view)
    delta = kimi_delta(
        sizes.hidden,
        keys.integer("num_heads"),
        keys.integer("head_dim"),
        keys.integer("short_conv_kernel_size", default=4),
        full_gate=keys.flag("use_full_rank_gate", default=False),
        bounded=keys.has("gate_lower_bound"),
    )
    full = _kimi_full_layers(view, keys, sizes.layers)
    latent_sizes = read_latent_sizes(view)
    gated = view.flag("mla_use_output_gate", default=False)
    gate = latent_sizes.heads * latent_sizes.value if gated else 0
    latent = latent_attention(sizes.hidden, latent_sizes, gate=gate)
    parts = read_feed_forwards(view, _kimi_mixture(view), sizes)
    others = norms(2, sizes.hidden)
    last: tuple[Tensor, ...] = ()
    if view.has("attn_res_block_size"):
        others += _weighed_residual("self_attention", sizes.hidden) + _weighed_residual("mlp", sizes.hidden)
        last = _weighed_residual("output_attn", sizes.hidden)
    layers = stacked(sizes, [latent if index in full else delta for index in range(sizes.layers)], parts, others)
    return decoder_body(view, sizes, layers, rotary=not view.flag("mla_use_nope", default=True), further=last)


def _kimi_mixture(view: ConfigView) -> MixtureFamily:
    """With Kimi K3's projections around its experts, where the config names their size."""
    normed = view.flag("latent_moe_use_norm", default=False)
    traits = replace(
        _KIMI_MIXTURE.traits,
        latent_size=view.optional_integer("routed_expert_hidden_size"),
        latent_names=("routed_expert_down_proj", "routed_expert_up_proj"),
        latent_norm="routed_expert_norm" if normed else "",
    )
    return replace(_KIMI_MIXTURE, traits=traits)


def _kimi_linear_keys(view: ConfigView) -> ConfigView:
    """``linear_attn_config``, or transformers 5's keys of the same things under their names there."""
    keys = view.section("linear_attn_config")
    if keys is not None:
        return keys
    if not view.has("linear_num_heads"):
        raise view.reject("linear_attn_config", "an object")
    flat = {
        "num_heads": view.integer("linear_num_heads"),
        "head_dim": view.integer("linear_head_dim"),
        "short_conv_kernel_size": view.integer("linear_conv_kernel_dim", default=4),
    }
    return ConfigView(flat, path=view.path, assumptions=view.assumptions)


def _kimi_full_layers(view: ConfigView, keys: ConfigView, num_layers: int) -> set[int]:
    """Which layers attend: ``full_attn_layers`` counts from one; transformers 5 has ``layer_types``."""
    types = layer_types(view, num_layers)
    if types is not None and not keys.has("full_attn_layers"):
        if set(types) - {"linear_attention", "full_attention"}:
            raise view.reject("layer_types", "linear_attention or full_attention for each layer")
        return {index for index, kind in enumerate(types) if kind == "full_attention"}
    full = {index - 1 for index in keys.integers("full_attn_layers", minimum=1) or []}
    if any(index >= num_layers for index in full):
        raise keys.reject("full_attn_layers", f"layers from 1 to {num_layers}")
    return full


def _weighed_residual(name: str, hidden: int) -> tuple[Tensor, ...]:
    """A norm and one score: how much of each earlier block's output goes into the next input (Kimi K3)."""
    return norm(f"{name}_res_norm", hidden) + linear(f"{name}_res_proj", 1, hidden, role="router")


def read_alice(view: ConfigView) -> Body:
    """AliceAI: Kimi Delta Attention beside Qwen3-Next's, experts everywhere, weighed residuals (vllm: alice_ai.py).

    vLLM loads no layers for multi-token prediction, which its checkpoints have.
    """
    for key, needed in (("router_bias_correction", True), ("kda_allow_negative_eigenvalues", False)):
        if view.flag(key, default=needed) is not needed:
            raise view.reject(key, f"{str(needed).lower()}, which vLLM needs")
    view.integer("block_attn_res_block_size")
    sizes = read_sizes(view, head_default=256)
    heads, head = view.integer("linear_num_key_heads"), view.integer("linear_key_head_dim")
    if (heads, head) != (view.integer("linear_num_value_heads"), view.integer("linear_value_head_dim")):
        raise view.reject("linear_num_value_heads", "the heads and sizes of keys, which vLLM needs")
    delta = kimi_delta(sizes.hidden, heads, head, view.integer("linear_conv_kernel_dim", default=4))
    traits = AttentionTraits(qk_norm="head", output_gate="element")
    softmax = softmax_attention(sizes, traits)
    (part, *_) = read_feed_forwards(view, _ALICE_MIXTURE, sizes)
    mixed = norms(2, sizes.hidden) + _weighed_residual("mlp", sizes.hidden)
    others = [mixed, *[mixed + _weighed_residual("attn", sizes.hidden)] * (sizes.layers - 1)]
    layers = [
        LayerSpec(delta if is_linear else softmax, None, part, tensors)
        for is_linear, tensors in zip(linear_layers(view, sizes.layers), others, strict=True)
    ]
    last = _weighed_residual("final", sizes.hidden)
    return decoder_body(view, sizes, layers, tied=None, rotary_share=0.25, further=last)


def read_bailing_hybrid(view: ConfigView) -> Body:
    """Ling and Ring 2.5: of each group of layers the last has latent attention, the others lightning attention."""
    sizes = read_sizes(view)
    biased = view.flag("use_bias", default=False)
    lightning = lightning_attention(
        sizes.hidden,
        sizes.heads,
        sizes.head,
        bias=biased or view.flag("use_qkv_bias", default=False),
        norms=view.flag("use_qk_norm", default=False),
    )
    if biased:
        raise view.reject("use_bias", "false (biases of other layers are not known)")
    latent = latent_attention(sizes.hidden, read_latent_sizes(view))
    period = view.integer("layer_group_size", default=1)
    parts = read_feed_forwards(view, _BAILING_HYBRID, sizes)
    mixers = [lightning if (index + 1) % period else latent for index in range(sizes.layers)]
    last = LayerSpec(latent, None, parts[-1], norms(2, sizes.hidden))
    extras = multi_token_layers(view, last, sizes.hidden)
    body = decoder_body(view, sizes, stacked(sizes, mixers, parts), extras=extras)
    turned = read_rope(view, sizes.head)
    return with_ropes(body, (replace(turned, rotary_size=latent.qk_rope_head_size), turned))


def read_bailing_v3(view: ConfigView) -> Body:
    """Ling 3: of each group of layers the last, and all behind the last whole group, have gated latent attention.

    The others are Kimi Delta Attention, whose decays and gates are matrices of full rank. Saved by transformers 5, the
    config has their heads under keys of their own, and under ``head_dim`` what is turned of a latent's.
    """
    sizes = read_sizes(view)
    if not view.flag("no_kda_lora", default=False):
        raise view.reject("no_kda_lora", "true (matrices of low rank are not known)")
    delta = kimi_delta(
        sizes.hidden,
        view.integer("linear_num_heads", default=sizes.heads),
        view.integer("linear_head_dim", default=sizes.head),
        view.integer("short_conv_kernel_size", default=4),
        full_gate=True,
        full_decay=True,
    )
    latent_sizes = read_latent_sizes(view)
    latent = latent_attention(sizes.hidden, latent_sizes, gate=_bailing_gate(view, latent_sizes))
    period = view.integer("layer_group_size", default=1)
    whole = sizes.layers // period * period
    traits = replace(_BAILING_HYBRID.traits, float32_router=True)
    family = replace(_BAILING_HYBRID, router_bias=True, router_dtype="", traits=traits)
    parts = read_feed_forwards(view, family, sizes)
    mixers = [latent if (index + 1) % period == 0 or index >= whole else delta for index in range(sizes.layers)]
    last = LayerSpec(latent, None, parts[-1], norms(2, sizes.hidden))
    extras = multi_token_layers(view, last, sizes.hidden)
    body = decoder_body(view, sizes, stacked(sizes, mixers, parts), extras=extras)
    return replace(body, rope=replace(read_rope(view, sizes.head), rotary_size=latent.qk_rope_head_size))


def _bailing_gate(view: ConfigView, sizes: LatentSizes) -> int:
    kind = view.text("gated_attention_proj_granularity_type", default="")
    return {"head_wise": sizes.heads, "element_wise": sizes.heads * sizes.value}.get(kind, 0)


def read_minimax(view: ConfigView) -> Body:
    """MiniMax Text 01: seven lightning attentions, then one softmax attention; a mixture in every layer."""
    sizes = read_sizes(view)
    types = layer_types(view, sizes.layers)
    if types is not None:
        linear = [kind == "linear_attention" for kind in types]
    else:
        kinds = view.per_layer("attn_type_list", sizes.layers, minimum=0)
        linear = [kind == 0 for kind in kinds]
    lightning = lightning_attention(sizes.hidden, sizes.heads, sizes.head)
    softmax = softmax_attention(sizes)
    family = MixtureFamily(PlainFamily(), traits=MoeTraits(name="block_sparse_moe"))
    parts = read_feed_forwards(view, family, sizes)
    layers = stacked(sizes, [lightning if is_linear else softmax for is_linear in linear], parts)
    return decoder_body(view, sizes, layers)
