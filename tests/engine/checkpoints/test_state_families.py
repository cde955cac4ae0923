"""What the readers of families with states say of a config, and what loading does with it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from kvplan_engine.checkpoints.config_json import load_model_config
from kvplan_engine.checkpoints.families import names_of
from kvplan_engine.checkpoints.parameters import stored_parameters
from kvplan_engine.description.mixers import State
from kvplan_engine.errors import EngineError

_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_n_groups": 2,
    "mamba_d_ssm": 64,
}
BAMBA = _SIZES | {"architectures": ["BambaForCausalLM"]}
FALCON_H1 = _SIZES | {
    "architectures": ["FalconH1ForCausalLM"],
    "attention_bias": True,
    "attention_in_multiplier": 2.0,
    "key_multiplier": 3.0,
    "ssm_in_multiplier": 0.5,
    "ssm_multipliers": [1.0, 3.0, 5.0, 7.0, 9.0],
    "mamba_proj_bias": True,
}


def state_of(config: dict[str, Any]) -> State:
    found = [mixer for mixer in load_model_config(config).layers[0].mixers if isinstance(mixer, State)]
    return found[0]


@pytest.mark.parametrize("infinity", [math.inf, {"__float__": "Infinity"}], ids=["number", "object"])
def test_limits_of_steps_as_configs_write_them(infinity: object) -> None:
    assert state_of(BAMBA).step_limits == (0.0, math.inf)
    assert state_of(BAMBA | {"time_step_limit": [0.25, infinity]}).step_limits == (0.25, math.inf)
    assert state_of(BAMBA | {"time_step_limit": [0.0, 0.5]}).step_limits == (0.0, 0.5)


def test_another_activation_is_refused() -> None:
    with pytest.raises(EngineError, match="its states use 'gelu', and the engine has 'silu'"):
        load_model_config(BAMBA | {"hidden_act": "gelu"})


def arranged(config: dict[str, Any], name: str, source: str) -> torch.Tensor:
    """A stored tensor of ones, as it is loaded into the parameter ``name``: in its order, by its factors."""
    model = load_model_config(config)
    names, _ = names_of(model)
    assert names is not None
    (parameter,) = (each for each in stored_parameters(model, names) if each.name == name)
    (found,) = (each for each in parameter.sources if each.name == source)
    stored = torch.ones(found.num_rows, *parameter.shape[1:])
    for step in (found.arrange, found.scaling):
        stored = stored if step is None else step(stored)
    return stored


def test_factors_reach_the_rows_that_they_belong_to() -> None:
    """gate, input, B, C and step lie in one tensor; a factor of its input does not reach its bias."""
    sizes = [64, 64, 16, 16, 4]
    weight = arranged(FALCON_H1, "layers.1.second.in.weight", "model.layers.1.mamba.in_proj.weight")
    assert [run.unique().tolist() for run in weight.split(sizes)] == [[0.5], [1.5], [2.5], [3.5], [4.5]]
    bias = arranged(FALCON_H1, "layers.1.second.in.bias", "model.layers.1.mamba.in_proj.bias")
    assert [run.unique().tolist() for run in bias.split(sizes)] == [[1.0], [3.0], [5.0], [7.0], [9.0]]


def test_factors_of_tensors_that_are_stacked() -> None:
    for part, weight, bias in (("q", 2.0, 1.0), ("k", 6.0, 3.0), ("v", 2.0, 1.0)):
        source = f"model.layers.0.self_attn.{part}_proj"
        assert arranged(FALCON_H1, "layers.0.qkv.weight", f"{source}.weight").unique().tolist() == [weight]
        assert arranged(FALCON_H1, "layers.0.qkv.bias", f"{source}.bias").unique().tolist() == [bias]


def test_a_model_without_factors_is_loaded_as_it_is_stored() -> None:
    assert load_model_config(BAMBA).layers[0].factors == ()
    plain = {key: value for key, value in FALCON_H1.items() if "multiplier" not in key}
    assert load_model_config(plain).layers[0].factors == ()
