"""Models with latent attention answer as transformers' classes do: greedy tokens and log-probabilities, in float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engine_answers import answer, ragged_prompts, shrink_pool
from latent_models import CONFIGS, LatentCheckpoint

from kvplan_engine import LLM, SamplingParams

NUM_TOKENS = 12
TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=CONFIGS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LatentCheckpoint:
    return LatentCheckpoint(request.param, tmp_path_factory.mktemp("latent"))


def engine_of(path: Path, **settings: object) -> LLM:
    usual = {"dtype": "float32", "device": "cpu", "device_memory": "512MiB", "max_num_batched_tokens": 48}
    return LLM(str(path), **usual | {"max_num_seqs": 4, "max_model_len": 128} | settings)


def check_answers(checkpoint: LatentCheckpoint, prompts: list[list[int]], answers: list[list[int]]) -> None:
    """Each answer's tokens are transformers' likeliest, given the prompt and the tokens before."""
    for prompt, tokens in zip(prompts, answers, strict=True):
        with torch.no_grad():
            logits = checkpoint.model(torch.tensor([prompt + tokens])).logits[0]
        assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == tokens


def test_answers_of_ragged_batches(checkpoint: LatentCheckpoint) -> None:
    """More prompts than sequences may run, prompts longer than a step's budget; again, found in the prefix cache."""
    llm = engine_of(checkpoint.path, block_size=8)
    prompts = ragged_prompts()
    shrink_pool(llm, num_tokens=1024)
    first = answer(llm, prompts, NUM_TOKENS)
    check_answers(checkpoint, prompts, first)
    assert answer(llm, prompts, NUM_TOKENS) == first
    assert llm.get_stats()["prefix_cache_hits"] > 0


def test_preemption_and_other_blocks(checkpoint: LatentCheckpoint) -> None:
    llm = engine_of(checkpoint.path, block_size=3, max_num_seqs=6, enable_prefix_caching=False)
    shrink_pool(llm, num_tokens=129)
    prompts = ragged_prompts()
    check_answers(checkpoint, prompts, answer(llm, prompts, NUM_TOKENS))
    assert llm.get_stats()["num_preemptions"] > 0


def test_log_probabilities(checkpoint: LatentCheckpoint) -> None:
    llm = engine_of(checkpoint.path)
    prompt = ragged_prompts()[3]
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=1)
    (output,) = llm.generate([{"prompt_token_ids": prompt}], params)
    tokens = list(output.outputs[0].token_ids)
    with torch.no_grad():
        logits = checkpoint.model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    want = logits.log_softmax(-1).gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1)
    assert output.outputs[0].logprobs is not None
    found = [logprobs[token] for token, logprobs in zip(tokens, output.outputs[0].logprobs, strict=True)]
    assert torch.tensor(found).sub(want).abs().max() < TOLERANCE


@pytest.mark.parametrize("name", ["deepseek_v2_lite", "mistral4", "glm_moe_dsa"])
def test_the_definition_answers_alike(name: str, tmp_path: Path) -> None:
    """The same models on plain torch."""
    checkpoint = LatentCheckpoint(name, tmp_path)
    prompts = ragged_prompts()[:3]
    answers = answer(engine_of(checkpoint.path, attention_backend="reference"), prompts, NUM_TOKENS)
    check_answers(checkpoint, prompts, answers)
