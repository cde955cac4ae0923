"""Helium: Llama in which neighbours turn."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.dense.llama import llama
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.fields import rope
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.model import ModelDescription


def _read(config: dict[str, Any]) -> ModelDescription:
    keys = {"head_dim": 128, "rms_norm_eps": 1e-8} | config
    positions = rope(keys, theta=100000.0, neighbours=True)
    return llama(keys, rope=positions, output_bias=False, max_positions=4096)


HELIUM = Family(("HeliumForCausalLM",), ("helium",), _read, TensorNames())
