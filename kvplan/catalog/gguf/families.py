"""What one family's GGUF files say in words of their own: a few functions for each of llama.cpp's architectures.

Each takes the file and the config so far and returns further keys of it; None removes one. Names of keys and what
stands in them: the family's converter in ``conversion/`` of ggml-org/llama.cpp, read in October 2026.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kvplan.catalog.gguf.metadata import GgufModel
from kvplan.catalog.gguf.state_families import (
    attending,
    delta_net,
    falcon_h1,
    granite_hybrid,
    jamba,
    kimi_linear,
    lfm2,
    mamba,
    mamba2,
    nemotron_h,
)

Config = Mapping[str, Any]
OwnKeys = Callable[[GgufModel, Config], dict[str, Any]]


def renamed(**names: str) -> OwnKeys:
    """Return what gives keys of the config under further names."""
    return lambda model, config: {new: config.get(old) for new, old in names.items()}


def from_key(**names: str) -> OwnKeys:
    """Return what gives keys of the file as they are; two underscores stand for a point."""
    return lambda model, config: {meant: model.keys.config.get(key.replace("__", ".")) for meant, key in names.items()}


def where_present(**names: str) -> OwnKeys:
    """Return what gives flags: whether any layer has a tensor, its point written as two underscores."""
    return lambda model, config: {meant: model.has(name.replace("__", ".")) for meant, name in names.items()}


def named(architecture: str, *, when: str) -> OwnKeys:
    """Return what names another architecture where the config has ``when``."""
    return lambda model, config: {"architectures": [architecture]} if config.get(when) else {}


def fixed(**values: Any) -> OwnKeys:
    """Return what every file of the family has."""
    return lambda model, config: values


def window_pattern(model: GgufModel, config: Config) -> dict[str, Any]:
    """``layer_types`` where the file lists which layers slide."""
    slides = model.slides()
    if slides is None:
        return {}
    return {"layer_types": ["sliding_attention" if slide else "full_attention" for slide in slides]}


def sparse_layers(model: GgufModel, config: Config) -> dict[str, Any]:
    """Which layers have experts: those with a router."""
    return {"mlp_layer_types": ["sparse" if own else "dense" for own in model.layers_with("ffn_gate_inp.weight")]}


def expert_sizes(model: GgufModel, config: Config) -> dict[str, Any]:
    """Sizes that older files leave out, as llama.cpp has them then (src/models/qwen2moe.cpp, 623ac8d, 2026)."""
    size, chosen = config.get("intermediate_size"), config.get("num_experts_per_tok")
    if not isinstance(size, int) or not isinstance(chosen, int) or not chosen:
        return {}
    found = {"moe_intermediate_size": size // chosen, "shared_expert_intermediate_size": size}
    return {key: value for key, value in found.items() if config.get(key) is None}


def latent(model: GgufModel, config: Config) -> dict[str, Any]:
    """Sizes of a latent's heads: the key's holds the rotary part. Older files have them where newer ones have the
    latent's own."""
    rope = model.keys.optional_integer("rope.dimension_count")
    ending = "_mla" if model.keys.has("attention.key_length_mla") else ""
    key = model.keys.optional_integer(f"attention.key_length{ending}")
    value = model.keys.optional_integer(f"attention.value_length{ending}") or config.get("head_dim")
    sizes = {"head_dim": None, "num_key_value_heads": None, "qk_rope_head_dim": rope, "v_head_dim": value}
    if key is None or rope is None:
        return sizes
    if key <= rope:
        raise model.keys.reject(f"attention.key_length{ending}", f"more than the {rope} elements that turn")
    return {**sizes, "qk_nope_head_dim": key - rope}


def even_value(model: GgufModel, config: Config) -> dict[str, Any]:
    """Values of the heads' share of the hidden size, where no key says another."""
    heads = model.one("attention.head_count")
    size = model.keys.integer("embedding_length") // heads if heads else None
    return {"v_head_dim": model.keys.optional_integer("attention.value_length") or size}


def deepseek2(model: GgufModel, config: Config) -> dict[str, Any]:
    """DeepSeek V2; V3 where routers have a correction, Youtu where there are no experts."""
    if not config.get("num_experts"):
        return {"architectures": ["YoutuForCausalLM"]}
    is_corrected = model.has("exp_probs_b.bias") or model.has("exp_probs_b.weight")
    return {"architectures": ["DeepseekV3ForCausalLM"]} if is_corrected else {}


