"""TensorRT-LLM's pool by release."""

from __future__ import annotations

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.estimate.sglang import CONTEXT_BYTES
from kvplan.estimate.trtllm import DEFAULT_BLOCK, predict_trtllm
from kvplan.settings import ServingSettings
from kvplan.units import KIB

SETTINGS = ServingSettings(tensor_parallel_size=8, max_num_batched_tokens=16384, max_num_seqs=512, max_model_len=4000)


@pytest.mark.parametrize(("model", "times"), [("deepseek-r1", 2), ("llama-3.1-70b", 1)])
def test_latents_were_counted_twice_before_0_19(model: str, times: int) -> None:
    spec, gpu = resolve_model(model), find_gpu("h200")
    newest, old = (predict_trtllm(spec, gpu, SETTINGS, release).kv_cache_tokens for release in ("latest", "0.17.0"))
    assert newest == pytest.approx(times * old, abs=2 * DEFAULT_BLOCK)
    assert predict_trtllm(spec, gpu, SETTINGS, "0.19.0").kv_cache_tokens == newest


def test_the_pool_is_sized_after_a_step_of_as_many_tokens_as_one_may_have() -> None:
    """Three activations of 5,120 values and two of 25,600 in 16 bits are 128 KiB a token and more."""
    spec, gpu = resolve_model("qwen3-32b"), find_gpu("a100-80gb-sxm")
    small, usual, large = (
        predict_trtllm(spec, gpu, ServingSettings(max_num_batched_tokens=tokens)).other_bytes
        for tokens in (2048, None, 16384)
    )
    assert 6144 * 128 * KIB < usual - small < 6144 * 256 * KIB
    assert large > usual > small > CONTEXT_BYTES
    assert predict_trtllm(spec, gpu, ServingSettings(max_num_seqs=2048)).other_bytes == usual


def test_short_contexts_take_several_prompts_to_fill_the_step() -> None:
    spec, gpu = resolve_model("llama-3.1-8b"), find_gpu("h100-sxm")
    few, many = (predict_trtllm(spec, gpu, ServingSettings(max_model_len=each)).other_bytes for each in (32768, 17))
    assert many > few  # 512 rows of logits
