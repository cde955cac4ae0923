"""Families with gated delta rules answer as transformers does, over a pool with a group of states.

As in ``test_dense_equality``, everything at once: ragged prompts, chunks, blocks of three tokens, preemption by
recomputing and by swapping, the prefix cache, KV tiers. A prefix is adopted with the state behind exactly its tokens.
transformers' full forward is the witness.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from dense_models import DenseCheckpoint
from engine_answers import answer, shrink
from state_models import STATES, as_published
from test_dense_equality import NUM_TOKENS, TOLERANCE, check_answers, engine_of, prompts_of
from test_window_equality import SWAP, TIERS

from kvplan_engine import LLM, SamplingParams


@pytest.mark.parametrize(
    ("name", "settings"),
    [*((name, {}) for name in STATES), ("qwen3_5", SWAP), ("qwen3_5", TIERS)],
    ids=[*STATES, "qwen3_5-swap", "qwen3_5-tiers"],
)
def test_answers_are_those_of_transformers(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    checkpoint = DenseCheckpoint(name, tmp_path, STATES)
    as_published(name, checkpoint.path)
    llm = engine_of(checkpoint.path, **settings)
    groups = llm.engine.scheduler.pool.layout.groups
    assert groups[-1].is_state
    shrink(llm, 1.2 if settings is TIERS else 2.0)
    prompts = prompts_of(checkpoint)
    check_answers(checkpoint, llm, prompts)
    stats = llm.get_stats()
    assert stats["num_preemptions"] > 0
    assert (stats["num_swaps"] > 0) == (settings is SWAP)
    check_answers(checkpoint, llm, prompts[-1:])
    check_answers(checkpoint, llm, prompts[-1:])
    assert llm.get_stats()["prefix_cache_hits"] > 0
    assert llm.get_stats()["num_free_blocks"] == llm.get_stats()["num_blocks"]


def check_drawn(checkpoint: DenseCheckpoint, llm: LLM, prompts: list[list[int]]) -> None:
    """Samples that fork from a prompt, and go different ways: each token has transformers' log-probability."""
    params = SamplingParams(n=3, temperature=1.0, seed=5, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=1)
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params)
    for prompt, output in zip(prompts, outputs, strict=True):
        answers = [list(sample.token_ids) for sample in output.outputs]
        assert len({tuple(tokens) for tokens in answers}) == 3
        for tokens, sample in zip(answers, output.outputs, strict=True):
            with torch.no_grad():
                logits = checkpoint.model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1].float()
            want = logits.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0]
            assert sample.logprobs is not None
            found = torch.tensor([each[token] for token, each in zip(tokens, sample.logprobs, strict=True)])
            assert (found - want).abs().max() < TOLERANCE


def test_forks_the_disk_and_steps_ahead(tmp_path: Path) -> None:
    checkpoint = DenseCheckpoint("qwen3_5", tmp_path, STATES)
    disk = {"kv_disk_cache_dir": str(tmp_path / "kv"), "kv_disk_cache_bytes": 1 << 24, "kv_load_policy": "always"}
    llm = engine_of(checkpoint.path, **disk, async_scheduling=True, block_size=16)
    shrink(llm, 1.2)
    prompts = [prompt for prompt in prompts_of(checkpoint) if len(prompt) > 20]
    check_answers(checkpoint, llm, prompts)
    check_drawn(checkpoint, llm, prompts)
    for prompt, tokens in zip(prompts, answer(llm, prompts, NUM_TOKENS), strict=True):  # without log-probabilities
        with torch.no_grad():
            logits = checkpoint.model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        assert logits.argmax(-1).tolist() == tokens
    stats = llm.get_stats()
    assert stats["num_steps_ahead"] > 0
    assert stats["kv_disk_cache_hits"] > 0


def test_the_reference_and_other_blocks(tmp_path: Path) -> None:
    checkpoint = DenseCheckpoint("qwen3_5", tmp_path, STATES)
    llm = engine_of(checkpoint.path, attention_backend="reference", block_size=1)
    check_answers(checkpoint, llm, prompts_of(checkpoint)[:4])
