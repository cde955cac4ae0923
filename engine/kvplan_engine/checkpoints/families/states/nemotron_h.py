"""Nemotron H and Nemotron 3: each layer is one block, of Mamba 2, attention, an MLP or experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.common import attention, model, norms
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.states.parts import mamba2, mamba2_names, refuse_other_activations, step_limits
from kvplan_engine.checkpoints.fields import activation, window
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.feed_forward import Mixture, Mlp
from kvplan_engine.description.mixers import Attention, State
from kvplan_engine.description.model import Layer, ModelDescription

_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_KINDS = {"linear_attention": "mamba", "full_attention": "attention"}


def read_nemotron_h(config: dict[str, Any]) -> ModelDescription:
    """transformers: NemotronHModel."""
    norm = norms(config, key="layer_norm_epsilon")
    parts = {"mamba": _mamba, "attention": _attention, "mlp": _mlp, "moe": _mixture}
    layers = []
    for kind in _kinds(config):
        part = parts[kind](config)
        is_mixer = isinstance(part, State | Attention)
        layers.append(Layer((part,), None, norm) if is_mixer else Layer((), part, norm))  # type: ignore[arg-type]
    return model(config, layers, norm, max_positions=4096)


def read_nemotron_puzzle(config: dict[str, Any]) -> ModelDescription:
    """Read it as vLLM does (vllm/model_executor/models/nemotron_h.py): each block has keys of its own."""
    norm = norms(config, key="layer_norm_epsilon")
    layers = []
    for block in config["block_configs"]:
        own, kind = {**config, **block}, block["block_type"]
        if kind == "attention":
            layers.append(Layer((replace(_attention(own), kept=window(own.get("sliding_window"))),), None, norm))
        elif kind == "mamba":
            layers.append(Layer((_mamba(own),), None, norm))
        else:
            layers.append(Layer((), _mlp(own) if kind == "mlp" else _mixture(own), norm))
    return model(config, layers, norm, max_positions=None)


def _kinds(config: dict[str, Any]) -> list[str]:
    """A letter or a name of each layer; the newer configs say ``layers_block_type``."""
    pattern = config.get("hybrid_override_pattern")
    if pattern is not None:
        return [_LETTERS[letter] for letter in pattern]
    names = config.get("layers_block_type") or config["layer_types"]
    return [_KINDS.get(name, name) for name in names]


def _mamba(config: dict[str, Any]) -> State:
    """The first models do not say ``mamba_ssm_cache_dtype``: transformers' class has float32, and vLLM takes it.

    Steps are limited as ``time_step_limit`` says, which mamba_ssm's kernels heed; transformers' prompts have
    ``time_step_min`` as their least step instead, its decoding none.
    """
    refuse_other_activations(config, "mamba_hidden_act")
    bias = bool(config.get("use_bias", False))
    return mamba2(
        heads=int(config.get("mamba_num_heads", 128)),
        head_size=int(config.get("mamba_head_dim", 64)),
        columns=int(config.get("ssm_state_size", 128)),
        groups=int(config.get("n_groups", 8)),
        kernel=int(config.get("conv_kernel", 4)),
        bias=bias,
        conv_bias=bool(config.get("use_conv_bias", True)),
        recurrent_dtype=config.get("mamba_ssm_cache_dtype") or "float32",
        step_limits=step_limits(config),
    )


def _attention(config: dict[str, Any]) -> Attention:
    """Return attention without positions. The first models say ``attention_head_dim``."""
    size = int(config.get("head_dim") or config.get("attention_head_dim") or 128)
    return attention(config, size=size, rope=None)


def _plain(config: dict[str, Any], size: int) -> Mlp:
    act = activation(config.get("mlp_hidden_act", "relu2"))
    return Mlp(size, act, gated=False, bias=bool(config.get("mlp_bias", False)))


def _mlp(config: dict[str, Any]) -> Mlp:
    return _plain(config, int(config["intermediate_size"]))


def _mixture(config: dict[str, Any]) -> Mixture:
    latent = config.get("moe_latent_size")
    return Mixture(
        int(config["n_routed_experts"]),
        int(config["num_experts_per_tok"]),
        _plain(config, int(config["moe_intermediate_size"])),
        scoring="sigmoid",
        normalised=bool(config.get("norm_topk_prob", True)),
        scale=float(config.get("routed_scaling_factor", 1.0)),
        correction=True,
        num_groups=int(config.get("n_group", 1)),
        top_groups=int(config.get("topk_group", 1)),
        shared=_plain(config, int(config["moe_shared_expert_intermediate_size"])),
        latent_size=int(latent) if latent else None,
    )


_NAMES = TensorNames(
    embedding="backbone.embeddings",
    layer="backbone.layers.{}",
    qkv=("mixer.q_proj", "mixer.k_proj", "mixer.v_proj"),
    output="mixer.o_proj",
    up=("mixer.up_proj",),
    down="mixer.down_proj",
    attention_norm="norm",
    mlp_norm="norm",
    final_norm="backbone.norm_f",
    inside={
        **mamba2_names("mixer"),
        "router": "mixer.gate",
        "correction": "mixer.gate.e_score_correction_bias",
        "experts.up": "mixer.experts.{}.up_proj",
        "experts.down": "mixer.experts.{}.down_proj",
        "shared.up": "mixer.shared_experts.up_proj",
        "shared.down": "mixer.shared_experts.down_proj",
        "latent_down": "mixer.fc1_latent_proj",
        "latent_up": "mixer.fc2_latent_proj",
    },
)

FAMILIES = (
    Family(("NemotronHForCausalLM",), read_nemotron_h, _NAMES),
    Family(("NemotronHPuzzleForCausalLM",), read_nemotron_puzzle),
)
