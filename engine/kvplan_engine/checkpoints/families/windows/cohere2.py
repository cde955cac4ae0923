"""Command R7B and Command A: windows with RoPE, full layers without positions; attention beside the MLP, or experts."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import attention, by_period, mlp, model, norms, rope, window
from kvplan_engine.checkpoints.fields import head_size
from kvplan_engine.description.feed_forward import FeedForward, Mixture
from kvplan_engine.description.mixers import Attention
from kvplan_engine.description.model import Layer, ModelDescription, WeightFactor
from kvplan_engine.description.norms import Norms


def read_cohere2(config: dict[str, Any]) -> ModelDescription:
    """transformers: Cohere2Model. Its head size is always the hidden size over the heads."""
    norm = norms(config, "layer_no_bias", "parallel", key="layer_norm_eps")
    feed_forward = mlp(config, bias=False)
    kinds = by_period(config, int(config.get("sliding_window_pattern", 4)))
    layers = [Layer((_attention(config, kind),), feed_forward, norm) for kind in kinds]
    return _model(config, layers, norm)


def read_cohere2_moe(config: dict[str, Any]) -> ModelDescription:
    """transformers: Cohere2MoeModel. The first layers are dense, with windows by a pattern of their own."""
    config = {"head_dim": 128, **config}
    rms = config.get("rms_norm_eps") is not None
    norm = norms(config, "rms", "parallel") if rms else norms(config, "layer_no_bias", "parallel", key="layer_norm_eps")
    dense = int(config.get("first_k_dense_replace", 0))
    kinds = _prefixed_types(config, dense)
    all_full = int(config.get("prefix_dense_sliding_window_pattern", 1)) == 1
    blocks = config.get("mlp_layer_types") or ["dense"] * dense + ["sparse"] * (len(kinds) - dense)
    layers = [
        Layer(
            (_attention(config, kind, turns=all_full and block == "dense"),),
            _feed_forward(config, block),
            norm,
            factors=(WeightFactor("shared.down", "", 0.5, 0.5),) if _averages(config) else (),
        )
        for kind, block in zip(kinds, blocks, strict=True)
    ]
    return _model(config, layers, norm)


def _model(config: dict[str, Any], layers: list[Layer], norm: Norms) -> ModelDescription:
    return model(
        config,
        layers,
        norm,
        max_positions=8192,
        tied=True,
        logits_scale=float(config.get("logit_scale", 0.0625)),
    )


def _prefixed_types(config: dict[str, Any], dense: int) -> list[str]:
    if config.get("layer_types") is not None:
        return by_period(config, 0)
    number = int(config["num_hidden_layers"])
    front = int(config.get("prefix_dense_sliding_window_pattern", 1))
    rest = int(config.get("sliding_window_pattern", 4))
    return by_period({"num_hidden_layers": dense}, front) + by_period({"num_hidden_layers": number - dense}, rest)


def _attention(config: dict[str, Any], kind: str, *, turns: bool = False) -> Attention:
    """turns: positions also in a full layer."""
    size = head_size(config)
    positions = rope(config, size, neighbours=True) if turns or kind == "sliding_attention" else None
    return attention(config, kept=window(config, kind, 4096), size=size, rope=positions)


def _averages(config: dict[str, Any]) -> bool:
    """Whether half of what the chosen experts give and half of what the shared ones give are added."""
    how = config.get("shared_expert_combination_strategy", "average")
    return bool(config.get("num_shared_experts")) and how == "average"


def _feed_forward(config: dict[str, Any], block: str) -> FeedForward:
    if block == "dense":
        return mlp(config, int(config.get("prefix_dense_intermediate_size") or config["intermediate_size"]), bias=False)
    expert = mlp(config, bias=False)
    shared = int(config.get("num_shared_experts") or 0)
    is_sigmoid = config.get("expert_selection_fn") == "sigmoid"
    return Mixture(
        int(config.get("num_experts", 8)),
        int(config.get("num_experts_per_tok", 2)),
        expert,
        scoring="sigmoid" if is_sigmoid else "softmax_of_top",
        normalised=is_sigmoid and bool(config.get("norm_topk_prob", True)),
        scale=0.5 if _averages(config) else 1.0,
        shared=mlp(config, expert.size * shared, bias=False) if shared else None,
    )
