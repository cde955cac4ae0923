"""Keys of GGUF files of models with states: Mamba, gated delta nets, short convolutions, and hybrids of these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvplan.catalog.gguf.metadata import GgufModel

Config = Mapping[str, Any]


def _attends(model: GgufModel) -> list[bool]:
    """Which layers have KV heads: the others keep a state."""
    counts = model.counts("attention.head_count_kv")
    if counts is None:
        raise model.keys.reject("attention.head_count_kv", "a number for each layer")
    return [count > 0 for count in counts]


def attending(model: GgufModel, config: Config) -> dict[str, Any]:
    """``layer_types`` of a hybrid whose other layers are all of one kind."""
    return {"layer_types": ["full_attention" if own else "linear_attention" for own in _attends(model)]}


def _inner(model: GgufModel, parts: int | None) -> int | None:
    """Elements of each of ``parts`` heads of a state."""
    inner = model.keys.optional_integer("ssm.inner_size")
    if inner is None or not parts:
        return None
    if inner % parts:
        raise model.keys.reject("ssm.inner_size", f"a multiple of the {parts} heads")
    return inner // parts


def _expansion(model: GgufModel) -> int | None:
    """How many times the hidden size the inner channels are."""
    inner, hidden = model.keys.optional_integer("ssm.inner_size"), model.keys.integer("embedding_length")
    if inner is not None and inner % hidden:
        raise model.keys.reject("ssm.inner_size", f"a multiple of {hidden}")
    return None if inner is None else inner // hidden


def mamba(model: GgufModel, config: Config) -> dict[str, Any]:
    """Mamba and Mamba 2, which has groups; norms without weights make the first Falcon Mamba."""
    keys = model.keys
    heads = keys.optional_integer("ssm.time_step_rank")
    shared = {
        "state_size": keys.config.get("ssm.state_size"),
        "conv_kernel": keys.config.get("ssm.conv_kernel"),
        "expand": _expansion(model),
    }
    if model.architecture == "mamba2":
        groups = keys.config.get("ssm.group_count")
        return {**shared, "num_heads": heads, "head_dim": _inner(model, heads), "n_groups": groups}
    found = {**shared, "intermediate_size": keys.config.get("ssm.inner_size"), "time_step_rank": heads}
    is_falcon = keys.flag("ssm.dt_b_c_rms", default=False)
    return {**found, "architectures": ["FalconMambaForCausalLM"]} if is_falcon else found


def mamba2(model: GgufModel, config: Config) -> dict[str, Any]:
    """Mamba 2 beside attention, by the names that Granite 4 and Falcon H1 share."""
    keys = model.keys.config
    return {
        "mamba_d_ssm": keys.get("ssm.inner_size"),
        "mamba_n_heads": keys.get("ssm.time_step_rank"),
        "mamba_d_state": keys.get("ssm.state_size"),
        "mamba_n_groups": keys.get("ssm.group_count"),
        "mamba_d_conv": keys.get("ssm.conv_kernel"),
    }


def falcon_h1(model: GgufModel, config: Config) -> dict[str, Any]:
    """A norm of the state's output, where it has one."""
    return {"mamba_rms_norm": model.has("ssm_norm.weight")}


def granite_hybrid(model: GgufModel, config: Config) -> dict[str, Any]:
    """Experts beside a shared feed-forward, or that alone; positions turn where the file says so (Bamba)."""
    dense = model.width("ffn_up.weight") or config.get("intermediate_size")
    return {
        "shared_intermediate_size": config.get("shared_expert_intermediate_size")
        if config.get("num_experts")
        else dense,
        "position_embedding_type": "rope" if model.keys.flag("rope.scaling.finetuned", default=False) else "nope",
    }


def jamba(model: GgufModel, config: Config) -> dict[str, Any]:
    """Layers that attend and layers with experts, each by a period and where it begins."""
    period, offset = _periodic(model, _attends(model), "attention.head_count_kv")
    expert_period, expert_offset = _periodic(model, model.layers_with("ffn_gate_inp.weight"), "expert_count")
    return {
        "attn_layer_period": period,
        "attn_layer_offset": offset,
        "expert_layer_period": expert_period,
        "expert_layer_offset": expert_offset,
        "mamba_expand": _expansion(model),
        "mamba_d_state": model.keys.config.get("ssm.state_size"),
        "mamba_d_conv": model.keys.config.get("ssm.conv_kernel"),
        "mamba_dt_rank": model.keys.config.get("ssm.time_step_rank"),
    }


