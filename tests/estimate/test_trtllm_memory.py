"""TensorRT-LLM's pool by release."""

from __future__ import annotations

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.estimate.trtllm import DEFAULT_BLOCK, predict_trtllm
from kvplan.settings import ServingSettings

SETTINGS = ServingSettings(tensor_parallel_size=8, max_num_batched_tokens=16384, max_num_seqs=512, max_model_len=4000)


@pytest.mark.parametrize(("model", "times"), [("deepseek-r1", 2), ("llama-3.1-70b", 1)])
def test_latents_were_counted_twice_before_0_19(model: str, times: int) -> None:
    spec, gpu = resolve_model(model), find_gpu("h200")
    newest, old = (predict_trtllm(spec, gpu, SETTINGS, release).kv_cache_tokens for release in (None, (0, 17, 0)))
    assert newest == pytest.approx(times * old, abs=2 * DEFAULT_BLOCK)
    assert predict_trtllm(spec, gpu, SETTINGS, (0, 19, 0)).kv_cache_tokens == newest
