"""Slots of LoRA adapters under vLLM: elements counted in models that vLLM 0.32 built on a CPU, 2 slots of rank 8 each.

Small models of hidden size 64, two layers, 4 heads and 2 KV heads, MLPs of 112, a vocabulary of 384; heads of 32 in
Qwen3, Qwen3-MoE and Gemma 2; 4 experts of 32 (Qwen3-MoE) or 112 (Mixtral).
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvplan.catalog.models import resolve_model
from kvplan.catalog.spec import ModelSpec
from kvplan.cli import main
from kvplan.errors import KvplanError
from kvplan.estimate.adapters import vllm_slot_bytes
from kvplan.settings import ServingSettings

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "vocab_size": 384,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
COUNTED = {
    "LlamaForCausalLM": ("llama", {}, 45_568),
    "Qwen2ForCausalLM": ("qwen2", {}, 31_232),
    "Qwen3ForCausalLM": ("qwen3", {"head_dim": 32}, 51_712),
    "Gemma2ForCausalLM": ("gemma2", {"head_dim": 32, "tie_word_embeddings": True}, 37_376),
    "Phi3ForCausalLM": ("phi3", {}, 39_424),
    "MixtralForCausalLM": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}, 98_432),
    "Qwen3MoeForCausalLM": (
        "qwen3_moe",
        {"head_dim": 32, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
        73_856,
    ),
}


def spec_of(architecture: str, folder: Path, **changes: Any) -> ModelSpec:
    kind, own, _ = COUNTED[architecture]
    file = folder / "config.json"
    file.write_text(json.dumps({"architectures": [architecture], "model_type": kind} | SIZES | own | changes))
    return resolve_model(str(file))


SETTINGS = ServingSettings(enable_lora=True, max_loras=2, max_lora_rank=8)


@pytest.mark.parametrize("architecture", COUNTED)
def test_elements_are_those_that_vllm_allocates(architecture: str, tmp_path: Path) -> None:
    spec = spec_of(architecture, tmp_path)
    assert vllm_slot_bytes(spec, range(2), SETTINGS, "float32") == 4 * COUNTED[architecture][2]


def test_a_tied_head_has_slots_too(tmp_path: Path) -> None:
    spec = spec_of("LlamaForCausalLM", tmp_path, tie_word_embeddings=True)
    assert vllm_slot_bytes(spec, range(2), SETTINGS, "float32") == 4 * 45_568


def test_two_ranks_divide_half_of_each_correction(tmp_path: Path) -> None:
    """Column-parallel products divide B, row-parallel ones A; the other halves are whole on each rank."""
    spec = spec_of("Qwen2ForCausalLM", tmp_path)
    settings = replace(SETTINGS, tensor_parallel_size=2)
    layer = (3 * 64 + 64) + (32 + 64) + (2 * 64 + 112) + (56 + 64)
    assert vllm_slot_bytes(spec, range(2), settings, "bfloat16") == 2 * 8 * 2 * 2 * layer


def test_stages_have_the_layers_they_hold(tmp_path: Path) -> None:
    spec = spec_of("LlamaForCausalLM", tmp_path)
    stages = [vllm_slot_bytes(spec, part, SETTINGS, "float32") for part in (range(1), range(1, 2))]
    assert sum(stages) == 4 * 45_568
    assert stages[0] == stages[1]


def test_adapters_take_room_from_the_kv_cache(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["estimate", "llama-3.1-8b", "--gpu", "l4", "--ctx", "8k", "--json"]
    assert main(words) == 0
    without = json.loads(capsys.readouterr().out)["deployments"][0]
    assert main([*words, "--max-loras", "8", "--max-lora-rank", "32"]) == 0
    with_slots = json.loads(capsys.readouterr().out)["deployments"][0]
    slots = with_slots["weight_bytes"] - without["weight_bytes"]
    layer = (3 * 4096 + 6144) + 2 * 4096 + (2 * 4096 + 2 * 14336) + (14336 + 4096)
    assert slots == 8 * 32 * 2 * (32 * layer + 2 * (128_256 + 4096))
    assert with_slots["kv_cache_tokens"] < without["kv_cache_tokens"]


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(KvplanError, match="are not known"):
        vllm_slot_bytes(resolve_model("deepseek-v3"), range(61), SETTINGS, "bfloat16")
