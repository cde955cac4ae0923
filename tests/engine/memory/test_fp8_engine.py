"""The whole engine with a KV cache in fp8: a quarter of float32's bytes, and what it computes from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_answers import answer, shrink_pool
from small_models import Checkpoint

from kvplan_engine import LLM, EngineConfig, EngineError, SamplingParams

SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "device": "cpu",
    "device_memory": "512MiB",
    "max_model_len": 96,
    "max_num_batched_tokens": 48,
    "max_num_seqs": 4,
}


def prompts_of(seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    shared = rng.integers(1, 384, 34).tolist()
    own = [rng.integers(1, 384, length).tolist() for length in (3, 50, 17)]
    return [*own, shared, shared + own[0]]


@pytest.fixture(scope="module")
def plain_answers(checkpoints: dict[str, Checkpoint]) -> dict[str, list[list[int]]]:
    """By the reference backend: one request at a time, no prefix cache, nothing preempted."""
    answers = {}
    for name in ("gpt2", "llama", "mistral", "qwen3"):
        settings = SETTINGS | {"attention_backend": "reference", "enable_prefix_caching": False, "max_num_seqs": 1}
        llm = LLM(str(checkpoints[name].path), kv_cache_dtype="fp8", block_size=16, **settings)
        shrink_pool(llm, num_tokens=1024)
        answers[name] = answer(llm, prompts_of(3), 12)
    return answers


@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize(
    "way",
    [
        {"attention_backend": "reference"},
        {"enable_prefix_caching": False},
        {"kv_cache_dtype": "fp8_e4m3"},
        {"preemption_mode": "recompute"},
        {"preemption_mode": "swap", "swap_space": 1 << 22},
        {"kv_host_cache_bytes": 1 << 22, "kv_load_policy": "always"},
    ],
    ids=lambda way: "-".join(str(value) for value in way.values()),
)
@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "qwen3"])
def test_every_way_gives_the_tokens_of_the_reference(
    checkpoints: dict[str, Checkpoint],
    plain_answers: dict[str, list[list[int]]],
    name: str,
    way: dict[str, Any],
    block_size: int,
) -> None:
    settings = SETTINGS | {"kv_cache_dtype": "fp8", "block_size": block_size} | way
    is_short, short = "preemption_mode" in way or "kv_host_cache_bytes" in way, 96
    if name == "mistral":  # its windows give blocks back: only small steps in a smaller pool run out of them
        settings["max_num_batched_tokens"], short = 16, 80
    llm = LLM(str(checkpoints[name].path), **settings)
    shrink_pool(llm, num_tokens=short if is_short else 1024)
    assert answer(llm, prompts_of(3), 12) == plain_answers[name]
    stats = llm.get_stats()
    assert ("preemption_mode" in way) <= (stats["num_preemptions"] > 0)
    assert (way.get("preemption_mode") == "swap") == (stats["num_swaps"] > 0)


def test_blocks_outlive_the_engine_on_disk_but_not_in_another_dtype(
    checkpoints: dict[str, Checkpoint], plain_answers: dict[str, list[list[int]]], tmp_path: Any
) -> None:
    disk = {"kv_disk_cache_dir": str(tmp_path), "kv_disk_cache_bytes": 1 << 24, "kv_load_policy": "always"}
    found = []
    for kv_cache_dtype in ("fp8", "fp8_e4m3", "float32"):
        llm = LLM(str(checkpoints["llama"].path), kv_cache_dtype=kv_cache_dtype, **SETTINGS, **disk)
        shrink_pool(llm, num_tokens=1024)
        answers = answer(llm, prompts_of(3), 12)
        found.append(llm.get_stats()["kv_disk_cache_hits"])
        if kv_cache_dtype != "float32":
            assert answers == plain_answers["llama"]
        llm.engine.close()
    assert found[0] == 0
    assert found[1] > 0
    assert found[2] == 0


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3"])
def test_logits_stay_near_those_of_a_float32_cache(checkpoints: dict[str, Checkpoint], name: str) -> None:
    """A stored value is off by up to 2^-4 of itself; over a few dozen tokens most of that averages out."""
    found = {}
    for kv_cache_dtype in ("auto", "bfloat16", "fp8"):
        llm = LLM(str(checkpoints[name].path), kv_cache_dtype=kv_cache_dtype, **SETTINGS)
        shrink_pool(llm, num_tokens=1024)
        params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=384)
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts_of(5)], params)
        found[kv_cache_dtype] = np.array([[o.outputs[0].logprobs[0][token] for token in range(384)] for o in outputs])
    spread = found["auto"].std()
    error = {key: float(np.sqrt(((values - found["auto"]) ** 2).mean()) / spread) for key, values in found.items()}
    print(name, spread, error)
    assert 0 < error["bfloat16"] < error["fp8"] < 0.15


def test_a_block_takes_a_quarter_of_the_bytes(checkpoints: dict[str, Checkpoint]) -> None:
    path = str(checkpoints["llama"].path)
    memory = {name: LLM(path, kv_cache_dtype=name, **SETTINGS).engine.memory for name in ("auto", "bfloat16", "fp8")}
    assert memory["auto"].block_bytes == 2 * memory["bfloat16"].block_bytes == 4 * memory["fp8"].block_bytes
    assert memory["fp8"].num_blocks // 4 == memory["auto"].num_blocks


def test_other_eight_bit_formats_are_refused_by_name() -> None:
    with pytest.raises(EngineError, match="kv_cache_dtype 'fp8_e5m2' is not known"):
        EngineConfig(model="gpt2", kv_cache_dtype="fp8_e5m2")
