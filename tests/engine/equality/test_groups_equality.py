"""Families over a pool of several groups, windows, states or both, answer as transformers does: everything at once."""

from pathlib import Path
from typing import Any

import pytest
import torch
from dense_models import DenseCheckpoint, as_published
from engine_answers import answer, check_logprobs, logits_behind, shrink, shrink_pool
from small_models import MAMBA, STATES, WINDOWED
from test_dense_equality import NUM_TOKENS, check_answers, engine_of, prompts_of

from kvplan_engine import LLM, SamplingParams

SWAP: dict[str, Any] = {"preemption_mode": "swap", "swap_space": 1 << 22}
TIERS: dict[str, Any] = {"kv_host_cache_bytes": 1 << 22, "kv_load_policy": "always", "block_size": 16}


def check_everything(checkpoint: DenseCheckpoint, llm: LLM, settings: dict[str, Any]) -> None:
    """Ragged prompts in a pool that preempts, and again from the prefix cache; all blocks come back."""
    prompts = prompts_of(checkpoint)
    check_answers(checkpoint, llm, prompts)
    assert (llm.get_stats()["num_swaps"] > 0) == (settings is SWAP)
    for _ in range(2):
        check_answers(checkpoint, llm, prompts[-1:])
    stats = llm.get_stats()
    assert stats["prefix_cache_hits"] > 0
    assert stats["num_free_blocks"] == stats["num_blocks"]


@pytest.mark.parametrize(
    ("name", "settings"),
    [*((name, {}) for name in WINDOWED), ("gemma3", SWAP), ("gemma3", TIERS)],
    ids=[*WINDOWED, "gemma3-swap", "gemma3-tiers"],
)
def test_answers_are_those_of_transformers(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    checkpoint = DenseCheckpoint(name, tmp_path, WINDOWED)
    llm = engine_of(checkpoint.path, **settings)
    groups = llm.engine.scheduler.pool.layout.groups
    assert [group.kept.kind for group in groups] == ["full", "window"]
    shrink(llm, 1.0)
    check_everything(checkpoint, llm, settings)
    assert llm.get_stats()["num_preemptions"] > 0


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("block_size", [16])
def test_other_blocks_and_the_reference(backend: str, block_size: int, tmp_path: Path) -> None:
    checkpoint = DenseCheckpoint("gemma3", tmp_path, WINDOWED)
    llm = engine_of(checkpoint.path, block_size=block_size, attention_backend=backend)
    check_answers(checkpoint, llm, prompts_of(checkpoint))


@pytest.mark.parametrize(
    ("name", "settings"),
    [*((name, {}) for name in STATES), ("qwen3_5", SWAP), ("qwen3_5", TIERS)],
    ids=[*STATES, "qwen3_5-swap", "qwen3_5-tiers"],
)
def test_states_answer_as_transformers(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    checkpoint = DenseCheckpoint(name, tmp_path, STATES)
    as_published(name, checkpoint.path)
    llm = engine_of(checkpoint.path, **settings)
    groups = llm.engine.scheduler.pool.layout.groups
    assert groups[-1].is_state
    shrink(llm, 1.2 if settings is TIERS else 2.0)
    check_everything(checkpoint, llm, settings)
    assert llm.get_stats()["num_preemptions"] > 0


def check_drawn(checkpoint: DenseCheckpoint, llm: LLM, prompts: list[list[int]]) -> None:
    """Samples that fork from a prompt, and go different ways: each token has transformers' log-probability."""
    params = SamplingParams(n=3, temperature=1.0, seed=5, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=1)
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params)
    for prompt, output in zip(prompts, outputs, strict=True):
        answers = [list(sample.token_ids) for sample in output.outputs]
        assert len({tuple(tokens) for tokens in answers}) == 3
        for tokens, sample in zip(answers, output.outputs, strict=True):
            check_logprobs(logits_behind(checkpoint.model, prompt, tokens), sample)


def test_forks_the_disk_and_steps_ahead(tmp_path: Path) -> None:
    checkpoint = DenseCheckpoint("qwen3_5", tmp_path, STATES)
    disk = {"kv_disk_cache_dir": str(tmp_path / "kv"), "kv_disk_cache_bytes": 1 << 24, "kv_load_policy": "always"}
    llm = engine_of(checkpoint.path, **disk, async_scheduling=True, block_size=16)
    shrink(llm, 1.2)
    prompts = [prompt for prompt in prompts_of(checkpoint) if len(prompt) > 20]
    check_answers(checkpoint, llm, prompts)
    check_drawn(checkpoint, llm, prompts)
    for prompt, tokens in zip(prompts, answer(llm, prompts, NUM_TOKENS), strict=True):  # without log-probabilities
        assert logits_behind(checkpoint.model, prompt, tokens).argmax(-1).tolist() == tokens
    stats = llm.get_stats()
    assert stats["num_steps_ahead"] > 0
    assert stats["kv_disk_cache_hits"] > 0


def test_the_reference_and_other_blocks(tmp_path: Path) -> None:
    checkpoint = DenseCheckpoint("qwen3_5", tmp_path, STATES)
    llm = engine_of(checkpoint.path, attention_backend="reference", block_size=1)
    check_answers(checkpoint, llm, prompts_of(checkpoint)[:4])


def shrink_states(llm: LLM, checkpoint: DenseCheckpoint) -> None:
    """Room for the states and the prompts of the first four sequences, and for less than half of their answers."""
    layout = llm.engine.scheduler.pool.layout
    prompts = prompts_of(checkpoint)[:4]
    blocks = sum(layout.blocks_for(len(prompt) + NUM_TOKENS // 3) for prompt in prompts)
    shrink_pool(llm, num_tokens=blocks * layout.block_size)


@pytest.mark.parametrize(
    ("name", "settings"),
    [*((name, {}) for name in MAMBA), ("bamba", SWAP), ("bamba", TIERS)],
    ids=[*MAMBA, "bamba-swap", "bamba-tiers"],
)
def test_mamba_answers_as_transformers(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    checkpoint = DenseCheckpoint(name, tmp_path, MAMBA)
    llm = engine_of(checkpoint.path, **settings)
    assert any(group.is_state for group in llm.engine.scheduler.pool.layout.groups)
    shrink_states(llm, checkpoint)
    check_everything(checkpoint, llm, settings)
    if settings is not TIERS and llm.engine.scheduler.pool.layout.token_blocks:
        assert llm.get_stats()["num_preemptions"] > 0


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
