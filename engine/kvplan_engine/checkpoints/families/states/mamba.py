"""Mamba, Falcon Mamba and Mamba 2: a state in every layer and nothing else, not even an MLP."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.common import model, norms
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.states.parts import (
    mamba1,
    mamba1_names,
    mamba2,
    mamba2_names,
    refuse_other_activations,
    step_limits,
)
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.mixers import State
from kvplan_engine.description.model import Layer, ModelDescription


def read_mamba(config: dict[str, Any]) -> ModelDescription:
    """transformers: MambaModel."""
    return _read(config, _mamba1(config), tied=True)


def read_falcon_mamba(config: dict[str, Any]) -> ModelDescription:
    """transformers: FalconMambaModel, whose inner norms have no weights."""
    eps = float(config.get("mixer_rms_eps") or 1e-6)
    return _read(config, replace(_mamba1(config), plain_norms=True, norm_eps=eps), tied=True)


def _mamba1(config: dict[str, Any]) -> State:
    inner = config.get("intermediate_size")
    return mamba1(config, inner=int(inner) if inner else None)


def read_mamba2(config: dict[str, Any]) -> ModelDescription:
    """transformers: Mamba2Model."""
    refuse_other_activations(config)
    state = mamba2(
        heads=int(config.get("num_heads", 128)),
        head_size=int(config.get("head_dim", 64)),
        columns=int(config.get("state_size", 128)),
        groups=int(config.get("n_groups", 8)),
        kernel=int(config.get("conv_kernel", 4)),
        bias=bool(config.get("use_bias", False)),
        conv_bias=bool(config.get("use_conv_bias", True)),
        step_limits=step_limits(config),
    )
    return _read(config, state, tied=False)


def _read(config: dict[str, Any], state: State, *, tied: bool) -> ModelDescription:
    norm = norms(config, key="layer_norm_epsilon")
    layers = [Layer((state,), None, norm)] * int(config["num_hidden_layers"])
    return model(config, layers, norm, tied=tied, max_positions=None)


def _names(inside: dict[str, str]) -> TensorNames:
    return TensorNames(
        embedding="backbone.embeddings",
        layer="backbone.layers.{}",
        attention_norm="norm",
        final_norm="backbone.norm_f",
        inside=inside,
    )


FAMILIES = (
    Family(("MambaForCausalLM",), read_mamba, _names(mamba1_names("mixer"))),
    Family(("FalconMambaForCausalLM",), read_falcon_mamba, _names(mamba1_names("mixer"))),
    Family(("Mamba2ForCausalLM",), read_mamba2, _names(mamba2_names("mixer"))),
)
