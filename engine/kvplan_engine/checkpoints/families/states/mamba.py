"""Mamba, Falcon Mamba and Mamba 2: a state in every layer and nothing else, not even an MLP."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import model, norms
from kvplan_engine.checkpoints.families.states.parts import mamba1, mamba2
from kvplan_engine.description.mixers import State
from kvplan_engine.description.model import Layer, ModelDescription


def read_mamba(config: dict[str, Any]) -> ModelDescription:
    """transformers: MambaModel, FalconMambaModel (whose inner norms have no weights)."""
    inner = config.get("intermediate_size")
    return _read(config, mamba1(config, inner=int(inner) if inner else None), tied=True)


def read_mamba2(config: dict[str, Any]) -> ModelDescription:
    """transformers: Mamba2Model."""
    state = mamba2(
        heads=int(config.get("num_heads", 128)),
        head_size=int(config.get("head_dim", 64)),
        columns=int(config.get("state_size", 128)),
        groups=int(config.get("n_groups", 8)),
        kernel=int(config.get("conv_kernel", 4)),
        bias=bool(config.get("use_bias", False)),
        conv_bias=bool(config.get("use_conv_bias", True)),
    )
    return _read(config, state, tied=False)


def _read(config: dict[str, Any], state: State, *, tied: bool) -> ModelDescription:
    norm = norms(config, key="layer_norm_epsilon")
    layers = [Layer((state,), None, norm)] * int(config["num_hidden_layers"])
    return model(config, layers, norm, tied=tied, max_positions=None)
