"""The engine over the emulated CUDA kernels with a KV cache in 8 bits: the tokens of the reference backend's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from engine_answers import answer, random_prompts, small_llm
from fake_gpu import FakeGpu, take_gpu
from small_models import saved_model

from kvplan_engine import LLM

SETTINGS = {"dtype": "float32", "max_num_batched_tokens": 32, "max_num_seqs": 3}


@pytest.mark.parametrize(
    ("kv_cache_dtype", "stored"), [("fp8", torch.float8_e4m3fn), ("int8_per_token_head", torch.int8)]
)
def test_greedy_tokens_are_those_of_the_reference(
    kv_cache_dtype: str, stored: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = transformers.LlamaConfig(
        hidden_size=256,
        intermediate_size=96,
        num_hidden_layers=2,
        vocab_size=384,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    saved_model(config, tmp_path)
    prompts = random_prompts(1, 40, 9)
    settings = SETTINGS | {"kv_cache_dtype": kv_cache_dtype, "max_model_len": 64}
    expected = answer(small_llm(tmp_path, attention_backend="reference", **settings), prompts, 8)
    take_gpu(monkeypatch, FakeGpu())
    llm = LLM(str(tmp_path), **settings)
    assert llm.engine.model.attention.name == "cuda"
    assert llm.engine.serving.runner.kv.dtype is stored
    assert answer(llm, prompts, 8) == expected
