"""Solar Pro: Llama with a window, whose residuals skip blocks of layers. It is described and not run."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.dense.llama import llama
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.fields import window
from kvplan_engine.description.model import ModelDescription

_DEFAULT_WINDOW = 2047
"""Of a config that does not mention the window: SolarConfig's, whose code comes with the checkpoint."""


def _read(config: dict[str, Any]) -> ModelDescription:
    return llama(config, kept=window(config.get("sliding_window", _DEFAULT_WINDOW)))


SOLAR = Family(("SolarForCausalLM",), ("solar",), _read)
