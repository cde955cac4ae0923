"""Weights rounded while loading, and inputs that a checkpoint says are rounded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_configs import gpt2_config, llama_config

from kvplan import settings
from kvplan.catalog.reader import read_config as read_spec
from kvplan.estimate.kvplan.held_weights import held_weight_bytes
from kvplan.estimate.weights import NAMED_FORMATS
from kvplan_engine import LLM, EngineError
from kvplan_engine.checkpoints.quantised.compressed import rounds_inputs
from kvplan_engine.checkpoints.quantised.floats import float8_weight
from kvplan_engine.checkpoints.quantised.reader import as_tensors, take_parts
from kvplan_engine.checkpoints.quantised.rounding import rounded
from kvplan_engine.config import GROUP_SIZES, GROUPED_QUANTIZATIONS, QUANTIZATIONS
from kvplan_engine.description.weight_format import RECIPES, recipe_of

ERRORS = {"fp8": 0.03, "fp8-block": 0.03, "int8": 0.01, "awq": 0.13, "gptq": 0.13, "int4": 0.14, "mxfp4": 0.2} | {
    "nvfp4": 0.11,
    "bitsandbytes": 0.1,
}
"""Root mean square of the differences, relative to the weights': an upper limit for normal ones."""

LLAMA: dict[str, Any] = llama_config(
    hidden_size=192, intermediate_size=320, vocab_size=160, rms_norm_eps=1e-05, torch_dtype="bfloat16"
)
GPT2: dict[str, Any] = gpt2_config(n_embd=96, vocab_size=160)
MIXTRAL = LLAMA | {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}


def test_the_engine_and_the_planner_know_the_same_names() -> None:
    assert set(RECIPES) == set(NAMED_FORMATS) == set(QUANTIZATIONS) - {"none"} == set(ERRORS)
    assert tuple(NAMED_FORMATS) == settings.WEIGHT_FORMATS
    assert (GROUPED_QUANTIZATIONS, GROUP_SIZES) == (settings.GROUPED_FORMATS, settings.GROUP_SIZES)


@pytest.mark.parametrize("name", list(RECIPES))
def test_rounded_weights_are_near_the_originals(name: str) -> None:
    weight = torch.randn(200, 384, generator=torch.Generator().manual_seed(1))
    weight[3] = 0.0
    found = rounded(weight, RECIPES[name])
    held = RECIPES[name].format_of(384)
    assert held is not None and found.num_bytes == held.num_bytes(200, 384)
    difference = found.dequantised() - weight
    assert difference.square().mean().sqrt() < ERRORS[name] * weight.square().mean().sqrt()
    assert (found.dequantised()[3] == 0).all()


@pytest.mark.parametrize("name", ["fp8", "fp8-block"])
def test_codes_that_are_no_numbers_are_not_chosen(name: str) -> None:
    """In E4M3's book they are zeros, and a device that multiplies the codes themselves would meet NaN."""
    weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    weight[:, ::5] *= 1e-9
    codes = rounded(weight, RECIPES[name]).codes
    assert ((codes & 0x7F) != 0x7F).all()


@pytest.mark.parametrize("config", [LLAMA, GPT2, MIXTRAL], ids=["llama", "gpt2", "mixtral"])
@pytest.mark.parametrize("name", ["int8", "gptq", "fp8-block", "nvfp4"])
def test_the_planner_predicts_the_bytes(name: str, config: dict[str, Any]) -> None:
    llm = LLM(config, load_format="dummy", device="cpu", device_memory="384MiB", quantization=name, max_model_len=64)
    spec = read_spec(config, model_id="small")
    assert llm.engine.memory.weight_bytes == held_weight_bytes(spec, llm.engine.model.dtype, name)
    assert llm.engine.memory.weight_bytes < held_weight_bytes(spec, llm.engine.model.dtype, "none")


@pytest.mark.parametrize("config", [LLAMA, GPT2, MIXTRAL], ids=["llama", "gpt2", "mixtral"])
def test_what_is_counted_is_what_is_loaded(config: dict[str, Any]) -> None:
    """Every format, in every size of groups that it has."""
    spec = read_spec(config, model_id="small")
    common: dict[str, Any] = {"device": "cpu", "device_memory": "384MiB", "max_model_len": 64, "dtype": "bfloat16"}
    for name in RECIPES:
        for size in (None, *GROUP_SIZES) if name in GROUPED_QUANTIZATIONS else (None,):
            counted = LLM(config, load_format="none", quantization=name, group_size=size, **common)
            predicted = held_weight_bytes(spec, "bfloat16", name, size)
            assert counted.engine.memory.weight_bytes == predicted, (name, size)
    loaded = LLM(config, load_format="dummy", quantization="gptq", group_size=32, **common)
    assert loaded.engine.memory.weight_bytes == held_weight_bytes(spec, "bfloat16", "gptq", 32)


@pytest.mark.parametrize("name", GROUPED_QUANTIZATIONS)
def test_smaller_groups_are_nearer_to_the_originals(name: str) -> None:
    weight = torch.randn(64, 512, generator=torch.Generator().manual_seed(2))
    errors = []
    for size in (32, 128, -1):
        recipe = recipe_of(name, size)
        found = rounded(weight, recipe)
        held = recipe.format_of(512)
        assert held is not None and found.num_bytes == held.num_bytes(64, 512)
        errors.append(float((found.dequantised() - weight).square().mean()))
    assert errors == sorted(errors)
    whole_rows = rounded(weight, recipe_of(name, -1))
    assert (whole_rows.scales == whole_rows.scales[:, :1]).all()


def test_a_size_of_groups_needs_a_format_with_groups() -> None:
    for name in (None, "fp8"):
        with pytest.raises(EngineError, match="is for weights in groups"):
            LLM(LLAMA, load_format="none", quantization=name, group_size=64)
    with pytest.raises(EngineError, match="one of -1, 32, 64, 128"):
        LLM(LLAMA, load_format="none", quantization="awq", group_size=48)


def test_dummy_weights_are_the_same_for_the_same_seed() -> None:
    settings: dict[str, Any] = {"load_format": "dummy", "device": "cpu", "device_memory": "384MiB", "max_model_len": 64}
    prints = [
        LLM(LLAMA, quantization="int4", seed=seed, **settings).engine.model.weight_fingerprint for seed in (1, 1, 2)
    ]
    assert prints[0] == prints[1] != prints[2]


FLOAT8 = {"type": "float", "num_bits": 8, "dynamic": True, "strategy": "token"}


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([{"input_activations": FLOAT8}], True),
        ([{"input_activations": FLOAT8}, {"input_activations": None}], False),
        ([{"weights": FLOAT8}], False),
        ([{"input_activations": FLOAT8 | {"type": "int"}}], False),
        ([], False),
    ],
    ids=["all", "some", "weights alone", "whole numbers", "no groups"],
)
def test_compressed_tensors_say_so_for_each_group(groups: list[dict[str, Any]], expected: bool) -> None:
    assert rounds_inputs({"config_groups": {f"group_{i}": group for i, group in enumerate(groups)}}) == expected


def test_it_stays_with_the_weight_among_a_models() -> None:
    codes, scale = torch.randn(4, 16).to(torch.float8_e4m3fn), torch.tensor([0.5])
    parts = [float8_weight("w", codes, scale, rounds_inputs=True), float8_weight("w", codes, scale)]
    assert not parts[0].can_follow(parts[1])
    weights = as_tensors("w", parts)
    assert [part.rounds_inputs for part in take_parts(weights, "w")] == [True, False]
    assert weights == {}
