"""The engine's greedy tokens are transformers' `generate`'s, token for token, in float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from conftest import ARCHITECTURES, Checkpoint, greedy

from kvplan_engine import LLM, SamplingParams

NUM_TOKENS = 20
PROMPT_LENGTHS = (1, 5, 17, 33, 64, 40)  # ragged, a single token, longer than a chunk


def _prompts(vocab_size: int) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(1, vocab_size, length).tolist() for length in PROMPT_LENGTHS]


@pytest.fixture(scope="module")
def expected(checkpoints: dict[str, Checkpoint]) -> dict[str, list[list[int]]]:
    answers = {}
    for name, checkpoint in checkpoints.items():
        answers[name] = greedy(checkpoint.model, _prompts(384), NUM_TOKENS)
        assert len({tuple(answer) for answer in answers[name]}) == len(PROMPT_LENGTHS), "answers that cannot tell"
    return answers


def answer(llm: LLM, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
    """Greedy answers; conftest checks every invariant after every step."""
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    requests = [llm.engine.add_request(f"r{i}", prompt, params) for i, prompt in enumerate(prompts)]
    while llm.engine.has_unfinished_requests():
        llm.engine.step()
    return [request.sequences[0].output_token_ids for request in requests]


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("prefix_caching", [False, True], ids=["uncached", "cached"])
@pytest.mark.parametrize("block_size", [1, 8, 16, 32])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_ragged_batches(
    checkpoints: dict[str, Checkpoint],
    expected: dict[str, list[list[int]]],
    name: str,
    block_size: int,
    prefix_caching: bool,
    backend: str,
) -> None:
    """More prompts than sequences may run, prompts longer than a step's budget, prefill and decode in one step."""
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
    prompts = _prompts(384)
    assert answer(llm, prompts, NUM_TOKENS) == expected[name]
    # again: with the prefix cache on, nearly everything is found; the tokens stay the same
    assert answer(llm, prompts, NUM_TOKENS) == expected[name]
    hits = llm.get_stats()["prefix_cache_hits"]
    assert (hits > 0) == prefix_caching


@pytest.mark.parametrize("block_size", [1, 8, 16, 32])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_pool_so_small_that_sequences_are_preempted(
    checkpoints: dict[str, Checkpoint], expected: dict[str, list[list[int]]], name: str, block_size: int
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
    shrink_pool(llm, num_tokens=128)
    assert answer(llm, _prompts(384), NUM_TOKENS) == expected[name]
    stats = llm.get_stats()
    assert stats["num_preemptions"] > 0
    assert stats["recomputed_tokens"] > 0
    assert stats["num_free_blocks"] == stats["num_blocks"]


def shrink_pool(llm: LLM, num_tokens: int) -> None:
    """Lower the utilization until the pool holds ``num_tokens`` tokens: the way a user would get there."""
    memory = llm.engine.memory
    num_blocks = -(-num_tokens // memory.block_size)
    taken = memory.weight_bytes + memory.activation_bytes + memory.overhead_bytes
    wanted = taken + num_blocks * memory.block_bytes + memory.block_bytes // 2
    llm.engine.reconfigure(gpu_memory_utilization=wanted / memory.device_total_bytes)
    assert llm.engine.memory.num_blocks == num_blocks


def test_gpt2_of_real_shape(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.GPT2Config(initializer_range=0.05)
    model = transformers.GPT2LMHeadModel(config).eval()
    model.save_pretrained(tmp_path)
    rng = np.random.default_rng(1)
    prompts = [rng.integers(0, config.vocab_size, length).tolist() for length in (7, 100, 33)]
    llm = LLM(str(tmp_path), dtype="float32", device="cpu", max_num_batched_tokens=64, max_num_seqs=8)
    assert answer(llm, prompts, 12) == greedy(model, prompts, 12)


def test_smollm2_speaks_as_in_transformers(smollm2_path: Path, smollm2_model: torch.nn.Module) -> None:
    """Trained weights and real text: ragged prompts, several block sizes, a pool that preempts."""
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
    for block_size in (1, 8, 16, 32):
        llm.engine.reconfigure(block_size=block_size, gpu_memory_utilization=0.9)
        assert answer(llm, prompts, 24) == want
    shrink_pool(llm, num_tokens=160)
    llm.engine.reconfigure(block_size=8, max_model_len=64)
    shrink_pool(llm, num_tokens=80)
    assert answer(llm, prompts, 24) == want
    assert llm.get_stats()["num_preemptions"] > 0
    (output,) = llm.generate("The capital of France is", SamplingParams(temperature=0.0, max_tokens=8))
    assert "Paris" in output.outputs[0].text
