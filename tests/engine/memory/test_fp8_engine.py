"""The whole engine with a KV cache in fp8: a quarter of float32's bytes, and what it computes from them."""

from itertools import product
from typing import Any

import pytest
from covering import covering_part
from engine_answers import answer, branching_prompts, shrink_pool
from small_models import Checkpoint

from kvplan_engine import LLM, EngineConfig, EngineError

SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "device": "cpu",
    "device_memory": "512MiB",
    "max_model_len": 96,
    "max_num_batched_tokens": 48,
    "max_num_seqs": 4,
}


NAMES = ("gpt2", "llama", "mistral", "qwen3")


@pytest.fixture(scope="module")
def plain_answers(checkpoints: dict[str, Checkpoint]) -> dict[str, list[list[int]]]:
    """By the reference backend: one request at a time, no prefix cache, nothing preempted."""
    answers = {}
    for name in NAMES:
        settings = SETTINGS | {"attention_backend": "reference", "enable_prefix_caching": False, "max_num_seqs": 1}
        llm = LLM(str(checkpoints[name].path), kv_cache_dtype="fp8", block_size=16, **settings)
        shrink_pool(llm, num_tokens=1024)
        answers[name] = answer(llm, branching_prompts(3), 12)
    return answers


WAYS: dict[str, dict[str, Any]] = {
    "reference": {"attention_backend": "reference"},
    "uncached": {"enable_prefix_caching": False},
    "e4m3": {"kv_cache_dtype": "fp8_e4m3"},
    "recompute": {"preemption_mode": "recompute"},
    "swap": {"preemption_mode": "swap", "swap_space": 1 << 22},
    "tiers": {"kv_host_cache_bytes": 1 << 22, "kv_load_policy": "always"},
}


@pytest.mark.parametrize(("name", "kind", "block_size"), covering_part(product(NAMES, WAYS, (4, 16))))
def test_every_way_gives_the_tokens_of_the_reference(
    checkpoints: dict[str, Checkpoint],
    plain_answers: dict[str, list[list[int]]],
    name: str,
    kind: str,
    block_size: int,
) -> None:
    way = WAYS[kind]
    settings = SETTINGS | {"kv_cache_dtype": "fp8", "block_size": block_size} | way
    is_short, short = "preemption_mode" in way or "kv_host_cache_bytes" in way, 96
    if name == "mistral":  # its windows give blocks back: only small steps in a smaller pool run out of them
        settings["max_num_batched_tokens"], short = 16, 80
    llm = LLM(str(checkpoints[name].path), **settings)
    shrink_pool(llm, num_tokens=short if is_short else 1024)
    assert answer(llm, branching_prompts(3), 12) == plain_answers[name]
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
        answers = answer(llm, branching_prompts(3), 12)
        found.append(llm.get_stats()["kv_disk_cache_hits"])
        if kv_cache_dtype != "float32":
            assert answers == plain_answers["llama"]
        llm.engine.close()
    assert found[0] == 0
    assert found[1] > 0
    assert found[2] == 0


def test_a_block_takes_a_quarter_of_the_bytes(checkpoints: dict[str, Checkpoint]) -> None:
    path = str(checkpoints["llama"].path)
    memory = {name: LLM(path, kv_cache_dtype=name, **SETTINGS).engine.memory for name in ("auto", "bfloat16", "fp8")}
    assert memory["auto"].block_bytes == 2 * memory["bfloat16"].block_bytes == 4 * memory["fp8"].block_bytes
    assert memory["fp8"].num_blocks // 4 == memory["auto"].num_blocks


def test_other_eight_bit_formats_are_refused_by_name() -> None:
    with pytest.raises(EngineError, match="kv_cache_dtype 'fp8_e5m2' is not known"):
        EngineConfig(model="gpt2", kv_cache_dtype="fp8_e5m2")