def indexer(model: GgufModel, config: Config) -> dict[str, Any]:
    """The sparse attention's indexer, and which layers have one of their own."""
    types = model.keys.items("attention.indexer.types")
    if types is not None and len(types) < model.num_layers:
        raise model.keys.reject("attention.indexer.types", f"one flag for each of {model.num_layers} layers")
    return {
        "index_n_heads": model.keys.config.get("attention.indexer.head_count"),
        "index_head_dim": model.keys.config.get("attention.indexer.key_length"),
        "index_topk": model.keys.config.get("attention.indexer.top_k"),
        "indexer_types": None if types is None else ["full" if own else "shared" for own in types],
    }


def falcon(model: GgufModel, config: Config) -> dict[str, Any]:
    """Several KV heads or a second norm of a layer's input make it the newer decoder (Falcon 2, 40B and 180B)."""
    kv_heads, has_two_norms = config.get("num_key_value_heads"), model.has("attn_norm_2.weight")
    return {
        "new_decoder_architecture": has_two_norms or (kv_heads or 1) > 1,
        "num_ln_in_parallel_attn": 2 if has_two_norms else 1,
        "num_kv_heads": kv_heads,
        "bias": config.get("attention_bias"),
        "ffn_hidden_size": config.get("intermediate_size"),
    }


def stablelm(model: GgufModel, config: Config) -> dict[str, Any]:
    """Attention and feed-forward share a norm where a layer has but one."""
    return {
        "use_parallel_residual": not model.has("ffn_norm.weight"),
        "use_qkv_bias": config.get("attention_bias"),
        "qk_layernorm": model.has("attn_q_norm.weight"),
    }


def mpt(model: GgufModel, config: Config) -> dict[str, Any]:
    """Its KV heads and its width stand elsewhere."""
    hidden, inner = model.keys.integer("embedding_length"), model.one("feed_forward_length")
    if inner is not None and inner % hidden:
        raise model.keys.reject("feed_forward_length", f"a multiple of {hidden}")
    return {
        "attn_config": {"kv_n_heads": config.get("num_key_value_heads")},
        "expansion_ratio": None if inner is None else inner // hidden,
    }


def dbrx(model: GgufModel, config: Config) -> dict[str, Any]:
    """Its sizes stand in two objects."""
    return {
        "attn_config": {"kv_n_heads": config.get("num_key_value_heads")},
        "ffn_config": {
            "moe_num_experts": config.get("num_experts"),
            "moe_top_k": config.get("num_experts_per_tok"),
            "ffn_hidden_size": config.get("intermediate_size"),
        },
    }


def feed_forward_width(model: GgufModel, config: Config) -> dict[str, Any]:
    """The width as it is: of Granite 4's dense models the key says another one's."""
    return {"intermediate_size": model.width("ffn_up.weight") or config.get("intermediate_size")}


def cohere2_moe(model: GgufModel, config: Config) -> dict[str, Any]:
    """The width of the dense layers in front, which no key says; the file's width is the experts'."""
    return {"prefix_dense_intermediate_size": model.width("ffn_up.weight")}


def decilm(model: GgufModel, config: Config) -> dict[str, Any]:
    """Nemotron-NAS: of each layer its heads and its width; a layer without KV heads and with others is linear."""
    listed = ("attention.head_count", "attention.head_count_kv", "feed_forward_length")
    for key in listed:
        if not model.keys.has(key):
            raise model.keys.reject(key, "a number for each layer")
    heads, kv_heads, widths = (model.counts(key) or [] for key in listed)
    hidden = model.keys.integer("embedding_length")
    if any(width % 256 for width in widths):
        raise model.keys.reject("feed_forward_length", "multiples of 256")
    # The reader makes a width of a multiple of the hidden size; half an element less than it is rounded up to it.
    blocks = [
        {
            "attention": {
                "no_op": not own and not count,
                "replace_with_linear": bool(count and not own),
                "n_heads_in_group": count // own if own else None,
            },
            "ffn": {"no_op": not width, "ffn_mult": max(width - 0.5, 0.0) * 1.5 / hidden},
        }
        for count, own, width in zip(heads, kv_heads, widths, strict=True)
    ]
    return {"block_configs": blocks}


