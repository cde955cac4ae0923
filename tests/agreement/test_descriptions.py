"""Planner and engine read a config each in its own code, and find the same model: also where a key is left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from descriptions import described_parts, described_sizes, planned_parts, planned_sizes
from engine_account import engine_outcome
from small_configs import small_configs

from kvplan.catalog.checkpoint.safetensors import read_files
from kvplan.catalog.models import find_profile, profile_names, read_profile
from kvplan.catalog.reader import read_config
from kvplan.catalog.registry import known_architectures
from kvplan.catalog.spec import CompressedAttention, ModelSpec, SoftmaxAttention
from kvplan.catalog.spec_of_checkpoint import stored_dtype
from kvplan.errors import KvplanError
from kvplan.estimate.kvplan.memory import predict
from kvplan.estimate.kvplan.settings import EngineDevice, engine_dtype
from kvplan.settings import ServingSettings
from kvplan_engine import EngineConfig, EngineError
from kvplan_engine.checkpoints.config_json import load_model_config
from kvplan_engine.checkpoints.families import (
    KNOWN_ARCHITECTURES,
    SUPPORTED_ARCHITECTURES,
)
from kvplan_engine.checkpoints.families.mixtures import MIXTURES
from kvplan_engine.checkpoints.loaders import read_config as read_engine_config
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.device.device import CpuDevice

SMALL = small_configs()


def _config(name: str) -> dict[str, Any]:
    profile = find_profile(name)
    assert profile is not None
    config: dict[str, Any] = profile["config"]
    return config


def _assert_same(spec: ModelSpec, model: ModelDescription) -> None:
    assert described_sizes(model) == planned_sizes(spec)
    for block_size, kv_dtype in ((16, "bfloat16"), (24, "fp8")):
        described = described_parts(model, block_size=block_size, kv_dtype=kv_dtype)
        assert described == planned_parts(spec, block_size=block_size, kv_dtype=kv_dtype)


@pytest.mark.parametrize("name", profile_names())
def test_a_profile_is_the_same_model_to_both(name: str) -> None:
    profile = find_profile(name)
    assert profile is not None
    _assert_same(read_profile(profile), load_model_config(profile["config"]))


@pytest.mark.parametrize("architecture", SMALL)
def test_an_architecture_without_a_profile_is_the_same_model_to_both(architecture: str) -> None:
    config = SMALL[architecture]
    _assert_same(read_config(config, model_id=architecture), load_model_config(config))


@pytest.mark.parametrize(
    ("architecture", "size"),
    [
        ("Qwen3ForCausalLM", 128),
        ("SeedOssForCausalLM", 128),
        ("Ministral3ForCausalLM", 128),
        ("GptOssForCausalLM", 64),
        ("MiniMaxM2ForCausalLM", 128),
        ("HYV3ForCausalLM", 128),
        ("AfmoeForCausalLM", 128),
        ("LagunaForCausalLM", 128),
        ("MiniMaxM3SparseForCausalLM", 128),
        ("Step3p5ForCausalLM", 128),
        ("MiMoV2FlashForCausalLM", 192),
        ("NemotronHForCausalLM", 128),
        ("DeepseekV4ForCausalLM", 512),
        ("Qwen3MoeForCausalLM", None),
    ],
)
def test_without_head_dim_heads_are_those_of_the_class_in_transformers(architecture: str, size: int | None) -> None:
    """A class that has no default of its own shares the hidden size among the heads."""
    shipped = (_config(name) for name in profile_names())
    config = next((each for each in shipped if each["architectures"] == [architecture]), None) or SMALL[architecture]
    config = {key: value for key, value in config.items() if key != "head_dim"}
    spec = read_config(config, model_id=architecture)
    _assert_same(spec, load_model_config(config))
    mixers = [mixer for layer in spec.layers for mixer in layer.mixers]
    sizes = {
        mixer.head_size if isinstance(mixer, CompressedAttention) else mixer.head_size_k
        for mixer in mixers
        if isinstance(mixer, (SoftmaxAttention, CompressedAttention))
    }
    assert (size or config["hidden_size"] // config["num_attention_heads"]) in sizes


def test_both_know_the_same_architectures_and_each_is_compared() -> None:
    shipped = {name for profile in profile_names() for name in _config(profile)["architectures"]}
    assert set(KNOWN_ARCHITECTURES) == set(known_architectures()) == shipped | set(SMALL)
    assert not shipped & set(SMALL)


GIB = 1024**3
PROFILES = {
    "GPT2LMHeadModel": "gpt2",
    "LlamaForCausalLM": "llama-3.1-8b",
    "MistralForCausalLM": "mistral-7b-v0.1",
    "Qwen2ForCausalLM": "qwen2.5-7b",
    "Qwen3ForCausalLM": "qwen3-0.6b",
    "DeepseekForCausalLM": "deepseek-moe-16b",
    "Ernie4_5_MoeForCausalLM": "ernie-4.5-21b-a3b",
    "Glm4MoeForCausalLM": "glm-4.5-air",
    "HYV3ForCausalLM": "hy3",
    "HunYuanMoEV1ForCausalLM": "hunyuan-a13b",
    "MixtralForCausalLM": "mixtral-8x7b",
    "PhiMoEForCausalLM": "phi-3.5-moe",
    "Qwen2MoeForCausalLM": "qwen1.5-moe-a2.7b",
    "Qwen3MoeForCausalLM": "qwen3-30b-a3b",
}
"""Profiles whose keys are left out. Qwen3 0.6B says its head size, which is not hidden size / heads."""


def _config_of(architecture: str) -> dict[str, Any]:
    profile = find_profile(PROFILES[architecture])
    assert profile is not None
    config: dict[str, Any] = profile["config"]
    return config


def _cases() -> list[tuple[str, str]]:
    return [(name, key) for name in PROFILES for key in sorted(_config_of(name))]


def _planned(config: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """The planner's figures under the names of the engine's; ``dtype`` is that of the published weights."""
    try:
        spec = read_config(config, model_id="model")
        found = predict(spec, ServingSettings(**settings), EngineDevice(2000 * GIB))
    except KvplanError:
        return {"outcome": "refused"}
    if found.outcome != "ok":
        return {"outcome": found.outcome}
    return {
        "outcome": "ok",
        "dtype": spec.dtype,
        "max_model_len": found.settings.serving.max_model_len,
        "block_bytes": found.block_bytes,
        "num_blocks": found.num_blocks,
        "weight_bytes": found.weight_bytes,
        "activation_bytes": found.activation_bytes,
        "kv_pool_bytes": found.kv_pool_bytes,
    }


def _served(config: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    try:
        model = read_engine_config(config)
        found = engine_outcome(EngineConfig(model=config, **settings), settings["dtype"], 2000 * GIB)  # type: ignore[arg-type]
    except EngineError:
        return {"outcome": "refused"}
    if found["outcome"] == "ok":
        found |= {"dtype": model.dtype, "max_model_len": model.max_position_embeddings}
    return found


def test_every_mixture_is_asked() -> None:
    """All that run and that a profile ships of without quantization."""
    profiles = (find_profile(name) for name in profile_names())
    configs = [profile["config"] for profile in profiles if profile is not None]
    shipped = {config["architectures"][0] for config in configs if "quantization_config" not in config}
    mixtures = {name for family in MIXTURES if family.names is not None for name in family.architectures}
    assert shipped & mixtures <= set(PROFILES) <= set(SUPPORTED_ARCHITECTURES)


@pytest.mark.parametrize(("architecture", "key"), _cases())
@pytest.mark.parametrize("null", [False, True], ids=["absent", "null"])
def test_a_config_without_a_key_is_the_same_model_to_both(architecture: str, key: str, null: bool) -> None:
    config = {name: value for name, value in _config_of(architecture).items() if name != key}
    if null:
        config[key] = None
    settings = {"dtype": "bfloat16", "max_num_seqs": 32}
    assert _planned(config, settings) == _served(config, settings)


@pytest.mark.parametrize("architecture", PROFILES)
@pytest.mark.parametrize("has_units", [False, True], ids=["float32 CPU", "bfloat16 CPU"])
def test_a_block_of_a_config_without_dtype_is_not_twice_as_large(
    architecture: str, has_units: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvplan_engine.device.device._cpu_has_bfloat16", lambda: has_units)
    config = {name: value for name, value in _config_of(architecture).items() if name not in ("torch_dtype", "dtype")}
    engine_model = read_engine_config(config)
    served = CpuDevice(GIB).auto_dtype(engine_model.dtype)
    spec = read_config(config, model_id="model")
    assert engine_dtype(spec, "auto", EngineDevice(GIB, has_bfloat16_units=has_units)) == served
    engine = engine_outcome(EngineConfig(model=config, max_num_seqs=32), served, 2000 * GIB)  # type: ignore[arg-type]
    planner = predict(spec, ServingSettings(max_num_seqs=32), EngineDevice(2000 * GIB, has_bfloat16_units=has_units))
    assert (planner.block_bytes, planner.num_blocks) == (engine["block_bytes"], engine["num_blocks"])


@pytest.mark.parametrize(("stored", "dtype"), [("BF16", "bfloat16"), ("F16", "float16"), ("F32", "float32")])
def test_a_config_without_dtype_has_that_of_the_stored_weights(tmp_path: Path, stored: str, dtype: str) -> None:
    config = {name: value for name, value in _config_of("Qwen3ForCausalLM").items() if name != "torch_dtype"}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    size = 4 if stored == "F32" else 2
    header = json.dumps({"model.norm.weight": {"dtype": stored, "shape": [1024], "data_offsets": [0, 1024 * size]}})
    content = len(header).to_bytes(8, "little") + header.encode() + bytes(1024 * size)
    (tmp_path / "model.safetensors").write_bytes(content)
    assert read_engine_config(str(tmp_path)).dtype == dtype
    files = read_files(tmp_path)
    assert files is not None
    assert read_config(config, model_id="model", stored_dtype=stored_dtype(files)).dtype == dtype


@pytest.mark.parametrize(
    ("published", "capability", "served"),
    [
        ("float32", (9, 0), "bfloat16"),
        ("float32", (7, 5), "float16"),
        ("bfloat16", (7, 5), "float16"),
        ("float16", (9, 0), "float16"),
        ("bfloat16", None, "bfloat16"),
    ],
)
def test_a_gpu_serves_no_float32_unasked(published: str, capability: tuple[int, int] | None, served: str) -> None:
    spec = read_config(_config_of("GPT2LMHeadModel") | {"dtype": published}, model_id="model")
    assert engine_dtype(spec, "auto", EngineDevice(GIB, kind="cuda", compute_capability=capability)) == served
    assert engine_dtype(spec, "float32", EngineDevice(GIB, kind="cuda", compute_capability=capability)) == "float32"
