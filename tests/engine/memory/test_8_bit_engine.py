"""The whole engine with a KV cache in 8 bits: its tokens are those of a cache that rounds and widens every row."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from covering import covering_part
from dense_models import DenseCheckpoint
from engine_answers import answer, branching_prompts, shrink_pool, small_llm
from small_models import STATES, WINDOWED, Checkpoint
from transformers import DynamicCache

from kvplan_engine import Engine, EngineConfig, EngineError, SamplingParams

FP8, INT8 = "fp8", "int8_per_token_head"
SETTINGS: dict[str, Any] = {"max_model_len": 96, "max_num_batched_tokens": 48, "max_num_seqs": 4}
NAMES = ("gpt2", "llama", "mistral", "qwen3")
NUM_TOKENS = 12


def rounded(rows: torch.Tensor, kind: str) -> torch.Tensor:
    """``rows`` [..., d] as fp8 gives them back, or integers of a 127th of their largest magnitude."""
    if kind == FP8:
        return rows.to(torch.float8_e4m3fn).to(rows.dtype)
    scale = rows.abs().amax(-1, keepdim=True) / 127
    return (rows / scale).round() * scale


class RoundingCache(DynamicCache):
    """transformers' cache over rounded keys and values."""

    kind = ""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """See DynamicCache.update."""
        return super().update(rounded(key_states, self.kind), rounded(value_states, self.kind), *args, **kwargs)


def greedy_over(kind: str, model: torch.nn.Module, prompt: list[int]) -> list[int]:
    cache, tokens = RoundingCache(), []
    cache.kind = kind
    ids = torch.tensor([prompt])
    for _ in range(NUM_TOKENS):
        with torch.no_grad():
            logits = model(ids, past_key_values=cache, use_cache=True).logits[0, -1]
        tokens.append(int(logits.argmax()))
        ids = torch.tensor([tokens[-1:]])
    return tokens


@pytest.fixture(scope="module")
def expected(checkpoints: dict[str, Checkpoint]) -> dict[tuple[str, str], list[list[int]]]:
    """By transformers over rounded rows, each prompt alone."""
    return {
        (kind, name): [greedy_over(kind, checkpoints[name].model, prompt) for prompt in branching_prompts(3)]
        for kind, name in product((FP8, INT8), NAMES)
    }


WAYS: dict[str, dict[str, Any]] = {
    "reference": {"attention_backend": "reference"},
    "uncached": {"enable_prefix_caching": False},
    "recompute": {"preemption_mode": "recompute"},
    "swap": {"preemption_mode": "swap", "swap_space": 1 << 22},
    "tiers": {"kv_host_cache_bytes": 1 << 22, "kv_load_policy": "always"},
    "transformers": {"model_impl": "transformers"},
}


@pytest.mark.parametrize(
    ("kind", "name", "way", "block_size"), covering_part(product((FP8, INT8), NAMES, WAYS, (1, 3, 16)))
)
def test_every_way_gives_the_tokens_of_rounded_rows(
    checkpoints: dict[str, Checkpoint],
    expected: dict[tuple[str, str], list[list[int]]],
    kind: str,
    name: str,
    way: str,
    block_size: int,
) -> None:
    settings = SETTINGS | {"kv_cache_dtype": kind, "block_size": block_size} | WAYS[way]
    is_short, short = way in ("recompute", "swap", "tiers"), 96
    if name == "mistral":  # its windows give blocks back: only small steps in a smaller pool run out of them
        settings["max_num_batched_tokens"], short = 16, 80
    llm = small_llm(checkpoints[name].path, **settings)
    shrink_pool(llm, num_tokens=short if is_short else 1024)
    assert answer(llm, branching_prompts(3), NUM_TOKENS) == expected[kind, name]
    stats = llm.get_stats()
    assert (way in ("recompute", "swap")) <= (stats["num_preemptions"] > 0)
    assert (way == "swap") == (stats["num_swaps"] > 0)


def test_blocks_outlive_the_engine_on_disk_but_not_in_another_dtype(
    checkpoints: dict[str, Checkpoint], expected: dict[tuple[str, str], list[list[int]]], tmp_path: Path
) -> None:
    disk = {"kv_disk_cache_dir": str(tmp_path), "kv_disk_cache_bytes": 1 << 24, "kv_load_policy": "always"}
    found = []
    for kv_cache_dtype in (FP8, "fp8_e4m3", "float32"):
        llm = small_llm(checkpoints["llama"].path, kv_cache_dtype=kv_cache_dtype, **SETTINGS, **disk)
        shrink_pool(llm, num_tokens=1024)
        answers = answer(llm, branching_prompts(3), NUM_TOKENS)
        found.append(llm.get_stats()["kv_disk_cache_hits"] > 0)
        assert (answers == expected[FP8, "llama"]) == (kv_cache_dtype != "float32")
        llm.engine.close()
    assert found == [False, True, False]


