"""Dense and dummy weights rounded when they are loaded: near the originals, and as many bytes as predicted."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kvplan.catalog.reader import read_config as read_spec
from kvplan.estimate.kvplan.held_weights import held_weight_bytes
from kvplan.estimate.weights import NAMED_FORMATS
from kvplan_engine import LLM
from kvplan_engine.checkpoints.quantised.rounding import rounded
from kvplan_engine.config import QUANTIZATIONS
from kvplan_engine.description.quantization import RECIPES

ERRORS = {"fp8": 0.03, "fp8-block": 0.03, "int8": 0.01, "awq": 0.13, "gptq": 0.13, "int4": 0.14, "mxfp4": 0.2} | {
    "nvfp4": 0.11,
    "bitsandbytes": 0.1,
}
"""Root mean square of the differences, relative to the weights': an upper limit for normal ones."""

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 192,
    "intermediate_size": 320,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 160,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}
GPT2: dict[str, Any] = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_embd": 96,
    "n_head": 4,
    "n_layer": 2,
    "n_positions": 128,
    "vocab_size": 160,
}
MIXTRAL = LLAMA | {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}


def test_the_engine_and_the_planner_know_the_same_names() -> None:
    assert set(RECIPES) == set(NAMED_FORMATS) == set(QUANTIZATIONS) - {"none"} == set(ERRORS)


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


@pytest.mark.parametrize("config", [LLAMA, GPT2, MIXTRAL], ids=["llama", "gpt2", "mixtral"])
@pytest.mark.parametrize("name", ["int8", "gptq", "fp8-block", "nvfp4"])
def test_the_planner_predicts_the_bytes(name: str, config: dict[str, Any]) -> None:
    llm = LLM(config, load_format="dummy", device="cpu", device_memory="384MiB", quantization=name, max_model_len=64)
    spec = read_spec(config, model_id="small")
    assert llm.engine.memory.weight_bytes == held_weight_bytes(spec, llm.engine.model.dtype, name)
    assert llm.engine.memory.weight_bytes < held_weight_bytes(spec, llm.engine.model.dtype, "none")


def test_dummy_weights_are_the_same_for_the_same_seed() -> None:
    settings: dict[str, Any] = {"load_format": "dummy", "device": "cpu", "device_memory": "384MiB", "max_model_len": 64}
    prints = [
        LLM(LLAMA, quantization="int4", seed=seed, **settings).engine.model.weight_fingerprint for seed in (1, 1, 2)
    ]
    assert prints[0] == prints[1] != prints[2]
