"""What docs/engine.md promises of the same request again: in 16 bits if its prompt is computed in the same pieces."""

from __future__ import annotations

import pytest
from engine_answers import ragged_prompts
from small_models import Checkpoint

from kvplan_engine import LLM, SamplingParams

NUM_TOKENS = 10
PIECES: dict[str, dict[str, object]] = {
    "whole": {"max_num_batched_tokens": 2048, "enable_prefix_caching": False},
    "budget": {"max_num_batched_tokens": 24, "enable_prefix_caching": False},
    "cached": {"max_num_batched_tokens": 2048, "enable_prefix_caching": True, "block_size": 8},
}


def answers(llm: LLM, params: list[SamplingParams], *, alone: bool) -> list[list[int]]:
    prompts = [{"prompt_token_ids": prompt} for prompt in ragged_prompts()]
    if alone:
        outputs = [llm.generate([prompt], [own])[0] for prompt, own in zip(prompts, params, strict=True)]
    else:
        outputs = llm.generate(prompts, params)
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize("temperature", [0.0, 0.9], ids=["greedy", "seeded"])
@pytest.mark.parametrize(
    ("dtype", "pieces"), [("float32", "whole"), ("float32", "budget"), ("float32", "cached"), ("bfloat16", "whole")]
)
def test_a_request_gets_the_same_tokens_whatever_runs_beside_it(
    checkpoints: dict[str, Checkpoint], dtype: str, pieces: str, temperature: float
) -> None:
    path = str(checkpoints["llama"].path)
    params = [
        SamplingParams(temperature=temperature, seed=seed, max_tokens=NUM_TOKENS, ignore_eos=True) for seed in range(6)
    ]
    settings: dict[str, object] = {"dtype": dtype, "device": "cpu", "device_memory": "512MiB", "max_model_len": 96}
    with LLM(path, **settings, **PIECES["whole"]) as llm:
        wanted = answers(llm, params, alone=True)
        assert answers(llm, params, alone=True) == wanted
        llm.engine.reconfigure(**PIECES[pieces])
        for _ in range(2):  # the second time from the cache, where there is one
            assert answers(llm, params, alone=False) == wanted
        hits = llm.get_stats()["prefix_cache_hits"]
    assert (hits > 0) == (pieces == "cached")
