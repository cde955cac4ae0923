"""What every family of the mixtures' and the latents' equality tests is asked: answers beside transformers' class."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch
from engine_answers import answer, ragged_prompts, shrink_pool

from kvplan_engine import LLM, SamplingParams

NUM_TOKENS = 12
TOLERANCE = 1e-4


class SavedModel(Protocol):
    """path: for the engine. model: of transformers."""

    path: Path
    model: torch.nn.Module


def engine_of(path: Path, **settings: object) -> LLM:
    usual = {"dtype": "float32", "device": "cpu", "device_memory": "512MiB", "max_num_batched_tokens": 48}
    return LLM(str(path), **usual | {"max_num_seqs": 4, "max_model_len": 128} | settings)


def check_answers(checkpoint: SavedModel, prompts: list[list[int]], answers: list[list[int]]) -> None:
    """Each answer's tokens are transformers' likeliest, given the prompt and the tokens before."""
    for prompt, tokens in zip(prompts, answers, strict=True):
        with torch.no_grad():
            logits = checkpoint.model(torch.tensor([prompt + tokens])).logits[0]
        assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == tokens


def check_ragged_batches(checkpoint: SavedModel) -> None:
    """More prompts than sequences may run, prompts longer than a step's budget; again, found in the prefix cache."""
    llm = engine_of(checkpoint.path, block_size=8)
    prompts = ragged_prompts()
    shrink_pool(llm, num_tokens=1024)
    first = answer(llm, prompts, NUM_TOKENS)
    check_answers(checkpoint, prompts, first)
    assert answer(llm, prompts, NUM_TOKENS) == first
    assert llm.get_stats()["prefix_cache_hits"] > 0


def check_preemption_and_other_blocks(checkpoint: SavedModel) -> None:
    llm = engine_of(checkpoint.path, block_size=3, max_num_seqs=6, enable_prefix_caching=False)
    shrink_pool(llm, num_tokens=129)
    prompts = ragged_prompts()
    check_answers(checkpoint, prompts, answer(llm, prompts, NUM_TOKENS))
    assert llm.get_stats()["num_preemptions"] > 0


def check_log_probabilities(checkpoint: SavedModel) -> None:
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


def check_definition(checkpoint: SavedModel) -> None:
    """The same model on plain torch."""
    prompts = ragged_prompts()[:3]
    answers = answer(engine_of(checkpoint.path, attention_backend="reference"), prompts, NUM_TOKENS)
    check_answers(checkpoint, prompts, answers)
