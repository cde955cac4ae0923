"""Bytes of weights in every published format, and of the slots that vLLM gives adapters."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_configs import with_awq

from kvplan.catalog.models import resolve_model
from kvplan.catalog.quantization.formats import QuantizationSpec, Rule, with_rules
from kvplan.catalog.quantization.matching import Names
from kvplan.catalog.reader import read_config
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import KvplanError
from kvplan.estimate.adapters import vllm_slot_bytes
from kvplan.estimate.answer import with_quantization
from kvplan.estimate.weights import NAMED_FORMATS, format_of, quantized_bytes, size_weights
from kvplan.settings import ServingSettings

GIB = 2**30


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        # 4 bits, 16-bit scales and 4-bit zero points for 128 weights each
        (NAMED_FORMATS["awq"], 512 * 256 // 2 + 512 * 2 * 2 + 512 * 2 // 2),
        # the same and the group of every input row
        (NAMED_FORMATS["gptq"], 512 * 256 // 2 + 512 * 2 * 2 + 512 * 2 // 2 + 256 * 4),
        (NAMED_FORMATS["fp8"], 512 * 256 + 4),
        (NAMED_FORMATS["fp8-block"], 512 * 256 + 4 * 2 * 4),
        (NAMED_FORMATS["int8"], 512 * 256 + 512 * 4),
        # one 8-bit exponent for 32 weights
        (NAMED_FORMATS["mxfp4"], 512 * 256 // 2 + 512 * 8),
        # one fp8 scale for 16 weights, one float32 scale for the matrix and one for its inputs
        (NAMED_FORMATS["nvfp4"], 512 * 256 // 2 + 512 * 16 + 8),
        (NAMED_FORMATS["bitsandbytes"], 512 * 256 // 2 + 512 * 4 * 4),
    ],
)
def test_one_matrix(quantization, expected):
    assert quantized_bytes((512, 256), quantization) == expected
    assert quantized_bytes((7, 512, 256), quantization) == 7 * expected


@pytest.mark.parametrize(
    ("name", "gib", "unquantized"),
    [
        ("gpt-oss-20b", 12.82, {"embedding", "head", "attention", "other"}),
        ("gpt-oss-120b", 60.77, {"embedding", "head", "attention", "other"}),
        ("deepseek-r1", 626.92, {"embedding", "head", "other"}),
        ("kimi-k2.5", 553.40, {"embedding", "head", "attention", "feed-forward", "other"}),
        ("gemma-4-26b-a4b-nvfp4", 16.43, {"embedding", "attention", "feed-forward", "other"}),
        ("qwen3.6-27b-nvfp4", 18.77, {"embedding", "other", "state mixer"}),
        ("deepseek-v4-flash", 145.22, {"embedding", "head", "other"}),
    ],
)
def test_published_formats(name, gib, unquantized):
    weights = size_weights(resolve_model(name), "bfloat16")
    assert weights.total_bytes / GIB == pytest.approx(gib, abs=0.01)
    plain = {each.kind for each in weights.components if each.format == "bfloat16"}
    assert plain == unquantized


def test_layers_on_an_ignore_list_stay_as_they_are():
    """GLM 5.1 in NVFP4 names its first layer, every attention and every shared expert."""
    spec = resolve_model("glm-5.1-nvfp4")
    first = {tensor.name: tensor for tensor in spec.layers[0].all_tensors}
    later = {tensor.name: tensor for tensor in spec.layers[10].all_tensors}
    assert format_of(spec.quantization, first["mlp.gate_proj"], 0) is None
    assert format_of(spec.quantization, later["mlp.experts.*.gate_proj"], 10) is not None
    assert format_of(spec.quantization, later["self_attn.o_proj"], 10) is None


def test_patterns_and_targets_decide_per_module():
    spec = resolve_model("llama-3.1-8b")
    tensors = {tensor.name: tensor for tensor in spec.layers[3].all_tensors}
    eight = QuantizationSpec("fp8", 8, "tensor")
    four = QuantizationSpec("nvfp4", 4, "group", group_size=16)
    mixed = with_rules(
        Rule(None, Names("match", (".*down_proj",))),
        Rule(eight, Names("equal", ("model.layers.3.self_attn.q_proj",))),
        Rule(four, Names("match", (".*mlp.*",))),
    )
    assert mixed is not None and mixed.formats == (eight, four)
    assert format_of(mixed, tensors["self_attn.q_proj"], 3) is eight
    assert format_of(mixed, tensors["self_attn.q_proj"], 4) is None
    assert format_of(mixed, tensors["mlp.up_proj"], 3) is four
    assert format_of(mixed, tensors["mlp.down_proj"], 3) is None
    assert format_of(mixed, tensors["norm0"], 3) is None


def test_what_if_a_model_were_quantized():
    spec = resolve_model("llama-3.1-8b")
    plain = size_weights(spec, "bfloat16").total_bytes
    awq = size_weights(with_quantization(spec, ServingSettings(quantization="awq")), "bfloat16").total_bytes
    fp8 = size_weights(with_quantization(spec, ServingSettings(quantization="fp8")), "bfloat16").total_bytes
    assert plain == 2 * spec.num_parameters
    # "AWQ 4-bit or FP8 cuts weights by 50 to 70 %": the embedding and the head stay, so it is less than that for fp8
    assert 0.60 < 1 - awq / plain < 0.70
    assert 0.40 < 1 - fp8 / plain < 0.50


def test_unquantizing_a_published_format_gives_the_plain_size():
    published = resolve_model("qwen2.5-14b-instruct")
    spec = read_config(with_awq(dict(published.raw_config)), model_id="in AWQ")
    plain = size_weights(with_quantization(spec, ServingSettings(quantization="none")), "float16").total_bytes
    assert plain == 2 * spec.num_parameters > size_weights(spec, "float16").total_bytes


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


def test_a_head_that_is_the_embedding_has_slots_twice(tmp_path: Path) -> None:
    """Qwen3's until 0.27.1. Qwen3-4B with 64 slots took 12.49 GiB (llmbotai's page: N016 of the start-ups)."""
    taken = []
    for is_tied in (True, False):
        spec = spec_of("Qwen3ForCausalLM", tmp_path, tie_word_embeddings=is_tied)
        for release in ("0.27.1", "0.28.0"):
            repeated = vllm_release(release).heads_as_embeddings
            taken.append(vllm_slot_bytes(spec, range(2), SETTINGS, "float32", repeated) - 4 * 51_712)
    assert taken == [2 * 8 * 4 * (384 + 64), 0, 0, 0]


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


def test_adapters_take_room_from_the_kv_cache(printed_by: Callable[..., str]) -> None:
    words = ["estimate", "llama-3.1-8b", "--gpu", "l4", "--ctx", "8k", "--json"]
    without = json.loads(printed_by(*words))["deployments"][0]
    with_slots = json.loads(printed_by(*words, "--max-loras", "8", "--max-lora-rank", "32"))["deployments"][0]
    slots = with_slots["weight_bytes"] - without["weight_bytes"]
    layer = (3 * 4096 + 6144) + 2 * 4096 + (2 * 4096 + 2 * 14336) + (14336 + 4096)
    assert slots == 8 * 32 * 2 * (32 * layer + 2 * (128_256 + 4096))
    assert with_slots["kv_cache_tokens"] < without["kv_cache_tokens"]


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(KvplanError, match="are not known"):
        vllm_slot_bytes(resolve_model("deepseek-v3"), range(61), SETTINGS, "bfloat16")
