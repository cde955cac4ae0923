"""Families with Mamba's states and short convolutions answer as transformers' classes do, in float32.

Everything at once: ragged prompts, more than may run, longer than a step's budget, in blocks of three tokens, in a pool
that preempts; once more, from the prefix cache; swapped, and over KV tiers. The witness is transformers' forward over
the whole text: its decoding token by token has steps without their limits, and Bamba's turns by the wrong positions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from dense_models import DenseCheckpoint
from engine_answers import answer, shrink_pool
from mamba_models import MAMBA
from test_dense_equality import NUM_TOKENS, check_answers, engine_of, prompts_of
from test_window_equality import SWAP, TIERS

from kvplan_engine import LLM, SamplingParams


def shrink(llm: LLM, checkpoint: DenseCheckpoint) -> None:
    """Room for the states and the prompts of the first four sequences, and for less than half of their answers."""
    layout = llm.engine.scheduler.pool.layout
    prompts = prompts_of(checkpoint)[:4]
    blocks = sum(layout.blocks_for(len(prompt) + NUM_TOKENS // 3) for prompt in prompts)
    shrink_pool(llm, num_tokens=blocks * layout.block_size)


@pytest.mark.parametrize("name", MAMBA)
def test_answers_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    checkpoint = DenseCheckpoint(name, tmp_path, MAMBA)
    llm = engine_of(checkpoint.path)
    assert any(group.is_state for group in llm.engine.scheduler.pool.layout.groups)
    shrink(llm, checkpoint)
    prompts = prompts_of(checkpoint)
    check_answers(checkpoint, llm, prompts)
    stats = llm.get_stats()
    assert stats["num_preemptions"] > 0 or llm.engine.scheduler.pool.layout.token_blocks == 0
    check_answers(checkpoint, llm, prompts[-1:])
    check_answers(checkpoint, llm, prompts[-1:])
    assert llm.get_stats()["prefix_cache_hits"] > 0
    assert llm.get_stats()["num_free_blocks"] == llm.get_stats()["num_blocks"]


@pytest.mark.parametrize("settings", [SWAP, TIERS], ids=["swap", "tiers"])
def test_states_come_back_from_host_memory(settings: dict[str, Any], tmp_path: Path) -> None:
    checkpoint = DenseCheckpoint("bamba", tmp_path, MAMBA)
    llm = engine_of(checkpoint.path, **settings)
    shrink(llm, checkpoint)
    prompts = prompts_of(checkpoint)
    check_answers(checkpoint, llm, prompts)
    assert (llm.get_stats()["num_swaps"] > 0) == (settings is SWAP)
    for _ in range(2):
        check_answers(checkpoint, llm, prompts[-1:])
    assert llm.get_stats()["prefix_cache_hits"] > 0


@pytest.mark.parametrize("name", ["jamba", "falcon-h1", "lfm2"])
def test_the_definition_answers_alike(name: str, tmp_path: Path) -> None:
    """The same models on plain torch, in blocks of 16."""
    checkpoint = DenseCheckpoint(name, tmp_path, MAMBA)
    llm = engine_of(checkpoint.path, attention_backend="reference", block_size=16)
    check_answers(checkpoint, llm, prompts_of(checkpoint)[:4])


def test_samples_of_one_prompt_go_on_from_one_state(tmp_path: Path) -> None:
    """Three samples of a prompt: the likeliest answer, each from a copy of the state that the prompt left."""
    checkpoint = DenseCheckpoint("granite-hybrid", tmp_path, MAMBA)
    llm = engine_of(checkpoint.path)
    prompt = prompts_of(checkpoint)[2]
    (want,) = answer(llm, [prompt], NUM_TOKENS)
    params = SamplingParams(temperature=1e-5, max_tokens=NUM_TOKENS, ignore_eos=True, n=3, seed=5)
    (output,) = llm.generate([{"prompt_token_ids": prompt}], params)
    assert [list(each.token_ids) for each in output.outputs] == [want] * 3


def test_bfloat16_stays_near_float32(tmp_path: Path) -> None:
    """The same weights, rounded: log-probabilities of one prompt's tokens differ by the rounding of activations."""
    checkpoint = DenseCheckpoint("bamba", tmp_path, MAMBA)
    model = checkpoint.model.to(torch.bfloat16).float()
    prompt = prompts_of(checkpoint)[3]
    llm = engine_of(checkpoint.path, dtype="bfloat16")
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    (output,) = llm.generate([{"prompt_token_ids": prompt}], params)
    with torch.no_grad():
        logits = model(torch.tensor([prompt])).logits[0, :-1].log_softmax(-1)
    want = logits.gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]
    assert output.prompt_logprobs is not None
    pairs = zip(prompt[1:], output.prompt_logprobs[1:], strict=True)
    found = torch.tensor([each[token] for token, each in pairs])
    assert (found - want).abs().max() < 0.2
    assert (found - want).abs().mean() < 0.05
