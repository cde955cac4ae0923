"""Gemma 4: full layers have larger heads and values that are the keys; a mixture may stand beside the MLP."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import attention, by_period, mlp, model, norms, rope, window
from kvplan_engine.checkpoints.families.windows.gemma3n import layer_inputs, read_layer
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.feed_forward import FeedForward, Mixture
from kvplan_engine.description.mixers import Attention, Rope
from kvplan_engine.description.model import Layer, LayerEnd, ModelDescription

GEMMA4_NAMES = TensorNames(
    mlp_norm="pre_feedforward_layernorm",
    inside={
        "router": "router.proj",
        "router_scale": "router.scale",
        "expert_scale": "router.per_expert_scale",
        "experts.up": "experts.gate_up_proj",
        "experts.down": "experts.down_proj",
        "shared.up": ("mlp.gate_proj", "mlp.up_proj"),
        "shared.down": "mlp.down_proj",
        "experts_norm": "pre_feedforward_layernorm_2",
        "experts_post_norm": "post_feedforward_layernorm_2",
        "shared_post_norm": "post_feedforward_layernorm_1",
        "layer_inputs.embedding": "model.embed_tokens_per_layer",
        "layer_inputs.projection": "model.per_layer_model_projection",
        "layer_inputs.norm": "model.per_layer_projection_norm",
        "input_gate": "per_layer_input_gate",
        "input_output": "per_layer_projection",
        "input_norm": "post_per_layer_input_norm",
        "layer_scale": "layer_scalar",
    },
    experts="rows",
)


def read_gemma4(config: dict[str, Any]) -> ModelDescription:
    """transformers: Gemma4TextModel."""
    config = _with_global_sizes(config)
    norm = norms(config, "rms", "both")
    kinds = _layer_types(config)
    first_shared = len(kinds) - int(config.get("num_kv_shared_layers", 0))
    layers = []
    for index, kind in enumerate(kinds):
        reads = read_layer(kinds, index, first_shared) if first_shared < len(kinds) else None
        feed_forward = _feed_forward(config, double=reads is not None)
        layers.append(Layer((_attention(config, kind, reads),), feed_forward, norm, end=LayerEnd(_input_size(config))))
    cap = config.get("final_logit_softcapping")
    return model(
        config,
        layers,
        norm,
        max_positions=131072,
        tied=True,
        embedding_scale=float(config["hidden_size"]) ** 0.5,
        logits_softcap=float(cap) if cap else None,
        layer_inputs=layer_inputs(config) if _input_size(config) else None,
    )


def _with_global_sizes(config: dict[str, Any]) -> dict[str, Any]:
    """With the full layers' sizes by their old names: newer configs list them layer by layer. The last one is full."""
    names = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
    listed = config.get("per_layer_config") or {}
    last = listed.get(str(int(config["num_hidden_layers"]) - 1)) or {}
    return {**config, **{names[key]: value for key, value in last.items() if key in names}}


def _layer_types(config: dict[str, Any]) -> list[str]:
    """The last layer is full, whatever the config says."""
    return [*by_period(config, 6)[:-1], "full_attention"]


def _input_size(config: dict[str, Any]) -> int:
    return int(config.get("hidden_size_per_layer_input", 256))


def _attention(config: dict[str, Any], kind: str, reads_layer: int | None) -> Attention:
    full = kind == "full_attention"
    same = full and bool(config.get("attention_k_eq_v", False))
    kv_heads = (config.get("num_global_key_value_heads") if same else None) or config["num_key_value_heads"]
    size = int(config.get("global_head_dim", 512) if full else config.get("head_dim", 256))
    return attention(
        config,
        kept=window(config, kind, 512),
        size=size,
        rope=_full_rope(config, size) if full else rope(config, size, kind, theta=10000.0),
        num_kv_heads=int(kv_heads),
        scale=1.0,
        head_norm="head",
        reads_layer=reads_layer,
        value_is_key=same,
        value_norm=True,
    )


def _full_rope(config: dict[str, Any], size: int) -> Rope:
    """Of the full layers' heads of ``size``: only the first pairs turn, at the pace that they have in a whole head."""
    parameters = (config.get("rope_parameters") or {}).get("full_attention") or {}
    kind = parameters.get("rope_type", "proportional")
    share = parameters.get("partial_rotary_factor", 0.25) if kind == "proportional" else 1.0
    scaling = {"rope_type": kind, "factor": parameters.get("factor", 1.0), "partial_rotary_factor": float(share)}
    return Rope(float(parameters.get("rope_theta", 1000000.0)), size, scaling=scaling)


def _feed_forward(config: dict[str, Any], *, double: bool) -> FeedForward:
    """An MLP, which a mixture stands beside; of layers that read earlier KV it may be twice as wide."""
    wide = double and bool(config.get("use_double_wide_mlp", False))
    plain = mlp(config, int(config["intermediate_size"]) * (2 if wide else 1), activation="gelu_tanh", bias=False)
    if not config.get("enable_moe_block", False):
        return plain
    expert = mlp(config, int(config["moe_intermediate_size"]), activation="gelu_tanh", bias=False)
    return Mixture(int(config["num_experts"]), int(config["top_k_experts"]), expert, shared=plain, apart=True)
