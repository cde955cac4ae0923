"""Headers of GGUF files as llama.cpp's converters write them from a config.json, without the weights.

Each function writes what the converter of that name in ``conversion/`` of ggml-org/llama.cpp writes for a family
(``set_gguf_parameters``), by the ``gguf`` package's own writer; keys that its release does not know yet go by name. Of
the tensors only those are there whose presence or shape tells something of the model.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf

Config = dict[str, Any]
Shapes = dict[str, tuple[int, ...]]
"""Of tensors, the outputs first, as PyTorch has them."""


class Header:
    """A file being written. ``config``: the language model's, ``shapes``: tensors of it."""

    def __init__(self, path: Path, architecture: str, config: Config) -> None:
        self.writer = gguf.GGUFWriter(path, architecture)
        self.architecture = architecture
        self.config = text_of(config)
        self.shapes: Shapes = {}
        hidden, vocab = self.get("hidden_size", "n_embd", "d_model"), self.get("padded_vocab_size", "vocab_size")
        self.shapes["token_embd.weight"] = (vocab, hidden)
        self.blocks = int(self.get("num_hidden_layers", "n_layer", "n_layers", "num_layers"))

    def get(self, *keys: str, default: Any = None) -> Any:
        return next((self.config[key] for key in keys if self.config.get(key) is not None), default)

    def number(self, key: str, value: int | None) -> None:
        if value is not None:
            self.writer.add_uint32(f"{self.architecture}.{key}", value)

    def untie(self) -> None:
        self.shapes["output.weight"] = self.shapes["token_embd.weight"]

    def block(self, index: int, name: str, *shape: int) -> None:
        self.shapes[f"blk.{index}.{name}"] = shape or (8,)

    def close(self) -> None:
        for name, shape in self.shapes.items():
            elements = 1
            for size in shape:
                elements *= size
            self.writer.add_tensor_info(name, list(shape), "float16", 2 * elements, gguf.GGMLQuantizationType.F16)
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_ti_data_to_file()
        self.writer.close()


def text_of(config: Config) -> Config:
    inner = config.get("text_config") or config.get("language_config") or {}
    return {**config, **inner}


def text_model(header: Header) -> None:
    """TextModel: what most families share."""
    w, get = header.writer, header.get
    w.add_block_count(header.blocks)
    pairs: list[tuple[Callable[[Any], None], tuple[str, ...]]] = [
        (w.add_context_length, ("max_position_embeddings", "n_ctx", "n_positions", "max_length", "model_max_length")),
        (w.add_embedding_length, ("hidden_size", "n_embd", "dim")),
        (w.add_feed_forward_length, ("intermediate_size", "n_inner", "hidden_dim")),
        (w.add_head_count, ("num_attention_heads", "n_head", "n_heads")),
        (w.add_head_count_kv, ("num_key_value_heads", "n_kv_heads")),
        (w.add_expert_count, ("num_local_experts", "num_experts")),
        (w.add_expert_used_count, ("num_experts_per_tok", "num_experts_per_token", "top_k_experts")),
    ]
    for add, keys in pairs:
        value = get(*keys)
        if value is not None and not isinstance(value, list):
            add(value)
    scaling = get("rope_parameters", "rope_scaling", default={})
    theta = get("rope_theta", "rotary_emb_base", default=scaling.get("rope_theta"))
    if isinstance(theta, (int, float)):
        w.add_rope_freq_base(theta)
    if scaling.get("rope_type", scaling.get("type")) == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(scaling["factor"])
        w.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
    if get("head_dim") is not None:
        w.add_key_length(get("head_dim"))
        w.add_value_length(get("head_dim"))


def multi_token(header: Header) -> None:
    """Blocks behind the layers, as many as ``num_nextn_predict_layers`` says."""
    count = header.get("num_nextn_predict_layers", "mtp_num_hidden_layers", default=0)
    if count:
        header.number("nextn_predict_layers", count)
        header.writer.add_block_count(header.blocks + count)
        for index in range(header.blocks, header.blocks + count):
            header.block(index, "nextn.eh_proj.weight")