def _periodic(model: GgufModel, flags: list[bool], key: str) -> tuple[int, int]:
    """The distance of the layers that are so, and the first one; of one or none a distance beyond the last layer."""
    found = [index for index, own in enumerate(flags) if own]
    first, period = (found or [0])[0], found[1] - found[0] if len(found) > 1 else len(flags) + 1
    if not found:
        return len(flags) + 1, len(flags)
    if found != list(range(first, len(flags), period)) or first >= period:
        raise model.keys.reject(key, "layers at equal distances")
    return period, first


def nemotron_h(model: GgufModel, config: Config) -> dict[str, Any]:
    """Each layer is one thing: it has KV heads, or a width, or is Mamba 2."""
    widths, heads = model.counts("feed_forward_length"), model.keys.optional_integer("ssm.time_step_rank")
    if widths is None:
        raise model.keys.reject("feed_forward_length", "a number for each layer")
    part = "E" if config.get("num_experts") else "-"
    letters = ["*" if own else part if width else "M" for own, width in zip(_attends(model), widths, strict=True)]
    return {
        "hybrid_override_pattern": "".join(letters),
        "mtp_hybrid_override_pattern": "*E" if config.get("num_nextn_predict_layers") else None,
        "mamba_num_heads": heads,
        "mamba_head_dim": _inner(model, heads),
        "ssm_state_size": model.keys.config.get("ssm.state_size"),
        "n_groups": model.keys.config.get("ssm.group_count"),
        "conv_kernel": model.keys.config.get("ssm.conv_kernel"),
        "moe_shared_expert_intermediate_size": config.get("shared_expert_intermediate_size"),
        "moe_latent_size": model.keys.config.get("moe_latent_size"),
        # the mixtures' published configs keep their states so, the older models' do not say
        "mamba_ssm_cache_dtype": "float32" if part == "E" else None,
    }


def delta_net(model: GgufModel, config: Config) -> dict[str, Any]:
    """Qwen3-Next and Qwen 3.5: gated delta nets, and attention every few layers."""
    keys = model.keys
    heads = keys.optional_integer("ssm.time_step_rank")
    return {
        "linear_num_key_heads": keys.config.get("ssm.group_count"),
        "linear_key_head_dim": keys.config.get("ssm.state_size"),
        "linear_num_value_heads": heads,
        "linear_value_head_dim": _inner(model, heads),
        "linear_conv_kernel_dim": keys.config.get("ssm.conv_kernel"),
        "full_attention_interval": keys.config.get("full_attention_interval"),
        "attention_bias": False,  # a biased attn_qkv would be a delta net's
        # Qwen 3.5's class keeps its states so
        "mamba_ssm_dtype": None if model.architecture == "qwen3next" else "float32",
        "mtp_num_hidden_layers": config.get("num_nextn_predict_layers") or 0,
        "rope_scaling": _in_sections(model, config),
    }


def _in_sections(model: GgufModel, config: Config) -> Any:
    """The scaling, with which parts of a head turn by time, height and width where the file says so."""
    scaling, sections = config.get("rope_scaling"), model.keys.integers("rope.dimension_sections")
    return {**(scaling or {"rope_type": "default"}), "mrope_section": sections[:3]} if sections else scaling


def kimi_linear(model: GgufModel, config: Config) -> dict[str, Any]:
    """Kimi Delta Attention, with latent attention in the layers that have a KV head."""
    full = [index + 1 for index, own in enumerate(_attends(model)) if own]
    return {
        "linear_attn_config": {
            "num_heads": config.get("num_attention_heads"),
            "head_dim": model.keys.config.get("kda.head_dim"),
            "short_conv_kernel_size": model.keys.config.get("ssm.conv_kernel"),
            "full_attn_layers": full,
        },
        "rotary_dim": None,
    }


def lfm2(model: GgufModel, config: Config) -> dict[str, Any]:
    """Short convolutions; the file has the feed-forward's size as it is, where configs have one to be adjusted."""
    return {
        "conv_L_cache": model.keys.config.get("shortconv.l_cache"),
        "block_auto_adjust_ff_dim": False,
        "num_experts": config.get("num_experts"),
    }