@pytest.mark.parametrize(
    ("name", "family", "block_size"),
    [("gemma3", WINDOWED, 3), ("qwen3_next", STATES, 16)],
    ids=["gemma3", "qwen3_next"],
)
def test_groups_of_layers_and_states_beside_integers(
    name: str, family: dict[str, Any], block_size: int, tmp_path: Path
) -> None:
    """Against the reference backend, one request at a time: blocks of several groups, rows of states beside pages."""
    path, settings = DenseCheckpoint(name, tmp_path, family).path, SETTINGS | {"kv_cache_dtype": INT8}
    alone = {"attention_backend": "reference", "enable_prefix_caching": False, "max_num_seqs": 1}
    plain = small_llm(path, **settings | alone)
    shrink_pool(plain, num_tokens=1024)
    wanted = answer(plain, branching_prompts(4), NUM_TOKENS)
    llm = small_llm(path, block_size=block_size, **settings)
    shrink_pool(llm, num_tokens=1024)
    assert len(llm.engine.scheduler.pool.layout.groups) == 2
    assert answer(llm, branching_prompts(4), NUM_TOKENS) == wanted
    assert answer(llm, branching_prompts(4)[-1:], NUM_TOKENS) == wanted[-1:]
    assert llm.get_stats()["prefix_cache_hits"] > 0


def log_probabilities(path: Path, **settings: Any) -> np.ndarray:
    """Of all tokens behind each prompt."""
    llm = small_llm(path, **SETTINGS | settings)
    shrink_pool(llm, num_tokens=1024)
    params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=384)
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in branching_prompts(5)], params)
    return np.array([[o.outputs[0].logprobs[0][token] for token in range(384)] for o in outputs])


def spread_from(exact: np.ndarray, found: np.ndarray) -> float:
    return float(np.sqrt(((found - exact) ** 2).mean()) / exact.std())


@pytest.mark.parametrize("name", NAMES[:3])
def test_logits_lie_between_those_of_bfloat16_and_fp8(checkpoints: dict[str, Checkpoint], name: str) -> None:
    exact, *others = (
        log_probabilities(checkpoints[name].path, kv_cache_dtype=each) for each in ("auto", "bfloat16", FP8, INT8)
    )
    bfloat16, fp8, int8 = (spread_from(exact, found) for found in others)
    assert 0 < bfloat16 < fp8 < 0.15
    assert 0 < int8 < fp8 / 2


def test_a_model_in_bfloat16_stores_the_same_integers(checkpoints: dict[str, Checkpoint]) -> None:
    """Its logits come as near to float32's as rounding its weights lets them, with integers as with bfloat16 rows."""
    exact = log_probabilities(checkpoints["llama"].path)
    plain, integers = (
        spread_from(exact, log_probabilities(checkpoints["llama"].path, dtype="bfloat16", kv_cache_dtype=kind))
        for kind in ("auto", INT8)
    )
    assert 0 < plain < 0.1
    assert 0 < integers < 2 * plain + 0.02


def test_a_block_has_a_byte_for_each_value_and_integers_a_float32_for_each_head(
    checkpoints: dict[str, Checkpoint],
) -> None:
    path = checkpoints["llama"].path  # 3 layers, 2 KV heads of 16
    memory = {
        name: small_llm(path, kv_cache_dtype=name, **SETTINGS).engine.memory for name in ("auto", "bfloat16", FP8, INT8)
    }
    assert memory["auto"].block_bytes == 2 * memory["bfloat16"].block_bytes == 3 * 2 * 16 * 2 * 16 * 4
    assert memory[FP8].block_bytes == 3 * 2 * 16 * 2 * 16
    assert memory[FP8].num_blocks // 4 == memory["auto"].num_blocks
    assert memory[INT8].block_bytes == 3 * 2 * 16 * 2 * (16 + 4)


def test_latents_are_refused_in_one_sentence() -> None:
    config = EngineConfig(model="deepseek-v2-lite", load_format="none", device_memory=80 * 2**30, kv_cache_dtype=INT8)
    with pytest.raises(EngineError, match="is for keys and values of KV heads, and layer 0 keeps latents") as refusal:
        Engine(config)
    assert refusal.value.hint == "use kv_cache_dtype='fp8'"


def test_other_eight_bit_formats_are_refused_by_name() -> None:
    with pytest.raises(EngineError, match="kv_cache_dtype 'fp8_e5m2' is not known"):
        EngineConfig(model="gpt2", kv_cache_dtype="fp8_e5m2")
