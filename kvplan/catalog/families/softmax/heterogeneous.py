"""Decoders whose layers differ in heads, head sizes or feed-forward: one entry per layer, read from lists."""

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
from kvplan.catalog.families.positions import FULL_TYPE, WINDOW_TYPE, rope_of_type, with_ropes
from kvplan.catalog.families.softmax.mixtures import (
    MixtureFamily,
    after_dense_ones,
    after_first_layer,
    read_feed_forwards,
)
from kvplan.catalog.families.softmax.plain import PlainFamily
from kvplan.catalog.families.wrappers.towers import read_towers
from kvplan.catalog.parts import (
    FULL,
    AttentionTraits,
    MoeTraits,
    Window,
    attention,
    feed_forward,
    linear,
    mixture,
    norm,
    norms,
    sliding,
)
from kvplan.catalog.spec import FeedForward, LayerSpec, RopeSpec, SparseIndexer

_SHARED = MoeTraits(shared_name="shared_experts")
_FLOAT32 = replace(_SHARED, float32_router=True)


def _windows(view: ConfigView, num_layers: int, tokens: int) -> list[Window] | None:
    """``layer_types`` (longer lists name multi-token layers at the end), or None."""
    types = view.texts("layer_types")
    if types is None:
        return None
    if len(types) < num_layers:
        layer_types(view, num_layers)
    return [sliding(tokens) if kind == "sliding_attention" else FULL for kind in types[:num_layers]]


def read_decilm(view: ConfigView) -> Body:
    """Nemotron-NAS: ``block_configs`` say of each layer how many KV heads it has and how wide it is, if at all."""
    sizes = read_sizes(view.changed({"num_key_value_heads": view.integer("num_attention_heads")}))
    blocks = view.items("block_configs")
    if blocks is None or len(blocks) != sizes.layers:
        raise view.reject("block_configs", f"one entry for each of {sizes.layers} layers")
    return decoder_body(view, sizes, [_decilm_layer(view, sizes, block) for block in blocks])


