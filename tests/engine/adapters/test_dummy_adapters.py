"""Adapters of random weights: they correct every product, differ by seed, and need neither files nor host memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_configs import llama_config

from kvplan_engine import LLM, EngineError, SamplingParams
from kvplan_engine.adapters.library import dummy_adapter
from kvplan_engine.adapters.sites import sites_of
from kvplan_engine.description.parameters import num_parameters

LLAMA: dict[str, Any] = llama_config(vocab_size=160)
SETTINGS: dict[str, Any] = {"device": "cpu", "device_memory": "384MiB", "max_model_len": 64, "dtype": "float32"}
PARAMS = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, logprobs=1)
PROMPT = {"prompt_token_ids": [5, 6, 7, 8]}


def test_each_answers_in_its_own_way() -> None:
    with LLM(LLAMA, load_format="dummy", enable_lora=True, max_loras=2, max_lora_rank=8, **SETTINGS) as llm:
        first, second = (llm.engine.add_dummy_adapter(f"adapter-{seed}", seed) for seed in (1, 2))
        wanted = [None, first, second, first]
        outputs = llm.generate([PROMPT] * 4, PARAMS, lora_request=wanted)
        answers = [each.outputs[0].cumulative_logprob for each in outputs]
    assert answers[1] == answers[3]
    assert len(set(answers)) == 3


def test_it_corrects_every_product_and_is_the_same_for_the_same_seed() -> None:
    with LLM(LLAMA, load_format="none", **SETTINGS) as llm:
        model = llm.engine.model.config
    one, again, other = (dummy_adapter(model, 4, "bfloat16", seed) for seed in (1, 1, 2))
    assert set(one.corrections) == {(site.name, each) for site in sites_of(model) for each in range(len(site.segments))}
    for key, found in one.corrections.items():
        assert torch.equal(found.down, again.corrections[key].down)
        assert not torch.equal(found.up, other.corrections[key].up)
    assert one.digest == again.digest != other.digest
    held = {found.down.untyped_storage().data_ptr(): found.down.untyped_storage().nbytes() for found in
            one.corrections.values()}  # fmt: skip
    assert sum(held.values()) < num_parameters(model)


def test_only_counted_they_have_names_alone() -> None:
    with LLM(LLAMA, load_format="none", enable_lora=True, max_loras=2, max_lora_rank=8, **SETTINGS) as llm:
        request = llm.engine.add_dummy_adapter("adapter-1", 1)
        assert llm.engine.load_adapter(request).name == "adapter-1"


def test_without_slots_there_are_none() -> None:
    with LLM(LLAMA, load_format="dummy", **SETTINGS) as llm, pytest.raises(EngineError, match="serves none"):
        llm.engine.add_dummy_adapter("adapter-1")
