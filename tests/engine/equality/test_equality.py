"""The engine's greedy tokens are transformers' `generate`'s, token for token, in float32."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from covering import covering_part
from engine_answers import NUM_TOKENS, answer, ragged_prompts, shrink_pool, small_llm
from small_models import ARCHITECTURES, Checkpoint, greedy

from kvplan_engine import LLM


@pytest.mark.parametrize(
    ("name", "block_size", "cache", "backend"),
    covering_part(product(ARCHITECTURES, (16, 1, 8, 32), ("uncached", "cached"), ("cpu", "reference"))),
)
def test_ragged_batches(
    checkpoints: dict[str, Checkpoint],
    expected_tokens: dict[str, list[list[int]]],
    name: str,
    block_size: int,
    cache: str,
    backend: str,
) -> None:
    """More prompts than sequences may run, prompts longer than a step's budget, prefill and decode in one step.

    Of the grid, CI runs a part in which any two values of its four axes meet.
    """
    prefix_caching = cache == "cached"
    settings = {"max_num_batched_tokens": 48, "max_num_seqs": 4, "block_size": block_size}
    settings |= {"attention_backend": backend, "enable_prefix_caching": prefix_caching}
    llm = small_llm(checkpoints[name].path, **settings)
    assert llm.engine.model.attention.name == backend
    shrink_pool(llm, num_tokens=1024)  # as many as ever needed; checking a pool takes time by its blocks
    prompts = ragged_prompts()
    assert answer(llm, prompts, NUM_TOKENS) == expected_tokens[name]
    # again: with the prefix cache on, nearly everything is found; the tokens stay the same
    assert answer(llm, prompts, NUM_TOKENS) == expected_tokens[name]
    hits = llm.get_stats()["prefix_cache_hits"]
    assert (hits > 0) == prefix_caching


@pytest.mark.exhaustive
def test_gpt2_of_real_shape(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.GPT2Config(initializer_range=0.05)
    model = transformers.GPT2LMHeadModel(config).eval()
    model.save_pretrained(tmp_path)
    rng = np.random.default_rng(1)
    prompts = [rng.integers(0, config.vocab_size, length).tolist() for length in (7, 100, 33)]
    llm = LLM(str(tmp_path), dtype="float32", device="cpu", max_num_batched_tokens=64, max_num_seqs=8)
    assert answer(llm, prompts, 12) == greedy(model, prompts, 12)
