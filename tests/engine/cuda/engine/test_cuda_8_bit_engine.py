"""The engine over the emulated CUDA kernels with a KV cache in 8 bits: the tokens of the reference backend's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from fake_gpu import FakeGpu, take_gpu

from kvplan_engine import LLM, SamplingParams

SETTINGS = {"dtype": "float32", "max_num_batched_tokens": 32, "max_num_seqs": 3}


@pytest.mark.parametrize(
    ("kv_cache_dtype", "stored"), [("fp8", torch.float8_e4m3fn), ("int8_per_token_head", torch.int8)]
)
def test_greedy_tokens_are_those_of_the_reference(
    kv_cache_dtype: str, stored: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(4)
    config = transformers.LlamaConfig(
        hidden_size=256,
        intermediate_size=96,
        num_hidden_layers=2,
        vocab_size=384,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.2,
    )
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(tmp_path)
    rng = np.random.default_rng(3)
    prompts = [{"prompt_token_ids": rng.integers(1, 384, length).tolist()} for length in (1, 40, 9)]
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    settings = SETTINGS | {"kv_cache_dtype": kv_cache_dtype, "max_model_len": 64}
    reference = LLM(str(tmp_path), device="cpu", device_memory="256MiB", attention_backend="reference", **settings)
    expected = [output.outputs[0].token_ids for output in reference.generate(prompts, params)]
    take_gpu(monkeypatch, FakeGpu())
    llm = LLM(str(tmp_path), **settings)
    assert llm.engine.model.attention.name == "cuda"
    assert llm.engine.serving.runner.kv.dtype is stored
    assert [output.outputs[0].token_ids for output in llm.generate(prompts, params)] == expected