def shared_width(model: GgufModel, config: Config) -> dict[str, Any]:
    """The width of one of a layer's shared experts, which are stored as one."""
    count, width = config.get("num_shared_experts"), model.width("ffn_up_shexp.weight")
    return {"moe_shared_expert_intermediate_size": width // count} if count and width else {}


def mimo2(model: GgufModel, config: Config) -> dict[str, Any]:
    """Layers that slide have more KV heads than the others."""
    slides, heads = model.slides(), model.counts("attention.head_count_kv")
    if slides is None or heads is None:
        raise model.keys.reject("attention.sliding_window_pattern", "one flag for each layer")
    return {
        "hybrid_layer_pattern": [int(slide) for slide in slides],
        "num_key_value_heads": next((own for own, slide in zip(heads, slides, strict=True) if not slide), None),
        "swa_num_key_value_heads": next((own for own, slide in zip(heads, slides, strict=True) if slide), None),
        "num_nextn_predict_layers": None,
    }


def step35(model: GgufModel, config: Config) -> dict[str, Any]:
    """Layers that slide have more heads than the others; all have as many KV heads."""
    slides, heads = model.slides(), model.counts("attention.head_count")
    if slides is None or heads is None:
        raise model.keys.reject("attention.sliding_window_pattern", "one flag for each layer")
    if len(set(model.counts("attention.head_count_kv") or [])) > 1:
        raise model.keys.reject("attention.head_count_kv", "as many KV heads in every layer")
    full = next((own for own, slide in zip(heads, slides, strict=True) if not slide), None)
    local = next((own for own, slide in zip(heads, slides, strict=True) if slide), full)
    first, step = model.keys.integer("leading_dense_block_count", default=0, minimum=0), "moe_every_n_layers"
    if model.keys.integer(step, default=1) != 1:
        raise model.keys.reject(step, "1 (other steps are not known)")
    return {
        "num_attention_heads": full,
        "num_attention_groups": config.get("num_key_value_heads"),
        "num_sliding_attention_heads": local,
        "share_expert_dim": config.get("shared_expert_intermediate_size"),
        "mlp_layer_types": ["dense" if index < first else "sparse" for index in range(model.num_layers)],
    }


def gemma3n(model: GgufModel, config: Config) -> dict[str, Any]:
    """Per-layer embeddings, whose table may have another vocabulary, and how many layers share a cache."""
    table = model.shapes.get("per_layer_token_embd.weight")
    return {
        "altup_num_inputs": model.keys.config.get("altup.num_inputs"),
        "hidden_size_per_layer_input": model.keys.integer("embedding_length_per_layer_input", default=0, minimum=0),
        "vocab_size_per_layer_input": None if table is None else table[-1],
        "num_kv_shared_layers": model.keys.integer("attention.shared_kv_layers", default=0, minimum=0),
        "intermediate_size": model.counts("feed_forward_length"),
    }


def gemma4(model: GgufModel, config: Config) -> dict[str, Any]:
    """Full layers have heads of another size, and as values their keys where they have no matrix for values."""
    slides, kv_heads = model.slides(), model.counts("attention.head_count_kv")
    widths = model.counts("feed_forward_length")
    if slides is None or kv_heads is None or widths is None:
        raise model.keys.reject("attention.sliding_window_pattern", "one flag for each layer")
    full = [index for index, slide in enumerate(slides) if not slide]
    values = model.layers_with("attn_v.weight")
    keys = {key: value for key, value in gemma3n(model, config).items() if key != "altup_num_inputs"}
    return {
        **keys,
        "global_head_dim": model.keys.config.get("attention.key_length"),
        "head_dim": model.keys.config.get("attention.key_length_swa"),
        "v_head_dim": None,
        "num_key_value_heads": next((own for own, slide in zip(kv_heads, slides, strict=True) if slide), kv_heads[0]),
        "num_global_key_value_heads": kv_heads[full[-1]] if full else None,
        "attention_k_eq_v": bool(full) and not any(values[index] for index in full),
        "intermediate_size": widths[0],
        "use_double_wide_mlp": max(widths) == 2 * widths[0],
        "enable_moe_block": bool(config.get("num_experts")),
        "top_k_experts": config.get("num_experts_per_tok"),
    }


def deepseek4(model: GgufModel, config: Config) -> dict[str, Any]:
    """Compressed attention by layer, in streams that are joined and parted."""
    keys = model.keys.config
    return {
        "o_lora_rank": keys.get("attention.output_lora_rank"),
        "o_groups": keys.get("attention.output_group_count"),
        "compress_ratios": keys.get("attention.compress_ratios"),
        "compress_rope_theta": keys.get("attention.compress_rope_freq_base"),
        "num_hash_layers": keys.get("hash_layer_count"),
        "hc_mult": keys.get("hyper_connection.count"),
        "qk_rope_head_dim": keys.get("rope.dimension_count"),
        "rotary_dim": None,
    }


_GRANITE = (
    renamed(shared_intermediate_size="shared_expert_intermediate_size"),
    named("GraniteMoeSharedForCausalLM", when="shared_intermediate_size"),
)
_QK_NORM = where_present(use_qk_norm="attn_q_norm__weight")
_BIASES = renamed(bias="attention_bias", qkv_bias="attention_bias", use_bias="mlp_bias", use_qkv_bias="attention_bias")
_BAILING = (_BIASES, _QK_NORM, shared_width, where_present(moe_router_enable_expert_bias="exp_probs_b__bias"))
_CLASSIC = renamed(n_positions="max_position_embeddings", n_inner="intermediate_size")

OWN_KEYS: Mapping[str, tuple[OwnKeys, ...]] = {
    "bailingmoe": _BAILING,
    "bailingmoe2": _BAILING,
    "cohere2moe": (window_pattern, cohere2_moe),
    "command-r": (_QK_NORM,),
    "dbrx": (dbrx,),
    "deci": (decilm,),
    "deepseek2": (deepseek2, latent),
    "deepseek4": (deepseek4, indexer),
    "ernie4_5": (_BIASES,),
    "ernie4_5-moe": (
        _BIASES,
        renamed(moe_layer_start_index="first_k_dense_replace", moe_num_shared_experts="num_shared_experts"),
        from_key(moe_layer_interval="interleave_moe_layer_step"),
    ),
    "exaone-moe": (window_pattern,),
    "exaone4": (window_pattern,),
    "falcon": (falcon,),
    "falcon-h1": (mamba2, falcon_h1),
    "gemma3n": (window_pattern, gemma3n),
    "gemma4": (window_pattern, gemma4),
    "glm-dsa": (latent, indexer),
    "glm4moe": (_QK_NORM,),
    "gpt-oss": (renamed(intermediate_size="moe_intermediate_size"),),
    "gpt2": (_CLASSIC,),
    "granite": (feed_forward_width,),
    "granitehybrid": (mamba2, attending, granite_hybrid),
    "granitemoe": _GRANITE,
    "jamba": (jamba,),
    "kimi-linear": (latent, kimi_linear),
    "lfm2": (attending, lfm2),
    "lfm2moe": (attending, lfm2),
    "llama": (named("MixtralForCausalLM", when="num_experts"),),
    "llama4": (
        renamed(intermediate_size_mlp="intermediate_size"),
        renamed(intermediate_size="moe_intermediate_size"),
        from_key(interleave_moe_layer_step="interleave_moe_layer_step"),
    ),
    "mamba": (mamba,),
    "mamba2": (mamba,),
    "mimo2": (sparse_layers, mimo2),
    "minicpm3": (latent, even_value),
    "mistral4": (latent,),
    "mpt": (mpt,),
    "nemotron_h": (nemotron_h,),
    "nemotron_h_moe": (nemotron_h,),
    "olmo2": (window_pattern, named("Olmo3ForCausalLM", when="sliding_window")),
    "pangu-embedded": (_BIASES, where_present(attention_bias="attn_output__bias")),
    "phimoe": (lambda model, config: {"lm_head_bias": "output.bias" in model.shapes},),
    "qwen2moe": (expert_sizes,),
    "qwen35": (delta_net,),
    "qwen35moe": (delta_net,),
    "qwen3moe": (expert_sizes,),
    "qwen3next": (delta_net,),
    "qwen3vlmoe": (expert_sizes,),
    "stablelm": (stablelm,),
    "starcoder": (_CLASSIC, lambda model, config: {"multi_query": config.get("num_key_value_heads") == 1}),
    "starcoder2": (_BIASES,),
    "step35": (window_pattern, step35),
}
"""By llama.cpp's name of the architecture; one that is not here is read by the shared keys alone."""
