"""Layers with a state, as the configs of the families that have them describe it."""

from __future__ import annotations

import math
from typing import Any

from kvplan_engine.checkpoints.families.common import Config, routed, whole
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.description.mixers import State
from kvplan_engine.description.model import Shape

NO_LIMITS = (0.0, math.inf)


def mamba2_names(module: str, part: str = "") -> dict[str, str]:
    """What the parts of Mamba 2 are called within ``module`` of a layer. part: "second." for a second mixer's."""
    names = {
        "in": "in_proj",
        "conv": "conv1d",
        "A_log": "A_log",
        "D": "D",
        "step_bias": "dt_bias",
        "gated_norm": "norm",
        "out": "out_proj",
    }
    return {f"{part}{ours}": f"{module}.{theirs}" for ours, theirs in names.items()}


def mamba1_names(module: str) -> dict[str, str]:
    """The same of Mamba 1."""
    names = {
        "in": "in_proj",
        "conv": "conv1d",
        "x": "x_proj",
        "step": "dt_proj",
        "A_log": "A_log",
        "D": "D",
        "out": "out_proj",
        "step_norm": "dt_layernorm",
        "B_norm": "b_layernorm",
        "C_norm": "c_layernorm",
    }
    return {ours: f"{module}.{theirs}" for ours, theirs in names.items()}


def gated_mixture(config: Config, **others: Any) -> Mixture:
    """Qwen3-Next's experts and, behind a gate, a shared one. others: fields of ``Mixture``."""
    shared = whole(config, "shared_expert_intermediate_size")
    normalised = bool(config.get("norm_topk_prob", True))
    return routed(config, "num_experts", shared, normalised=normalised, shared_gate=shared > 0, **others)


def refuse_other_activations(config: Config, key: str = "hidden_act") -> None:
    """ValueError where a state's convolution and gate are not followed by silu, which is all that the engine has."""
    found = config.get(key) or "silu"
    if found not in ("silu", "swish"):
        raise ValueError(f"its states use '{found}', and the engine has 'silu'")


def mamba1(config: Config, prefix: str = "", *, inner: int | None = None, norms: bool = False) -> State:
    """A state of ``inner`` channels, ``expand`` times the hidden size where not said. prefix: "mamba_" (Jamba)."""
    refuse_other_activations(config)
    hidden = int(config["hidden_size"])
    size = inner or int(config.get(f"{prefix}expand", 2)) * hidden
    rank = config.get(f"{prefix}dt_rank", config.get("time_step_rank", "auto"))
    columns = int(config.get(f"{prefix}d_state") or config.get("state_size") or 16)
    return State(
        "mamba1",
        conv_channels=size,
        conv_kernel=int(config.get(f"{prefix}d_conv") or config.get("conv_kernel") or 4),
        recurrent_shape=(size, columns),
        rank=math.ceil(hidden / 16) if rank == "auto" else int(rank),
        bias=bool(config.get(f"{prefix}proj_bias", config.get("use_bias", False))),
        conv_bias=bool(config.get(f"{prefix}conv_bias", config.get("use_conv_bias", True))),
        norms=norms,
    )


def mamba2(heads: int, head_size: int, columns: int, groups: int, kernel: int, **others: Any) -> State:
    """Heads of ``head_size`` x ``columns``; B and C go through the convolution beside the heads' inputs.

    others: fields of ``State``, in which the output has a bias where the input has one.
    """
    usual = {"conv_bias": True, "norms": True, "output_bias": others.get("bias", False)}
    return State(
        "mamba2",
        conv_channels=heads * head_size + 2 * groups * columns,
        conv_kernel=kernel,
        recurrent_shape=(heads, head_size, columns),
        num_heads=heads,
        num_groups=groups,
        **(usual | others),
    )


def step_limits(config: Config) -> tuple[float, float]:
    """``time_step_limit``, whose infinity is a number or, as transformers writes it, an object."""
    least, most = config.get("time_step_limit") or NO_LIMITS
    return float(least), math.inf if isinstance(most, dict) else float(most)


def prefixed_mamba2(config: Config, **others: Any) -> State:
    """Mamba 2 by the keys of Bamba, Granite 4 and Falcon H1, which begin with "mamba_". others: as for ``mamba2``."""
    refuse_other_activations(config)
    hidden = int(config["hidden_size"])
    inner = int(config.get("mamba_d_ssm") or int(config.get("mamba_expand", 2)) * hidden)
    heads = int(config.get("mamba_n_heads", 128))
    size = config.get("mamba_d_head", "auto")
    return mamba2(
        heads,
        inner // heads if size == "auto" else int(size),
        columns=int(config.get("mamba_d_state", 256)),
        groups=int(config.get("mamba_n_groups", 1)),
        kernel=int(config.get("mamba_d_conv", 4)),
        bias=bool(config.get("mamba_proj_bias", False)),
        conv_bias=bool(config.get("mamba_conv_bias", True)),
        step_limits=step_limits(config),
        **others,
    )


def gated_delta(config: Config) -> State:
    """Gated DeltaNet by Qwen's keys; its state is as ``mamba_ssm_dtype`` says, else as the model."""
    key_heads, heads = int(config["linear_num_key_heads"]), int(config["linear_num_value_heads"])
    key_size, value_size = int(config["linear_key_head_dim"]), int(config["linear_value_head_dim"])
    return State(
        "gated_delta",
        conv_channels=2 * key_heads * key_size + heads * value_size,
        conv_kernel=int(config.get("linear_conv_kernel_dim", 4)),
        recurrent_shape=(heads, value_size, key_size),
        recurrent_dtype=config.get("mamba_ssm_dtype"),
        num_heads=heads,
        key_heads=key_heads,
        key_size=key_size,
        value_size=value_size,
    )


def kimi_delta(heads: int, size: int, conv_kernel: int, **gates: Any) -> State:
    """Queries, keys and values each have ``heads`` heads of ``size`` and convolutions of their own.

    gates: which of them are one matrix (``full_gate``, ``full_decay`` of ``State``).
    """
    return State(
        "kimi_delta",
        conv_channels=3 * heads * size,
        conv_kernel=conv_kernel,
        recurrent_shape=(heads, size, size),
        recurrent_dtype="float32",
        num_heads=heads,
        key_heads=heads,
        key_size=size,
        value_size=size,
        rank=size,
        **gates,
    )


def kimi_delta_by_keys(config: Config) -> State:
    """Kimi Delta Attention by the keys of the published config.json, or by transformers'."""
    published = config.get("linear_attn_config") or {}
    heads = int(published.get("num_heads") or config["linear_num_heads"])
    size = int(published.get("head_dim") or config["linear_head_dim"])
    kernel = int(published.get("short_conv_kernel_size") or config.get("linear_conv_kernel_dim", 4))
    return kimi_delta(heads, size, kernel, full_gate=bool(published.get("use_full_rank_gate")))


def weighed(config: Config, *names: str) -> tuple[Shape, ...]:
    """A norm and one row of scores each, for what earlier blocks left (attention residuals of Kimi K3, AliceAI)."""
    sizes = (int(config["hidden_size"]),)
    return tuple(Shape(f"{name}_res_{part}", sizes) for name in names for part in ("norm", "proj"))


def lightning(heads: int, size: int, **others: Any) -> State:
    """Linear attention with a decay, without a convolution. others: fields of ``State``."""
    return State(
        "linear_attention",
        conv_channels=0,
        conv_kernel=1,
        recurrent_shape=(heads, size, size),
        num_heads=heads,
        key_heads=heads,
        key_size=size,
        value_size=size,
        **others,
    )
