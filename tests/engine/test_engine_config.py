"""Settings are declared once: ranges, choices, what may change, what is explained."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan_engine import LLM, EngineConfig, EngineError
from kvplan_engine.config import describe_knobs, knobs

# Python arguments of the public interface that the engine implements, with their defaults.
PUBLIC_DEFAULTS = {
    "device": "auto",
    "dtype": "auto",
    "load_format": "auto",
    "gpu_memory_utilization": 0.9,
    "max_model_len": None,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 2048,
    "block_size": 16,
    "kv_cache_dtype": "auto",
    "enable_prefix_caching": True,
    "swap_space": 0,
    "device_memory": None,
    "seed": 0,
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
}


def test_every_setting_is_declared_with_its_meaning() -> None:
    assert list(knobs()) == list(EngineConfig.__dataclass_fields__)
    for name, knob in knobs().items():
        assert knob.help, name
        assert f"{name} = " in describe_knobs() or name == "model"
        assert knob.help in describe_knobs()


def test_the_public_defaults_stand() -> None:
    config = EngineConfig(model="gpt2")
    assert {name: getattr(config, name) for name in PUBLIC_DEFAULTS} == PUBLIC_DEFAULTS


def test_what_a_loaded_engine_may_change() -> None:
    fixed = {name for name, knob in knobs().items() if not knob.reconfigurable}
    assert fixed == {
        "model",
        "device",
        "dtype",
        "load_format",
        "weight_bytes",
        "rank_accounts",
        "dummy_layers",
        "kv_cache_dtype",
        "device_memory",
        "seed",
        "model_impl",
        "enable_lora",
        "max_loras",
        "max_lora_rank",
        "max_cpu_loras",
        "quantization",
        "group_size",
        "activation_quantization",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "enable_expert_parallel",
        "disable_custom_all_reduce",
        "attention_backend",
        "linear_backend",
    }


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("gpu_memory_utilization", 0, "gpu_memory_utilization must be in (0, 1], got 0."),
        ("max_model_len", 1, "max_model_len must be at least 2, got 1."),
        ("swap_space", -1, "swap_space must be 0 or more bytes, got -1."),
        ("max_num_seqs", 2**31, "max_num_seqs must be at most 2,147,483,647, got 2,147,483,648."),
        ("seed", 2**63, "seed must fit 64 bits, got 9223372036854775808."),
        ("swap_space", 10**20, "swap_space must fit 64 bits, got 100000000000000000000."),
        ("seed", 10**4000, "seed must fit 64 bits, got 13,288 of them."),
        ("device_memory", 0, "device_memory must be at least 1, got 0."),
        ("max_num_seqs", 2.5, "max_num_seqs must be a whole number of sequences, got 2.5."),
        ("max_model_len", "4k", "max_model_len must be a whole number of tokens, got '4k'."),
        ("swap_space", True, "swap_space must be a whole number of bytes, got True."),
        ("tensor_parallel_size", 0, "tensor_parallel_size must be at least 1, got 0."),
        ("scheduling", "eager", "scheduling 'eager' is not known."),
    ],
)
def test_a_value_that_is_not_allowed_is_named(name: str, value: Any, message: str) -> None:
    with pytest.raises(EngineError) as caught:
        EngineConfig(model="gpt2", **{name: value})
    assert caught.value.message == message


@pytest.mark.parametrize("name", [name for name, knob in knobs().items() if knob.choices])
def test_every_choice_is_accepted_and_listed_when_another_is_given(name: str) -> None:
    for choice in knobs()[name].choices:
        EngineConfig(model="gpt2", **{"swap_space": 1 << 20, "load_format": "dummy", name: choice})
    with pytest.raises(EngineError) as caught:
        EngineConfig(model="gpt2", **{name: "other"})
    assert caught.value.hint == "one of " + ", ".join(knobs()[name].choices)


def test_an_unknown_setting_is_refused_in_one_sentence() -> None:
    with pytest.raises(EngineError) as caught:
        LLM("gpt2", max_num_sequences=4, block_size=16)
    assert caught.value.message == "unknown setting max_num_sequences."
    assert "max_num_seqs" in (caught.value.hint or "")


def test_memory_may_be_given_as_text_wherever_a_setting_is_in_bytes() -> None:
    names = [name for name, knob in knobs().items() if knob.unit == "bytes"]
    assert names == ["weight_bytes", "swap_space", "device_memory", "kv_host_cache_bytes", "kv_disk_cache_bytes"]
    for name in names:
        with pytest.raises(EngineError, match=f"{name} 'lots' is not an amount of memory"):
            LLM("gpt2", **{name: "lots"})