def experts(header: Header) -> None:
    """Expert keys that several converters write one by one."""
    get, w = header.get, header.writer
    count = get("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    if count:
        w.add_expert_count(count)
    used = get("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_top_k", "moe_topk")
    if used:
        w.add_expert_used_count(used[0] if isinstance(used, list) else used)
    size = get("moe_intermediate_size")
    if size:
        w.add_expert_feed_forward_length(size[0] if isinstance(size, list) else size)
    shared = get("n_shared_experts", "num_shared_experts")
    if shared is not None:
        w.add_expert_shared_count(shared)
    first = get("first_k_dense_replace", "num_dense_layers", "first_last_k_dense_replace")
    if first is not None:
        w.add_leading_dense_block_count(first)


def windows(header: Header) -> None:
    if header.get("sliding_window"):
        header.writer.add_sliding_window(header.get("sliding_window"))


def window_pattern(header: Header) -> None:
    windows(header)
    if header.get("sliding_window") and header.get("layer_types"):
        header.writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in header.get("layer_types")])


def qwen_moe(header: Header) -> None:
    experts(header)
    size = header.get("shared_expert_intermediate_size")
    if size is not None:
        header.writer.add_expert_shared_feed_forward_length(size)


def qwen_delta(header: Header) -> None:
    qwen_moe(header)
    w, get = header.writer, header.get
    w.add_ssm_conv_kernel(get("linear_conv_kernel_dim"))
    w.add_ssm_state_size(get("linear_key_head_dim"))
    w.add_ssm_group_count(get("linear_num_key_heads"))
    w.add_ssm_time_step_rank(get("linear_num_value_heads"))
    w.add_ssm_inner_size(get("linear_value_head_dim") * get("linear_num_value_heads"))
    w.add_full_attention_interval(get("full_attention_interval", default=4))
    head = get("head_dim", default=get("hidden_size") // get("num_attention_heads"))
    w.add_rope_dimension_count(int(head * 0.25))


def gemma3n(header: Header) -> None:
    w, get = header.writer, header.get
    window_pattern(header)
    header.number("altup.num_inputs", get("altup_num_inputs"))
    header.number("embedding_length_per_layer_input", get("hidden_size_per_layer_input"))
    header.number("attention.shared_kv_layers", get("num_kv_shared_layers"))
    w.add_feed_forward_length(get("intermediate_size"))
    width = header.blocks * get("hidden_size_per_layer_input")
    header.shapes["per_layer_token_embd.weight"] = (get("vocab_size"), width)


def gemma4(header: Header) -> None:
    w, get = header.writer, header.get
    window_pattern(header)
    slides = [kind == "sliding_attention" for kind in get("layer_types")]
    shared = get("num_kv_shared_layers", default=0)
    header.number("attention.shared_kv_layers", shared)
    size = get("hidden_size_per_layer_input", default=0)
    header.number("embedding_length_per_layer_input", size)
    if size:
        header.shapes["per_layer_token_embd.weight"] = (get("vocab_size_per_layer_input"), header.blocks * size)
    w.add_key_length(get("global_head_dim", default=512))
    w.add_value_length(get("global_head_dim", default=512))
    header.number("attention.key_length_swa", get("head_dim"))
    header.number("attention.value_length_swa", get("head_dim"))
    if get("moe_intermediate_size"):
        w.add_expert_feed_forward_length(get("moe_intermediate_size"))
    if get("use_double_wide_mlp"):
        inner, first = get("intermediate_size"), header.blocks - shared
        w.add_feed_forward_length([inner * (1 if index < first else 2) for index in range(header.blocks)])
    if get("num_global_key_value_heads"):
        own, full = get("num_key_value_heads"), get("num_global_key_value_heads")
        w.add_head_count_kv([own if slide else full for slide in slides])
    for index, slide in enumerate(slides):
        if slide or not get("attention_k_eq_v"):
            header.block(index, "attn_v.weight")


def deepseek2(header: Header) -> None:
    """As it is written since latents have one KV head (2025)."""
    w, get = header.writer, header.get
    rope, rank = get("qk_rope_head_dim"), get("kv_lora_rank")
    w.add_head_count_kv(1)
    experts(header)
    if get("n_routed_experts") is None:
        w.add_leading_dense_block_count(header.blocks)
        w.add_expert_feed_forward_length(get("intermediate_size"))
    if get("q_lora_rank") is not None:
        w.add_q_lora_rank(get("q_lora_rank"))
    w.add_kv_lora_rank(rank)
    w.add_key_length(rank + rope)
    w.add_value_length(rank)
    w.add_key_length_mla(get("qk_nope_head_dim") + rope)
    w.add_value_length_mla(get("v_head_dim"))
    w.add_rope_dimension_count(rope)
    if config_named(header, "DeepseekV3", "KimiK2", "Glm4MoeLite", "GlmMoeDsa"):
        header.block(header.blocks - 1, "exp_probs_b.bias")


def config_named(header: Header, *names: str) -> bool:
    return any(header.config["architectures"][0].startswith(name) for name in names)


def glm_dsa(header: Header) -> None:
    deepseek2(header)
    get = header.get
    header.number("attention.indexer.head_count", get("index_n_heads"))
    header.number("attention.indexer.key_length", get("index_head_dim"))
    header.number("attention.indexer.top_k", get("index_topk"))
    if get("indexer_types"):
        flags = [kind == "full" for kind in get("indexer_types")]
        header.writer.add_array("glm-dsa.attention.indexer.types", flags)


def deepseek4(header: Header) -> None:
    """Its drafting layers are counted and left out."""
    w, get = header.writer, header.get
    experts(header)
    w.add_rope_dimension_count(get("qk_rope_head_dim"))
    w.add_q_lora_rank(get("q_lora_rank"))
    windows(header)
    for key, own in {
        "attention.output_lora_rank": "o_lora_rank",
        "attention.output_group_count": "o_groups",
        "hash_layer_count": "num_hash_layers",
        "attention.indexer.head_count": "index_n_heads",
        "attention.indexer.key_length": "index_head_dim",
        "attention.indexer.top_k": "index_topk",
        "nextn_predict_layers": "num_nextn_predict_layers",
        "hyper_connection.count": "hc_mult",
    }.items():
        header.number(key, get(own))
    w.add_array("deepseek4.attention.compress_ratios", get("compress_ratios"))
    w.add_float32("deepseek4.attention.compress_rope_freq_base", get("compress_rope_theta"))
    header.block(header.blocks - 1, "attn_sinks.weight")


def minicpm3(header: Header) -> None:
    w, get = header.writer, header.get
    w.add_context_length(get("max_position_embeddings"))
    w.add_embedding_length(get("hidden_size"))
    w.add_block_count(header.blocks)
    w.add_feed_forward_length(get("intermediate_size"))
    w.add_head_count(get("num_attention_heads"))
    w.add_head_count_kv(get("num_key_value_heads"))
    w.add_q_lora_rank(get("q_lora_rank"))
    w.add_kv_lora_rank(get("kv_lora_rank"))
    w.add_key_length(get("qk_nope_head_dim") + get("qk_rope_head_dim"))
    w.add_rope_dimension_count(get("qk_rope_head_dim"))


def kimi_linear(header: Header) -> None:
    w, get = header.writer, header.get
    keys, rope, rank = get("linear_attn_config"), get("qk_rope_head_dim"), get("kv_lora_rank")
    experts(header)
    w.add_head_count_kv([int(index + 1 in keys["full_attn_layers"]) for index in range(header.blocks)])
    w.add_ssm_conv_kernel(keys["short_conv_kernel_size"])
    header.number("kda.head_dim", keys["head_dim"])
    w.add_kv_lora_rank(rank)
    w.add_rope_dimension_count(rope)
    w.add_key_length(rank + rope)
    w.add_key_length_mla(get("qk_nope_head_dim") + rope)
    w.add_value_length_mla(get("v_head_dim"))


def mamba(header: Header) -> None:
    w, get = header.writer, header.get
    hidden = get("hidden_size")
    inner = get("intermediate_size", default=2 * hidden)
    w.add_block_count(header.blocks)
    w.add_context_length(2**20)
    w.add_embedding_length(hidden)
    w.add_feed_forward_length(0)
    w.add_head_count(0)
    w.add_ssm_conv_kernel(get("conv_kernel"))
    w.add_ssm_inner_size(inner)
    w.add_ssm_state_size(get("state_size"))
    w.add_ssm_time_step_rank(get("time_step_rank"))
    w.add_ssm_dt_b_c_rms(get("model_type") == "falcon_mamba")


def mamba2(header: Header) -> None:
    w, get = header.writer, header.get
    hidden, head = get("hidden_size"), get("mamba_d_head", "head_dim")
    inner = get("mamba_d_ssm", "intermediate_size", default=2 * hidden)
    w.add_block_count(header.blocks)
    w.add_context_length(2**20)
    w.add_embedding_length(hidden)
    w.add_feed_forward_length(0)
    w.add_head_count(0)
    w.add_ssm_conv_kernel(get("conv_kernel", "mamba_d_conv"))
    w.add_ssm_inner_size(inner)
    w.add_ssm_state_size(get("state_size", "mamba_d_state"))
    w.add_ssm_time_step_rank(inner // head)
    w.add_ssm_group_count(get("n_groups", "mamba_n_groups", default=1))


def falcon_h1(header: Header) -> None:
    w, get = header.writer, header.get
    mamba2(header)
    w.add_context_length(get("max_position_embeddings"))
    w.add_feed_forward_length(get("intermediate_size"))
    w.add_head_count(get("num_attention_heads"))
    w.add_head_count_kv(get("num_key_value_heads"))
    w.add_key_length(get("head_dim"))
    w.add_value_length(get("head_dim"))
    if get("mamba_rms_norm"):
        header.block(0, "ssm_norm.weight")


def granite_hybrid(header: Header) -> None:
    w, get = header.writer, header.get
    text_model(header)
    if get("shared_intermediate_size"):
        w.add_expert_shared_feed_forward_length(get("shared_intermediate_size"))
    types = get("layer_types", "layers_block_type")
    listed = get("attn_layer_indices", default=[index for index, kind in enumerate(types or []) if kind == "attention"])
    w.add_head_count_kv([get("num_key_value_heads") if index in listed else 0 for index in range(header.blocks)])
    w.add_ssm_conv_kernel(get("mamba_d_conv"))
    w.add_ssm_state_size(get("mamba_d_state"))
    w.add_ssm_group_count(get("mamba_n_groups"))
    w.add_ssm_inner_size(get("mamba_expand") * get("hidden_size"))
    w.add_ssm_time_step_rank(get("mamba_n_heads"))
    w.add_rope_scaling_finetuned(config_named(header, "Bamba"))


def jamba(header: Header) -> None:
    w, get = header.writer, header.get
    offset, period = get("attn_layer_offset"), get("attn_layer_period")
    for add, value in (
        (w.add_block_count, header.blocks),
        (w.add_context_length, get("max_position_embeddings")),
        (w.add_embedding_length, get("hidden_size")),
        (w.add_feed_forward_length, get("intermediate_size")),
        (w.add_head_count, get("num_attention_heads")),
        (w.add_ssm_conv_kernel, get("mamba_d_conv")),
        (w.add_ssm_inner_size, get("mamba_expand") * get("hidden_size")),
        (w.add_ssm_state_size, get("mamba_d_state")),
        (w.add_ssm_time_step_rank, get("mamba_dt_rank")),
        (w.add_expert_count, get("num_experts")),
        (w.add_expert_used_count, get("num_experts_per_tok")),
    ):
        add(value)
    heads = get("num_key_value_heads")
    w.add_head_count_kv([heads if index % period == offset else 0 for index in range(header.blocks)])
    for index in range(get("expert_layer_offset"), header.blocks, get("expert_layer_period")):
        header.block(index, "ffn_gate_inp.weight")


def nemotron_h(header: Header) -> None:
    """The block of its drafter is both an attention and a mixture."""
    w, get = header.writer, header.get
    pattern = get("hybrid_override_pattern")
    is_mixture, count = "E" in pattern, get("num_nextn_predict_layers", default=0)
    header.blocks = len(pattern)
    text_model(header)
    letters = pattern + "B" * count
    heads = get("num_key_value_heads")
    w.add_head_count_kv([heads if letter in "*B" else 0 for letter in letters])
    size = get("moe_intermediate_size") if is_mixture else get("intermediate_size")
    w.add_feed_forward_length([size if letter in "-EB" else 0 for letter in letters])
    w.add_key_length(get("head_dim", "attention_head_dim"))
    w.add_value_length(get("head_dim", "attention_head_dim"))
    w.add_ssm_conv_kernel(get("conv_kernel"))
    w.add_ssm_state_size(get("ssm_state_size"))
    w.add_ssm_group_count(get("n_groups"))
    w.add_ssm_inner_size(get("mamba_num_heads") * get("mamba_head_dim"))
    w.add_ssm_time_step_rank(get("mamba_num_heads"))
    if is_mixture:
        experts(header)
        w.add_expert_shared_feed_forward_length(get("moe_shared_expert_intermediate_size"))
        header.number("moe_latent_size", get("moe_latent_size"))
        multi_token(header)


def lfm2(header: Header) -> None:
    w, get = header.writer, header.get
    heads = get("num_key_value_heads")
    types = get("layer_types") or [
        "full_attention" if index in get("full_attn_idxs") else "conv" for index in range(header.blocks)
    ]
    w.add_head_count_kv([heads if kind == "full_attention" else 0 for kind in types])
    header.number("shortconv.l_cache", get("conv_L_cache"))
    if get("num_experts"):
        experts(header)
        return
    size = get("block_ff_dim", "intermediate_size")
    if get("block_auto_adjust_ff_dim", default=True):
        size = int(get("block_ffn_dim_multiplier", default=1.0) * int(2 * size / 3))
        multiple = get("block_multiple_of")
        size = multiple * ((size + multiple - 1) // multiple)
    w.add_feed_forward_length(size)


def llama4(header: Header) -> None:
    w, get = header.writer, header.get
    w.add_feed_forward_length(get("intermediate_size_mlp"))
    w.add_interleave_moe_layer_step(get("interleave_moe_layer_step"))
    w.add_expert_feed_forward_length(get("intermediate_size"))


def minimax_m2(header: Header) -> None:
    header.writer.add_expert_feed_forward_length(header.get("intermediate_size"))
    header.writer.add_rope_dimension_count(header.get("rotary_dim"))


def glm4_moe(header: Header) -> None:
    experts(header)
    multi_token(header)
    header.writer.add_rope_dimension_count(header.get("head_dim") // 2)
    if header.get("use_qk_norm"):
        header.block(0, "attn_q_norm.weight")


def mimo2(header: Header) -> None:
    w, get = header.writer, header.get
    experts(header)
    pattern = [*get("hybrid_layer_pattern"), 1, 1, 1]
    heads, local = get("num_key_value_heads"), get("swa_num_key_value_heads")
    w.add_head_count_kv([local if slides else heads for slides in pattern])
    w.add_sliding_window(get("sliding_window", "sliding_window_size"))
    w.add_sliding_window_pattern([bool(slides) for slides in pattern])
    w.add_value_length(get("v_head_dim"))
    header.config["num_nextn_predict_layers"] = 3
    multi_token(header)
    for index, flag in enumerate(get("moe_layer_freq")):
        if flag:
            header.block(index, "ffn_gate_inp.weight")


def step35(header: Header) -> None:
    w, get = header.writer, header.get
    other = get("attention_other_setting", default={})
    slides = [kind == "sliding_attention" for kind in get("layer_types")]
    heads, groups = get("num_attention_heads"), get("num_attention_groups")
    w.add_head_count([other.get("num_attention_heads", heads) if own else heads for own in slides])
    w.add_head_count_kv([other.get("num_attention_groups", groups) if own else groups for own in slides])
    w.add_sliding_window(get("sliding_window"))
    w.add_sliding_window_pattern(slides)
    experts(header)
    w.add_expert_shared_feed_forward_length(get("share_expert_dim"))
    listed = sorted(int(number) for number in get("moe_layers_enum").split(","))
    w.add_leading_dense_block_count(listed[0])
    w.add_moe_every_n_layers(1)


def ernie_moe(header: Header) -> None:
    w, get = header.writer, header.get
    experts(header)
    w.add_interleave_moe_layer_step(get("moe_layer_interval"))
    w.add_leading_dense_block_count(get("moe_layer_start_index"))
    w.add_expert_shared_count(get("moe_num_shared_experts"))


def granite_moe(header: Header) -> None:
    if header.get("shared_intermediate_size"):
        header.writer.add_expert_shared_feed_forward_length(header.get("shared_intermediate_size"))


def bailing(header: Header) -> None:
    experts(header)
    get = header.get
    each = get("moe_shared_expert_intermediate_size", "moe_intermediate_size")
    header.block(header.blocks - 1, "ffn_up_shexp.weight", each * get("num_shared_experts"), get("hidden_size"))
    if get("use_qk_norm"):
        header.block(0, "attn_q_norm.weight")
    if get("moe_router_enable_expert_bias"):
        header.block(header.blocks - 1, "exp_probs_b.bias")


def exaone_moe(header: Header) -> None:
    window_pattern(header)
    experts(header)
    multi_token(header)


def gpt_oss(header: Header) -> None:
    windows(header)
    header.writer.add_expert_feed_forward_length(header.get("intermediate_size"))


def decilm(header: Header) -> None:
    w, get = header.writer, header.get
    heads, hidden, blocks = get("num_attention_heads"), get("hidden_size"), get("block_configs")
    own = [block["attention"]["n_heads_in_group"] for block in blocks]
    inner = [int(2 * (block["ffn"]["ffn_mult"] or 0.0) * hidden / 3) for block in blocks]
    w.add_head_count_kv([heads // group if group else 0 for group in own])
    w.add_head_count([heads if group else 0 for group in own])
    w.add_feed_forward_length([size if size % 256 == 0 else size + 256 - size % 256 for size in inner])
    w.add_block_count(len(blocks))
    w.add_context_length(get("max_position_embeddings"))
    w.add_embedding_length(hidden)
    w.add_key_length(hidden // heads)
    w.add_value_length(hidden // heads)


def dbrx(header: Header) -> None:
    w, get = header.writer, header.get
    inner, own = get("ffn_config"), get("attn_config")
    w.add_block_count(header.blocks)
    w.add_context_length(get("max_seq_len"))
    w.add_embedding_length(get("d_model"))
    w.add_feed_forward_length(inner["ffn_hidden_size"])
    w.add_head_count(get("n_heads"))
    w.add_head_count_kv(own["kv_n_heads"])
    w.add_expert_count(inner["moe_num_experts"])
    w.add_expert_used_count(inner["moe_top_k"])


def chatglm(header: Header) -> None:
    w, get = header.writer, header.get
    hidden = get("hidden_size")
    w.add_context_length(get("seq_length", "max_position_embeddings"))
    w.add_embedding_length(hidden)
    w.add_feed_forward_length(get("ffn_hidden_size", "intermediate_size"))
    w.add_block_count(header.blocks)
    w.add_head_count(get("num_attention_heads"))
    w.add_head_count_kv(get("multi_query_group_num", "num_key_value_heads"))
    header.block(0, "attn_qkv.bias")


def falcon(header: Header) -> None:
    w, get = header.writer, header.get
    hidden = get("hidden_size")
    w.add_context_length(2048)
    w.add_embedding_length(hidden)
    w.add_feed_forward_length(4 * hidden)
    w.add_block_count(header.blocks)
    w.add_head_count(get("num_attention_heads", "n_head"))
    w.add_head_count_kv(get("num_kv_heads", "n_head_kv", default=1) if get("new_decoder_architecture") else 1)
    if get("new_decoder_architecture"):
        header.block(0, "attn_norm_2.weight")


def classic(header: Header) -> None:
    """GPT-2, StarCoder, BLOOM and MPT: their sizes by keys of their own."""
    w, get = header.writer, header.get
    hidden, heads = get("hidden_size", "n_embd", "d_model"), get("num_attention_heads", "n_head", "n_heads")
    w.add_block_count(header.blocks)
    w.add_context_length(get("n_positions", "max_seq_len", "seq_length", default=2048))
    w.add_embedding_length(hidden)
    w.add_feed_forward_length(4 * hidden)
    w.add_head_count(heads)
    if get("multi_query"):
        w.add_head_count_kv(1)
    kv_heads = (get("attn_config") or {}).get("kv_n_heads")
    if kv_heads:
        w.add_head_count_kv(kv_heads)


def phi2(header: Header) -> None:
    w, get = header.writer, header.get
    hidden, heads = get("hidden_size", "n_embd"), get("num_attention_heads", "n_head")
    w.add_context_length(get("n_positions", "max_position_embeddings"))
    w.add_embedding_length(hidden)
    w.add_feed_forward_length(4 * hidden)
    w.add_block_count(header.blocks)
    w.add_head_count(heads)
    w.add_head_count_kv(heads)
    w.add_rope_dimension_count(int(get("partial_rotary_factor") * hidden) // heads)


def phi3(header: Header) -> None:
    header.writer.add_sliding_window(header.get("sliding_window", default=0))


def stablelm(header: Header) -> None:
    header.writer.add_parallel_residual(bool(header.get("use_parallel_residual", default=True)))
    if not header.get("use_parallel_residual"):
        header.block(0, "ffn_norm.weight")


def ocr(header: Header) -> None:
    experts(header)
    header.writer.add_head_count_kv(header.get("num_key_value_heads"))


def cohere2_moe(header: Header) -> None:
    """It has no key for the width of the dense layers in front."""
    get = header.get
    header.writer.add_expert_feed_forward_length(get("intermediate_size"))
    for index in range(get("first_k_dense_replace", default=0)):
        header.block(index, "ffn_up.weight", get("prefix_dense_intermediate_size"), get("hidden_size"))
