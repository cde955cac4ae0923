"""Weights in few bits: the planner's bytes are the engine's, of every shipped model that both describe."""

from __future__ import annotations

import json

import pytest

from kvplan.catalog.models import profile_names, resolve_model
from kvplan.estimate.kvplan.held_weights import held_weight_bytes
from kvplan.paths import profiles_dir
from kvplan_engine import EngineError
from kvplan_engine.checkpoints.config_json import load_model_config
from kvplan_engine.checkpoints.quantised.held import rounded_weight_bytes
from kvplan_engine.description.quantization import recipe_of


@pytest.mark.parametrize("quantization", ["gptq", "mxfp4"])
def test_every_model_that_is_published_dense(quantization: str) -> None:
    """GPTQ with an order of the inputs and minimums beside the scales, MXFP4 with scales of a byte."""
    num_models = 0
    for name in profile_names():
        spec = resolve_model(name)
        config = json.loads((profiles_dir() / "models" / f"{name}.json").read_text(encoding="utf-8"))["config"]
        if spec.quantization is not None:
            continue
        try:
            model = load_model_config(config)
        except EngineError:  # an architecture that the engine does not describe
            continue
        counted = rounded_weight_bytes(model, recipe_of(quantization, None), 2)
        assert held_weight_bytes(spec, "bfloat16", quantization) == counted, name
        num_models += 1
    assert num_models > 120
