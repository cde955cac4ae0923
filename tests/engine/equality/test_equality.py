"""The engine's greedy tokens are transformers' `generate`'s, token for token, in float32."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from covering import covering_part
from engine_answers import NUM_TOKENS, answer, ragged_prompts, shrink_pool
from small_models import ARCHITECTURES, Checkpoint, greedy

from kvplan_engine import LLM, SamplingParams


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
    llm = LLM(
        str(checkpoints[name].path),
        dtype="float32",
        device="cpu",
        device_memory="512MiB",
        attention_backend=backend,
        max_num_batched_tokens=48,
        max_num_seqs=4,
        block_size=block_size,
        enable_prefix_caching=prefix_caching,
    )
    assert llm.engine.model.attention.name == backend
    shrink_pool(llm, num_tokens=1024)  # as many as ever needed; checking a pool takes time by its blocks
    prompts = ragged_prompts()
    assert answer(llm, prompts, NUM_TOKENS) == expected_tokens[name]
    # again: with the prefix cache on, nearly everything is found; the tokens stay the same
    assert answer(llm, prompts, NUM_TOKENS) == expected_tokens[name]
    hits = llm.get_stats()["prefix_cache_hits"]
    assert (hits > 0) == prefix_caching


@pytest.mark.parametrize("block_size", [1, 8, 16, 32])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_pool_so_small_that_sequences_are_preempted(
    checkpoints: dict[str, Checkpoint], expected_tokens: dict[str, list[list[int]]], name: str, block_size: int
) -> None:
    llm = LLM(
        str(checkpoints[name].path),
        dtype="float32",
        device="cpu",
        device_memory="512MiB",
        max_num_batched_tokens=64,
        max_num_seqs=6,
        max_model_len=96,
        block_size=block_size,
        enable_prefix_caching=False,
    )
    shrink_pool(llm, num_tokens=96 if name == "mistral" else 128)  # it gives back what lies before its window
    assert answer(llm, ragged_prompts(), NUM_TOKENS) == expected_tokens[name]
    stats = llm.get_stats()
    assert stats["num_preemptions"] > 0
    assert stats["recomputed_tokens"] > 0
    assert stats["num_free_blocks"] == stats["num_blocks"]


@pytest.mark.slow
def test_gpt2_of_real_shape(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.GPT2Config(initializer_range=0.05)
    model = transformers.GPT2LMHeadModel(config).eval()
    model.save_pretrained(tmp_path)
    rng = np.random.default_rng(1)
    prompts = [rng.integers(0, config.vocab_size, length).tolist() for length in (7, 100, 33)]
    llm = LLM(str(tmp_path), dtype="float32", device="cpu", max_num_batched_tokens=64, max_num_seqs=8)
    assert answer(llm, prompts, 12) == greedy(model, prompts, 12)


@pytest.mark.slow
@pytest.mark.xdist_group("smollm2")
def test_smollm2_speaks_as_in_transformers(smollm2_path: Path, smollm2_model: torch.nn.Module) -> None:
    """Trained weights and real text: ragged prompts, a pool that preempts; ``test_matrix_smollm2``'s blocks, and 8."""
    llm = LLM(
        str(smollm2_path),
        dtype="float32",
        device="cpu",
        max_model_len=160,
        max_num_batched_tokens=64,
        max_num_seqs=4,
        enable_prefix_caching=False,
    )
    texts = [
        "The capital of France is",
        "Once upon a time, in a small village by the sea, there lived an old fisherman who",
        "def fibonacci(n):",
        "Water boils at 100 degrees Celsius because",
    ]
    prompts = [llm.tokenizer.encode(text) for text in texts]
    want = greedy(smollm2_model, prompts, 24)
    for block_size in (32, 8):
        llm.engine.reconfigure(block_size=block_size, gpu_memory_utilization=0.9)
        assert answer(llm, prompts, 24) == want
    shrink_pool(llm, num_tokens=160)
    llm.engine.reconfigure(max_model_len=64)
    shrink_pool(llm, num_tokens=80)
    assert answer(llm, prompts, 24) == want
    assert llm.get_stats()["num_preemptions"] > 0
    (output,) = llm.generate("The capital of France is", SamplingParams(temperature=0.0, max_tokens=8))
    assert "Paris" in output.outputs[0].text
