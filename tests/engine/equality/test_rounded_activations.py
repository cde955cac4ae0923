"""``activation_quantization="int8"``: what weights in few bits are multiplied with is rounded, or it is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_configs import llama_config

from kvplan_engine import LLM, EngineError, SamplingParams
from kvplan_engine.config import EVEN_QUANTIZATIONS, QUANTIZATIONS, EngineConfig
from kvplan_engine.models.device_kernels import reference_kernels, select_kernels

LLAMA: dict[str, Any] = llama_config(hidden_size=128, intermediate_size=256, vocab_size=256)
TOKENS = [(7 * k + 3) % 256 for k in range(40)]


def logprobs_of(**settings: Any) -> torch.Tensor:
    """Of each prompt token but the first, and the memory that was accounted for behind them."""
    common: dict[str, Any] = {"device": "cpu", "dtype": "float32", "device_memory": "512MiB", "max_model_len": 64}
    with LLM(LLAMA, load_format="dummy", quantization="int4", group_size=32, **common | settings) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
        (output,) = llm.generate([{"prompt_token_ids": TOKENS}], params)
        memory = llm.engine.memory
    assert output.prompt_logprobs is not None
    found = zip(TOKENS[1:], output.prompt_logprobs[1:], strict=True)
    values = [logprobs[token] for token, logprobs in found if logprobs is not None]
    return torch.tensor([*values, float(memory.weight_bytes), float(memory.activation_bytes), float(memory.num_blocks)])


def test_a_model_answers_as_the_plain_definition_does() -> None:
    """In whole prompts and in chunks of it, and close to what it answers otherwise, from the same bytes."""
    exact, rounded = logprobs_of(), logprobs_of(activation_quantization="int8")
    plain = logprobs_of(activation_quantization="int8", attention_backend="reference")
    assert torch.equal(rounded[-3:], exact[-3:])
    chunked = logprobs_of(activation_quantization="int8", max_num_batched_tokens=16)
    torch.testing.assert_close(chunked[:-3], rounded[:-3], rtol=0, atol=1e-4)
    # One last bit of a sum may decide between two integers.
    assert (plain - rounded)[:-3].abs().max() < 0.01
    assert 1e-4 < (rounded - exact)[:-3].abs().max() < 0.2


def test_codes_that_do_not_count_evenly_are_refused_by_name() -> None:
    for name in QUANTIZATIONS:
        if name in EVEN_QUANTIZATIONS:
            EngineConfig(LLAMA, quantization=name, activation_quantization="int8")
            continue
        with pytest.raises(EngineError, match=f"codes that count evenly, and quantization is '{name}'"):
            EngineConfig(LLAMA, quantization=name, activation_quantization="int8")


def test_a_model_without_such_weights_is_refused() -> None:
    with pytest.raises(EngineError, match="whose codes count evenly, of which this model has none"):
        LLM(LLAMA, load_format="dummy", device="cpu", device_memory="512MiB", activation_quantization="int8")


def test_kernels_of_a_gpu_refuse_it() -> None:
    select_kernels("auto", "cpu", torch.float32).check_rounding()
    with pytest.raises(EngineError, match="the CUDA kernels do not round activations"):
        replace(reference_kernels(), takes_plain_weights=True).check_rounding()


def test_classes_of_transformers_do_not_have_it() -> None:
    with pytest.raises(EngineError, match="activation_quantization is for the engine's own decoder"):
        EngineConfig(LLAMA, model_impl="transformers", activation_quantization="int8")
