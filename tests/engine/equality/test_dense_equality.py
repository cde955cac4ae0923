"""Dense families, mixtures and latents answer as transformers' classes do: greedy tokens, log-probabilities, float32.

One engine of each family, with everything at once: ragged prompts, more than may run, longer than a step's budget, in
blocks of three tokens, in a pool that preempts; and once more, from the prefix cache.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from dense_models import DenseCheckpoint
from engine_answers import check_likeliest, drawn_prompts, shrink_pool, small_llm
from small_models import DENSE, LATENTS, MIXTURES, RENAMED

from kvplan_engine import LLM
from kvplan_engine.description.mixers import FULL

NUM_TOKENS = 10
PROMPT_LENGTHS = (1, 5, 17, 40, 70, 33)


def prompts_of(checkpoint: DenseCheckpoint) -> list[list[int]]:
    return [prompt for prompt in drawn_prompts(PROMPT_LENGTHS) if len(prompt) >= checkpoint.shortest]


def engine_of(path: Path, **settings: object) -> LLM:
    usual = {"device_memory": "384MiB", "max_num_batched_tokens": 24, "max_num_seqs": 4, "max_model_len": 96}
    return small_llm(path, **usual | {"block_size": 3} | settings)


def check_answers(checkpoint: DenseCheckpoint, llm: LLM, prompts: list[list[int]]) -> None:
    check_likeliest(checkpoint.model, llm, prompts, NUM_TOKENS)


@pytest.mark.parametrize("name", [*DENSE, *RENAMED, *MIXTURES, *LATENTS])
def test_answers_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    checkpoint = DenseCheckpoint(name, tmp_path, LATENTS if name in LATENTS else MIXTURES)
    llm = engine_of(checkpoint.path)
    shrink_pool(llm, num_tokens=99)
    prompts = prompts_of(checkpoint)
    check_answers(checkpoint, llm, prompts)
    mixers = [mixer for layer in llm.engine.model.config.layers for mixer in layer.mixers]
    keeps_all = all(getattr(mixer, "kept", FULL) == FULL for mixer in mixers)
    assert llm.get_stats()["num_preemptions"] > 0 or len(prompts) == 1 or not keeps_all
    check_answers(checkpoint, llm, prompts[-1:])
    check_answers(checkpoint, llm, prompts[-1:])
    assert llm.get_stats()["prefix_cache_hits"] > 0


@pytest.mark.parametrize("name", ["qwen2_moe", "glm4_moe", "phimoe", "deepseek_v2_lite", "mistral4", "glm_moe_dsa"])
def test_the_definition_answers_alike(name: str, tmp_path: Path) -> None:
    """The same model on plain torch, in blocks of 16."""
    checkpoint = DenseCheckpoint(name, tmp_path, LATENTS if name in LATENTS else MIXTURES)
    llm = engine_of(checkpoint.path, attention_backend="reference", block_size=16)
    check_answers(checkpoint, llm, prompts_of(checkpoint)[:3])
