"""The planner predicts from the config alone what the engine allocates: the same bytes per block, the same blocks."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from engine_account import engine_outcome
from hypothesis import given, settings
from hypothesis import strategies as st
from multi_token_models import MULTI_TOKEN, MultiTokenCheckpoint
from tiny_configs import own_config

from kvplan.catalog.models import profile_names, resolve_model
from kvplan.catalog.spec import MoeFeedForward
from kvplan.catalog.speculation.reading import with_speculation
from kvplan.errors import KvplanError
from kvplan.estimate.kvplan.memory import predict
from kvplan.estimate.kvplan.settings import EngineDevice
from kvplan.paths import profiles_dir
from kvplan.settings import ServingSettings
from kvplan_engine import Engine, EngineConfig, EngineError
from kvplan_engine.checkpoints.config_json import load_model_config
from kvplan_engine.device.allocation import CPU_OVERHEAD_BYTES
from kvplan_engine.models.known_parts import refuse_unknown_parts

GIB = 1024**3


@cache
def native_profiles() -> list[str]:
    """Every shipped profile that the engine runs."""
    names, architectures = [], set()
    for file in sorted((profiles_dir() / "models").glob("*.json")):
        config = json.loads(file.read_text(encoding="utf-8"))["config"]
        try:
            model = load_model_config(config)
            refuse_unknown_parts(model)
        except EngineError:  # another architecture, or a feature that the engine refuses by name
            continue
        if "quantization_config" not in config:
            names.append(file.stem)
            architectures.add(model.language_model or model.architecture)
    assert len(architectures) >= 30
    return names


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(
    name=st.sampled_from(profile_names()),
    utilization=st.floats(0.01, 1.0),
    device_bytes=st.one_of(st.integers(GIB // 4, 160 * GIB), st.integers(160 * GIB, 4096 * GIB)),
    max_num_seqs=st.integers(1, 1024),
    max_num_batched_tokens=st.integers(1, 8192),
    block_size=st.integers(1, 256),
    max_model_len=st.one_of(st.none(), st.integers(2, 200_000)),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    kv_cache_dtype=st.sampled_from(["auto", "auto", "float32", "bfloat16", "fp8", "fp8_e4m3", "int8_per_token_head"]),
    ranks=st.sampled_from([(1, 1), (1, 1), (1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (1, 3), (2, 2)]),
    whole_experts=st.sampled_from([False, False, True]),
)
def test_the_same_outcome_the_same_bytes_the_same_blocks(
    name: str,
    utilization: float,
    device_bytes: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    block_size: int,
    max_model_len: int | None,
    dtype: str,
    kv_cache_dtype: str,
    ranks: tuple[int, int],
    whole_experts: bool,
) -> None:
    common: dict[str, Any] = {
        "gpu_memory_utilization": utilization,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "block_size": block_size,
        "max_model_len": max_model_len,
        "dtype": dtype,
        "kv_cache_dtype": kv_cache_dtype,
        "tensor_parallel_size": ranks[0],
        "pipeline_parallel_size": ranks[1],
        "enable_expert_parallel": whole_experts and resolve_model(name).is_mixture,
    }
    try:
        engine = engine_outcome(EngineConfig(model=name, **common), dtype, device_bytes)
    except EngineError:  # nobody says how long a sequence may be, or the model cannot be divided
        with pytest.raises(KvplanError):
            predict(resolve_model(name), ServingSettings(**common), EngineDevice(device_bytes))
        return
    # all weights widened: test_quantised_equality.py compares those that are held as they are stored
    asked = ServingSettings(**common, quantization="none")
    try:
        planner = predict(resolve_model(name), asked, EngineDevice(device_bytes))
    except KvplanError as refusal:  # of a format that the model's caches cannot have
        assert "is for keys and values of KV heads" in refusal.message
        assert engine["outcome"] == "rejected_ctx", "the engine asks first whether the context is too long"
        return
    assert planner.outcome == engine.pop("outcome")
    for figure, value in engine.items():
        assert getattr(planner, figure) == value, figure


def check_drafting(
    name: str, drafting: Any, asked: dict[str, Any], memory_bytes: int = 64 * GIB, **common: Any
) -> None:
    """Every figure is the same where the engine drafts by ``drafting`` and the planner is ``asked``."""
    common |= {"max_model_len": 512, "dtype": "bfloat16"}
    engine = engine_outcome(EngineConfig(name, **common, speculative_config=drafting), "bfloat16", memory_bytes)
    asked |= {"num_speculative_tokens": drafting["num_speculative_tokens"]}
    found = with_speculation(resolve_model(name), ServingSettings(**common, **asked))
    planner = predict(found.spec, found.settings, EngineDevice(memory_bytes))
    assert planner.outcome == engine.pop("outcome") == "ok"
    assert {figure: getattr(planner, figure) for figure in engine} == engine


@pytest.mark.parametrize("name", ["gpt2", "llama-3.2-1b", "qwen3-0.6b"])
def test_drafts_take_the_same_bytes(name: str) -> None:
    """A row of logits for each draft, as far as a step has tokens."""
    sizes = product((1, 3, 256), (8, 2048), (1, 5), ((1, 1), (2, 1), (1, 2)))
    for seqs, tokens, num_drafts, (ranks, stages) in sizes:
        drafting = {"method": "ngram", "num_speculative_tokens": num_drafts}
        limits = {"max_num_seqs": seqs, "max_num_batched_tokens": tokens}
        layout = {"tensor_parallel_size": ranks, "pipeline_parallel_size": stages}
        check_drafting(name, drafting, {"speculative_method": "ngram"}, **limits, **layout)


PASSES = [{"max_num_seqs": 4, "max_num_batched_tokens": 512, "block_size": 16},
          {"max_num_seqs": 64, "max_num_batched_tokens": 32, "block_size": 8}]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "drafter"),
    [("llama-3.1-8b", "llama-3.2-1b"), ("qwen3-8b", "qwen3-0.6b"), ("gpt2", "gpt2"), ("qwen3-0.6b", "qwen3-0.6b")],
)
def test_a_draft_model_takes_the_same_bytes(name: str, drafter: str) -> None:
    """Weights of both, layers of both in every block, and buffers of its own for its passes."""
    for num_drafts, limits in zip((3, 1), PASSES, strict=True):
        drafting = {"model": drafter, "num_speculative_tokens": num_drafts}
        check_drafting(name, drafting, {"speculative_model": drafter}, **limits)


@pytest.mark.parametrize("name", ["mimo-7b-base", "glm-4.5-air", "deepseek-v3", "deepseek-v3.2"])
def test_a_layer_for_multi_token_prediction_takes_the_same_bytes(name: str) -> None:
    """Its weights, without embedding and head; a layer more in every block; buffers of its own for its passes."""
    for num_drafts, limits in zip((3, 1), PASSES, strict=True):
        drafting = {"method": "mtp", "num_speculative_tokens": num_drafts}
        check_drafting(name, drafting, {"speculative_method": "mtp", "quantization": "none"}, 2048 * GIB, **limits)


@pytest.mark.parametrize(("name", "quantization"), [*product(MULTI_TOKEN, ["none"]), ("deepseek_v3", "int4")])
def test_an_engine_with_such_a_layer_allocates_what_is_predicted(name: str, quantization: str, tmp_path: Path) -> None:
    path = str(MultiTokenCheckpoint(name, tmp_path).path)
    common: dict[str, Any] = {"max_num_seqs": 8, "max_model_len": 96, "max_num_batched_tokens": 64, "dtype": "float32"}
    common |= {"quantization": quantization}
    asked = ServingSettings(**common, speculative_method="mtp", num_speculative_tokens=3)
    found = with_speculation(resolve_model(path), asked)
    planner = predict(found.spec, found.settings, EngineDevice(GIB // 2))
    drafting: Any = {"method": "mtp", "num_speculative_tokens": 3}
    config = EngineConfig(path, **common, device="cpu", device_memory=GIB // 2, speculative_config=drafting)
    with closing(Engine(config)) as engine:
        for figure in ("weight_bytes", "activation_bytes", "block_bytes", "num_blocks"):
            assert getattr(planner, figure) == getattr(engine.memory, figure), figure


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"tensor_parallel_size": 2}, "in one process"),
        ({"speculative_method": "medusa", "speculative_model": "llama-3.2-1b"}, "Medusa|medusa"),
    ],
)
def test_drafters_that_the_engine_lacks_are_refused(changes: dict[str, Any], sentence: str) -> None:
    asked = ServingSettings(max_model_len=512, num_speculative_tokens=2, speculative_model="llama-3.2-1b")
    with pytest.raises(KvplanError, match=sentence):
        found = with_speculation(resolve_model("llama-3.1-8b"), replace(asked, **changes))
        predict(found.spec, found.settings, EngineDevice(640 * GIB))


def test_states_are_refused_with_drafts() -> None:
    asked = ServingSettings(max_model_len=512, num_speculative_tokens=2)
    with pytest.raises(KvplanError, match="does not decode speculatively with the states"):
        predict(resolve_model("qwen3-next-80b-a3b"), asked, EngineDevice(640 * GIB))


def test_whole_experts_take_the_same_bytes_on_each_rank() -> None:
    """Every mixture that the engine runs, over ranks that divide its experts and those that do not."""
    common: dict[str, Any] = {"max_model_len": 512, "dtype": "bfloat16", "enable_expert_parallel": True}
    compared, uneven = set(), set()
    mixtures = [spec for spec in map(resolve_model, native_profiles()) if spec.is_mixture]
    for spec, (ranks, stages) in product(mixtures, ((2, 1), (8, 1), (2, 2))):
        sizes = {**common, "tensor_parallel_size": ranks, "pipeline_parallel_size": stages}
        try:
            engine = engine_outcome(EngineConfig(model=spec.id, **sizes), "bfloat16", 4096 * GIB)
        except EngineError:  # one that cannot be divided
            with pytest.raises(KvplanError):
                predict(spec, ServingSettings(**sizes), EngineDevice(4096 * GIB))
            continue
        asked = ServingSettings(**sizes, quantization="none")
        planner = predict(spec, asked, EngineDevice(4096 * GIB))
        assert planner.outcome == engine.pop("outcome") == "ok"
        assert {figure: getattr(planner, figure) for figure in engine} == engine, f"{spec.id} over {ranks} x {stages}"
        compared.add(spec.id)
        parts = [layer.feed_forward for layer in spec.layers]
        uneven |= {spec.id for part in parts if isinstance(part, MoeFeedForward) and part.num_experts % ranks}
    assert len(compared) >= 10 and uneven


def test_every_founding_model_is_compared() -> None:
    wanted = {"gpt2", "llama-13b", "llama-2-7b", "llama-2-70b", "llama-3.1-8b", "mistral-7b-v0.1", "qwen2.5-7b"}
    assert wanted <= set(native_profiles())


@pytest.mark.parametrize("block_size", [1, 16, 24])
@pytest.mark.parametrize("utilization", [0.8, 1.0])
def test_a_started_engine_reports_what_was_predicted(tmp_path: Path, block_size: int, utilization: float) -> None:
    """Through a real start: weights, workspace, profile step and pool on the CPU device."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(own_config("qwen 2")), encoding="utf-8")
    common: dict[str, Any] = {
        "gpu_memory_utilization": utilization,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 128,
        "block_size": block_size,
        "max_model_len": 256,
        "dtype": "float32",
    }
    engine = Engine(EngineConfig(model=str(path), device="cpu", device_memory=GIB // 2, load_format="dummy", **common))
    predicted = predict(resolve_model(str(path)), ServingSettings(**common), EngineDevice(GIB // 2))
    assert engine.memory.block_bytes == predicted.block_bytes
    assert engine.memory.num_blocks == predicted.num_blocks
    assert engine.memory.weight_bytes == predicted.weight_bytes
    assert engine.memory.activation_bytes == predicted.activation_bytes
    # the profile step confirmed the overhead that was kept back, instead of adding to it
    assert engine.memory.overhead_bytes == CPU_OVERHEAD_BYTES
    assert 0 < engine.memory.activation_peak_bytes < engine.memory.activation_bytes + CPU_OVERHEAD_BYTES
