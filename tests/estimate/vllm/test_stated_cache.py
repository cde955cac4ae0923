"""KV caches in the dtype that a checkpoint was calibrated for: which engines take it without being asked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.catalog.reader import read_config
from kvplan.catalog.releases.vllm import latest_vllm
from kvplan.catalog.spec import ModelSpec
from kvplan.cli import main
from kvplan.estimate.answer import EstimateAnswer, EstimateRequest, make_estimate
from kvplan.estimate.sglang import predict_sglang
from kvplan.estimate.trtllm import predict_trtllm
from kvplan.estimate.vllm.prediction import predict_vllm
from kvplan.settings import ServingSettings

LATENTS = 61 * (512 + 64)
"""Elements of a token of Kimi-K2.5."""
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
GROUP = {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}, "targets": ["Linear"]}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "config_groups": {"group_0": GROUP},
    "kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False},
}


def spec_with(quantization: dict[str, Any]) -> ModelSpec:
    config = resolve_model("llama-3.1-8b").raw_config
    return read_config({**config, "quantization_config": quantization}, model_id="a test")


def estimate(model: str, engine: str, **settings: Any) -> EstimateAnswer:
    request = EstimateRequest(8192, (), EngineChoice.parse(engine), ServingSettings(**settings))
    return make_estimate(resolve_model(model), request)


@pytest.mark.parametrize(("version", "element_bytes"), [("0.13.0", 2), ("0.14.0", 1), ("0.32.0", 1)])
def test_vllm_follows_a_checkpoint_of_modelopt_from_0_14_on(version: str, element_bytes: int) -> None:
    asked = ServingSettings(max_model_len=8192, tensor_parallel_size=4)
    found = predict_vllm(resolve_model("kimi-k2.5-nvfp4"), find_gpu("b200"), asked, version)
    blocks = found.rank.blocks
    assert blocks.bytes_per_block == blocks.block_size * LATENTS * element_bytes
    assert estimate("kimi-k2.5-nvfp4", f"vllm@{version}").cache.bytes_per_token == LATENTS * element_bytes


def test_what_is_asked_for_is_served() -> None:
    answer = estimate("kimi-k2.5-nvfp4", "vllm", kv_cache_dtype="bfloat16")
    assert answer.cache.bytes_per_token == 2 * LATENTS
    assert not any("kv_cache_dtype" in note for note in answer.assumptions)


@pytest.mark.parametrize(
    ("quantization", "version", "dtype"),
    [
        (MODELOPT, "0.14.0", "fp8"),
        (COMPRESSED, "0.14.0", "bfloat16"),
        (COMPRESSED, "0.15.0", "fp8"),
        (COMPRESSED, "0.32.0", "fp8"),
        ({**COMPRESSED, "kv_cache_scheme": None}, "0.32.0", "bfloat16"),
        ({**MODELOPT, "kv_cache_quant_algo": None}, "0.32.0", "bfloat16"),
        ({"quant_method": "fp8", "activation_scheme": "static", "kv_cache_scheme": "fp8"}, "0.32.0", "bfloat16"),
    ],
)
def test_which_checkpoints_vllm_follows(quantization: dict[str, Any], version: str, dtype: str) -> None:
    asked = ServingSettings(max_model_len=8192)
    found = predict_vllm(spec_with(quantization), find_gpu("h100"), asked, version)
    assert found.settings.serving.kv_cache_dtype == dtype


@pytest.mark.parametrize(("version", "dtype"), [("0.14.0", "bfloat16"), ("0.21.0", "fp8"), ("0.22.0", "bfloat16")])
def test_checkpoints_of_compressed_tensors_outvoted_what_was_asked_for(version: str, dtype: str) -> None:
    asked = ServingSettings(max_model_len=8192, kv_cache_dtype="bfloat16")
    found = predict_vllm(spec_with(COMPRESSED), find_gpu("h100"), asked, version)
    assert found.settings.serving.kv_cache_dtype == dtype
    assert any("whatever is asked for" in note for note in found.settings.notes) is (dtype == "fp8")


def test_latent_attention_does_not_ask_compressed_tensors() -> None:
    config = resolve_model("deepseek-v2-lite").raw_config
    spec = read_config({**config, "quantization_config": COMPRESSED}, model_id="a test")
    found = predict_vllm(spec, find_gpu("h100"), ServingSettings(max_model_len=8192), "0.32.0")
    assert found.settings.serving.kv_cache_dtype == "bfloat16"


def test_scales_made_while_serving_are_not_those_of_a_checkpoint() -> None:
    scheme = {"num_bits": 8, "type": "float", "dynamic": True}
    quantization = spec_with({**MODELOPT, "kv_cache_quant_algo": None, "kv_cache_scheme": scheme}).quantization
    assert quantization is not None
    assert quantization.kv_cache_dtype is None


def test_the_answer_says_whose_choice_it_is() -> None:
    taken = (
        f"kv_cache_dtype fp8: vLLM {latest_vllm()} takes it from the checkpoint; --kv-cache-dtype bfloat16 keeps keys"
    )
    offered = "The checkpoint has scales for an fp8 KV cache: --kv-cache-dtype fp8 uses them."
    assert any(note.startswith(taken) for note in estimate("kimi-k2.5-nvfp4", "vllm").assumptions)
    assert offered in estimate("kimi-k2.5-nvfp4", "vllm@0.13.0").assumptions


def test_kvplans_engine_takes_what_it_is_asked_for() -> None:
    spec = spec_with(MODELOPT)
    answer = make_estimate(spec, EstimateRequest(8192, (), EngineChoice("kvplan"), ServingSettings()))
    assert answer.kv_dtype == "bfloat16"


def test_sglang_follows_modelopt_from_0_5_3_on_and_compressed_tensors_from_0_5_19_on() -> None:
    gpu, sizes = find_gpu("b200"), ServingSettings(tensor_parallel_size=4)
    each = {
        version: predict_sglang(resolve_model("kimi-k2.5-nvfp4"), gpu, sizes, version=version).bytes_per_token
        for version in ("0.5.2", "0.5.3", "latest")
    }
    assert each == {"0.5.2": 2 * LATENTS, "0.5.3": LATENTS, "latest": LATENTS}
    older, newer = (
        predict_sglang(spec_with(COMPRESSED), find_gpu("h100"), version=version).bytes_per_token
        for version in ("0.5.18", "0.5.19")
    )
    assert older == 2 * newer == predict_sglang(resolve_model("llama-3.1-8b"), find_gpu("h100")).bytes_per_token


def test_tensorrt_llm_follows_modelopt() -> None:
    asked = ServingSettings(max_model_len=8192)
    stated, plain = (
        predict_trtllm(spec, find_gpu("h100"), asked).bytes_per_token
        for spec in (spec_with(MODELOPT), spec_with({**MODELOPT, "kv_cache_quant_algo": None}))
    )
    assert 2 * stated == plain


def plan(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert main(["plan", *options, "--users", "8", "--input-len", "1000", "--output-len", "200", "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_a_plan_does_not_offer_what_the_checkpoint_decides(capsys: pytest.CaptureFixture[str]) -> None:
    document = plan(capsys, "nvidia/Qwen3-235B-A22B-NVFP4", "--gpu", "b200")
    assert not document["alternatives"]
    (first, *_) = document["deployments"]
    assert first["kv_cache_dtype"] == "fp8"
    assert "--kv-cache-dtype" not in first["commands"]["vllm"]
    assert "--kv-cache-dtype fp8_e4m3" in first["commands"]["sglang"]