def _decilm_layer(view: ConfigView, sizes: Sizes, block: object) -> LayerSpec:
    entry = ConfigView({"block": block}, path=f"{view.path}block_configs.").section("block")
    own = entry.section("attention") if entry is not None else None
    inner = entry.section("ffn") if entry is not None else None
    if own is None or inner is None:
        raise view.reject("block_configs", "an attention and an ffn in each entry")
    for section in (own, inner):
        if section.flag("replace_with_linear", default=False):
            raise section.reject("replace_with_linear", "false (linear replacements are not known)")
    mixer = None
    if not own.flag("no_op", default=False):
        group = own.integer("n_heads_in_group")
        if sizes.heads % group:
            raise own.reject("n_heads_in_group", f"a divisor of the {sizes.heads} heads")
        tokens = own.optional_integer("window_length")
        window = sliding(tokens) if tokens else FULL
        mixer = softmax_attention(replace(sizes, kv_heads=sizes.heads // group), window=window)
    part = None
    if not inner.flag("no_op", default=False):
        part = feed_forward(sizes.hidden, _decilm_width(inner.number("ffn_mult", default=0.0), sizes.hidden))
    return LayerSpec(mixer, None, part, norms((mixer is not None) + (part is not None), sizes.hidden))


def _decilm_width(multiple: float, hidden: int) -> int:
    """Two thirds of ``multiple`` x hidden, rounded up to 256."""
    return max(-(-int(2 * multiple * hidden / 3) // 256) * 256, 256)


def read_mimo_v2(view: ConfigView) -> Body:
    """MiMo V2: sliding layers have their own number of KV heads, and attention sinks; values are narrower."""
    sizes = read_sizes(view, head_default=192)
    value = view.integer("v_head_dim", default=128)
    tokens = view.integer("sliding_window_size", "sliding_window", default=128)  # vLLM's key; transformers 5 adds one
    windows = _windows(view, sizes.layers, tokens)
    if windows is None:
        pattern = view.per_layer("hybrid_layer_pattern", sizes.layers, minimum=0)
        windows = [sliding(tokens) if slides else FULL for slides in pattern]
    bias = view.flag("attention_bias", default=False)
    traits = AttentionTraits.biased(bias, False)
    full = softmax_attention(sizes, traits, head_v=value)
    heads = view.integer("swa_num_attention_heads", default=sizes.heads)
    kv_heads = view.integer("swa_num_key_value_heads", default=2 * sizes.kv_heads)
    if heads % kv_heads:
        raise view.reject("swa_num_key_value_heads", f"a divisor of the {heads} heads")
    local = attention(
        sizes.hidden,
        heads,
        kv_heads,
        view.integer("swa_head_dim", default=sizes.head),
        head_v=view.integer("swa_v_head_dim", default=value),
        window=sliding(tokens),
        traits=replace(traits, sinks=view.flag("add_swa_attention_sink_bias", default=True)),
    )
    family = MixtureFamily(
        PlainFamily(),
        after_first_layer,
        shared_count=("n_shared_experts",),
        router_bias=True,
        router_dtype="moe_router_dtype",
        traits=_FLOAT32,
    )
    mixers = [full if window.kind == "full" else local for window in windows]
    # A config with towers: vLLM makes MiMoV2OmniForCausalLM of it (transformers_utils/model_arch_config_convertor.py).
    sees = view.section("vision_config") is not None and view.texts("architectures") == ["MiMoV2ForCausalLM"]
    extras = read_towers(view, sizes.hidden) if sees else ()
    body = decoder_body(view, sizes, stacked(sizes, mixers, read_feed_forwards(view, family, sizes)), extras=extras)
    turned = rope_of_type(view, sizes.head, FULL_TYPE)
    theta = view.number("swa_rope_theta", default=turned.theta)
    local_head = view.integer("swa_head_dim", default=sizes.head)
    local_turned = rope_of_type(view, local_head, WINDOW_TYPE)
    if view.section("rope_parameters") is None:
        local_turned = replace(local_turned, theta=theta)
    return with_ropes(body, (turned, local_turned))


def read_step3p7(view: ConfigView) -> Body:
    """Step 3.5 and 3.7 Flash: sliding layers may have more heads; a gate per head; experts from the fourth layer on."""
    groups = view.integer("num_attention_groups", "num_key_value_heads", default=8)
    view = view.changed({"num_key_value_heads": groups})
    sizes = read_sizes(view, head_default=128)
    tokens = view.integer("sliding_window", default=512)
    windows = _windows(view, sizes.layers, tokens) or [FULL] * sizes.layers
    bias = view.flag("attention_bias", default=False)
    gate = view.flag("use_head_wise_attn_gate", default=True)
    traits = AttentionTraits.biased(bias, bias, qk_norm="head", output_gate="head" if gate else "none")
    other = view.section("attention_other_setting")
    local_heads = view.integer(
        "num_sliding_attention_heads",
        default=other.integer("num_attention_heads", default=sizes.heads) if other else sizes.heads,
    )
    if local_heads % sizes.kv_heads:
        raise view.reject("num_sliding_attention_heads", f"a multiple of the {sizes.kv_heads} KV heads")
    full = softmax_attention(sizes, traits)
    local = softmax_attention(replace(sizes, heads=local_heads), traits, window=sliding(tokens))
    family = MixtureFamily(
        PlainFamily(),
        step_sparse_layers,
        expert_size=("moe_intermediate_size",),
        shared_size=("share_expert_dim", "share_expert_dims"),
        router_bias=True,
        traits=_FLOAT32,
    )
    mixers = [full if window.kind == "full" else local for window in windows]
    layers = stacked(sizes, mixers, read_feed_forwards(view, family, sizes))
    inner = view.changed({"rope_theta": None}) if isinstance(view.config.get("rope_theta"), list) else view
    body = decoder_body(inner, sizes, layers, extras=multi_token_layers(view, layers[-1], sizes.hidden))
    return with_ropes(body, step_ropes(view, inner, sizes))


def step_ropes(view: ConfigView, single: ConfigView, sizes: Sizes) -> tuple[RopeSpec, ...]:
    """A base and a share of the head of each layer, where the config lists them; ``single``: without lists."""
    shared, count = read_rope(single, sizes.head), sizes.layers
    thetas = view.numbers("rope_theta") or [shared.theta] * count
    shares = view.numbers("partial_rotary_factors")
    rotary = [shared.rotary_size] * count if shares is None else [int(sizes.head * share) for share in shares]
    for key, listed in (("rope_theta", thetas), ("partial_rotary_factors", rotary)):
        if len(listed) < count:
            raise view.reject(key, f"a number for each of {count} layers")
    return tuple(replace(shared, theta=thetas[index], rotary_size=rotary[index]) for index in range(count))


def step_sparse_layers(view: ConfigView, num_layers: int) -> list[bool]:
    """``mlp_layer_types``, else the layers that ``moe_layers_enum`` lists ("3,4,5"), else all from the fourth on."""
    if view.has("mlp_layer_types"):
        return after_dense_ones(view, num_layers)
    listed = view.config.get("moe_layers_enum")
    if listed is None:
        return [index >= 3 for index in range(num_layers)]
    numbers = listed.split(",") if isinstance(listed, str) else listed
    try:
        sparse = {int(number) for number in numbers}
    except (TypeError, ValueError, OverflowError):
        raise view.reject("moe_layers_enum", "numbers of layers, such as 3,4,5") from None
    return [index in sparse for index in range(num_layers)]


def read_step3(view: ConfigView) -> Body:
    """Step 3: one KV head, queries through a matrix that all heads share, experts and a shared one in listed layers."""
    sizes = replace(read_sizes(view, head_default=256), kv_heads=1)
    shared_query = view.integer("share_q_dim", default=2048)
    plain = softmax_attention(sizes)
    name, width = "self_attn", sizes.heads * sizes.head
    factors = linear(f"{name}.q_proj", shared_query, sizes.hidden) + norm(f"{name}.inter_norm", shared_query)
    factors += linear(f"{name}.wq", width, shared_query, "column")
    mixer = replace(plain, tensors=factors + tuple(each for each in plain.tensors if each.name != f"{name}.q_proj"))
    family = MixtureFamily(
        PlainFamily(),
        step3_sparse_layers,
        expert_size=("moe_intermediate_size",),
        shared_size=("share_expert_dim",),
        traits=_SHARED,
    )
    body = decoder_body(view, sizes, stacked(sizes, [mixer] * sizes.layers, read_feed_forwards(view, family, sizes)))
    positions = view.optional_integer("max_position_embedding") or body.max_position_embeddings
    return replace(body, max_position_embeddings=positions)


def step3_sparse_layers(view: ConfigView, num_layers: int) -> list[bool]:
    """Mark the layers that ``moe_layers_enum`` lists, else all but the first."""
    if view.has("moe_layers_enum"):
        return step_sparse_layers(view, num_layers)
    return [index > 0 for index in range(num_layers)]


def read_laguna(view: ConfigView) -> Body:
    """Laguna: heads per layer, sliding layers, gated outputs, one dense layer and then experts."""
    sizes = read_sizes(view, head_default=128)
    tokens = view.integer("sliding_window", default=512)
    windows = _windows(view, sizes.layers, tokens) or [FULL] * sizes.layers
    heads = view.per_layer("num_attention_heads_per_layer", sizes.layers, default=sizes.heads)
    gating = view.config.get("gating", True)
    if gating not in (True, False, "per-head", "per-element"):
        raise view.reject("gating", "true, per-head or per-element")
    bias = view.flag("attention_bias", default=False)
    gate = "separate" if gating == "per-element" else "head"
    traits = AttentionTraits.biased(bias, bias, qk_norm="head", output_gate=gate)
    if any(count % sizes.kv_heads for count in heads):
        raise view.reject("num_attention_heads_per_layer", f"multiples of the {sizes.kv_heads} KV heads")
    mixers = [
        softmax_attention(replace(sizes, heads=count), traits, window=window)
        for count, window in zip(heads, windows, strict=True)
    ]
    family = MixtureFamily(
        PlainFamily(),
        after_first_layer,
        expert_size=("moe_intermediate_size",),
        shared_size=("shared_expert_intermediate_size",),
        router_bias=True,
    )
    body = decoder_body(view, sizes, stacked(sizes, mixers, read_feed_forwards(view, family, sizes)))
    full = rope_of_type(view, sizes.head, FULL_TYPE, theta=500_000.0, share=0.5)
    return with_ropes(body, (full, rope_of_type(view, sizes.head, WINDOW_TYPE)))


def read_minimax_m3(view: ConfigView) -> Body:
    """MiniMax M3: grouped attention, in most layers with an indexer that keeps one key per token."""
    sizes = read_sizes(view, head_default=128)
    indexed, indexer = _minimax_indexer(view, sizes.layers)
    traits = AttentionTraits(qk_norm="head")
    mixers = [softmax_attention(sizes, traits, indexer=indexer if has_indexer else None) for has_indexer in indexed]
    family = MixtureFamily(
        PlainFamily(),
        after_dense_ones,
        expert_size=("intermediate_size",),
        dense_size=("dense_intermediate_size",),
        shared_size=("shared_intermediate_size",),
        router_bias=True,
        traits=replace(_FLOAT32, name="block_sparse_moe"),
    )
    layers = stacked(sizes, mixers, read_feed_forwards(view, family, sizes))
    return decoder_body(view, sizes, layers, extras=multi_token_layers(view, layers[-1], sizes.hidden))


def _minimax_indexer(view: ConfigView, num_layers: int) -> tuple[list[bool], SparseIndexer | None]:
    """Which layers have an indexer, and its sizes: of ``sparse_attention_config``, or of transformers 5's keys."""
    sparse = view.section("sparse_attention_config")
    if sparse is not None:
        indexed = [bool(flag) for flag in sparse.per_layer("sparse_attention_freq", num_layers, minimum=0)]
        keys = ("sparse_num_index_heads", "sparse_index_dim", "sparse_topk_blocks", "sparse_block_size")
        heads, head, blocks, block = (sparse.integer(key) for key in keys)
        return indexed, SparseIndexer(heads, head, blocks * block)
    types = layer_types(view, num_layers) or []
    if set(types) - {FULL_TYPE, _MINIMAX_SPARSE}:
        raise view.reject("layer_types", f"{FULL_TYPE} or {_MINIMAX_SPARSE} for each layer")
    if _MINIMAX_SPARSE not in types:
        return [False] * num_layers, None
    keys = ("index_n_heads", "index_head_dim", "index_topk_blocks", "index_block_size")
    heads, head, blocks, block = (view.integer(key) for key in keys)
    return [kind == _MINIMAX_SPARSE for kind in types], SparseIndexer(heads, head, blocks * block)


_MINIMAX_SPARSE = "minimax_m3_sparse"


def read_dbrx(view: ConfigView) -> Body:
    """DBRX: its sizes stand in ``attn_config`` and ``ffn_config``."""
    own, inner = view.section("attn_config"), view.section("ffn_config")
    if own is None or inner is None:
        raise view.reject("attn_config", "an object, beside ffn_config")
    sizes = read_sizes(view.changed({"num_key_value_heads": own.integer("kv_n_heads")}))
    part = mixture(
        sizes.hidden,
        inner.integer("moe_num_experts"),
        inner.integer("moe_top_k"),
        inner.integer("ffn_hidden_size"),
        traits=MoeTraits(name="ffn"),
    )
    return decoder_body(view, sizes, [_layer(sizes, AttentionTraits(), part)] * sizes.layers)


def _layer(sizes: Sizes, traits: AttentionTraits, part: FeedForward) -> LayerSpec:
    return LayerSpec(softmax_attention(sizes, traits), None, part, norms(2, sizes.hidden))


def read_qwen1(view: ConfigView) -> Body:
    """The first Qwen: biases in q, k and v only, a feed-forward of half the stated size, twice."""
    sizes = read_sizes(view)
    part = feed_forward(sizes.hidden, view.integer("intermediate_size", minimum=2) // 2)
    whole = replace(sizes, kv_heads=sizes.heads)
    return decoder_body(view, sizes, [_layer(whole, AttentionTraits.biased(True, False), part)] * sizes.layers)


def read_chatglm(view: ConfigView) -> Body:
    """ChatGLM 2 and 3: ``multi_query_group_num`` KV heads, ``padded_vocab_size``, biases in q, k and v."""
    own = {"vocab_size": view.integer("padded_vocab_size"), "head_dim": view.optional_integer("kv_channels")}
    if view.flag("multi_query_attention", default=False):
        own["num_key_value_heads"] = view.integer("multi_query_group_num")
    inner = view.changed(own)
    sizes = read_sizes(inner)
    bias = view.flag("add_bias_linear", default=False)
    traits = AttentionTraits.biased(bias or view.flag("add_qkv_bias", default=True), bias)
    part = feed_forward(sizes.hidden, view.integer("ffn_hidden_size"), bias=bias)
    return decoder_body(inner, sizes, [_layer(sizes, traits, part)] * sizes.layers, rotary_share=0.5)
