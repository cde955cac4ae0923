"""Gemma 2: every other layer has a window, logits are capped, each block stands between two norms."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import attention, by_period, mlp, model, norms, window
from kvplan_engine.description.model import Layer, ModelDescription
from kvplan_engine.description.norms import NormPlaces


def read_gemma2(config: dict[str, Any]) -> ModelDescription:
    """transformers: Gemma2Model."""
    return _read(config, "both")


def read_vaultgemma(config: dict[str, Any]) -> ModelDescription:
    """transformers: VaultGemmaModel, without norms behind its blocks. It is described and not run."""
    return _read(config, "before", max_positions=8192)


def _read(config: dict[str, Any], places: NormPlaces, **others: Any) -> ModelDescription:
    norm = norms(config, "rms_plus_one", places)
    feed_forward = mlp(config, activation="gelu_tanh", bias=False)
    layers = [Layer((_attention(config, layer_type),), feed_forward, norm) for layer_type in by_period(config, 2)]
    cap = config.get("final_logit_softcapping", 30.0)
    return model(
        config,
        layers,
        norm,
        tied=True,
        embedding_scale=float(config["hidden_size"]) ** 0.5,
        logits_softcap=float(cap) if cap else None,
        **others,
    )


def _attention(config: dict[str, Any], layer_type: str) -> Any:
    cap = config.get("attn_logit_softcapping", 50.0)
    return attention(
        config,
        kept=window(config, layer_type, 4096),
        size=int(config.get("head_dim", 256)),
        scale=float(config.get("query_pre_attn_scalar") or 256) ** -0.5,
        softcap=float(cap) if cap else None,
    )
