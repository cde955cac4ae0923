"""EXAONE 4 and K-EXAONE: three layers with a window and one without positions; norms behind the blocks, or experts."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import attention, by_period, mlp, model, norms, rope, window
from kvplan_engine.checkpoints.fields import head_size
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.description.mixers import FULL, Attention
from kvplan_engine.description.model import Layer, ModelDescription


def read_exaone4(config: dict[str, Any]) -> ModelDescription:
    """transformers: Exaone4Model. A pattern may be letters (LLLG): its length is the period."""
    norm = norms(config, "rms", "after")
    feed_forward = mlp(config, bias=False)
    layers = [Layer((_attention(config, kind),), feed_forward, norm) for kind in _kinds(config)]
    return model(config, layers, norm)


def read_exaone_moe(config: dict[str, Any]) -> ModelDescription:
    """transformers: ExaoneMoeModel; norms before the blocks."""
    norm = norms(config)
    kinds = _kinds(config)
    dense = int(config.get("first_k_dense_replace", 1))
    blocks = config.get("mlp_layer_types") or ["dense"] * dense + ["sparse"] * (len(kinds) - dense)
    layers = []
    for kind, block in zip(kinds, blocks, strict=True):
        feed_forward = mlp(config, bias=False) if block == "dense" else _mixture(config)
        layers.append(Layer((_attention(config, kind, qkv_bias=False, output_bias=False),), feed_forward, norm))
    return model(config, layers, norm)


def _kinds(config: dict[str, Any]) -> list[str]:
    pattern = config.get("sliding_window_pattern", 4)
    has_windows = config.get("sliding_window", 4096)
    if not has_windows:
        return ["full_attention"] * int(config["num_hidden_layers"])
    return by_period(config, len(pattern) if isinstance(pattern, str) else int(pattern))


def _attention(config: dict[str, Any], kind: str, **options: Any) -> Attention:
    """Full layers turn no positions where others have a window."""
    kept = window(config, kind, 4096)
    has_windows = config.get("sliding_window", 4096)
    positions = None if kept == FULL and has_windows else rope(config, head_size(config))
    return attention(config, kept=kept, rope=positions, head_norm="head", **options)


def _mixture(config: dict[str, Any]) -> Mixture:
    size, shared = int(config.get("moe_intermediate_size", 1024)), int(config.get("num_shared_experts", 1))
    return Mixture(
        int(config.get("num_experts", 64)),
        int(config.get("num_experts_per_tok", 8)),
        mlp(config, size, bias=False),
        scoring="sigmoid",
        normalised=bool(config.get("norm_topk_prob", True)),
        scale=float(config.get("routed_scaling_factor", 2.5)),
        correction=True,
        num_groups=int(config.get("n_group", 1)),
        top_groups=int(config.get("topk_group", 1)),
        shared=mlp(config, size * shared, bias=False) if shared else None,
    )
