"""The whole engine with a KV cache in integers: its tokens are those of a cache that quantises and widens every row."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dense_models import DenseCheckpoint
from engine_answers import answer, branching_prompts, shrink_pool
from small_models import Checkpoint
from state_models import STATES
from transformers import DynamicCache
from window_models import WINDOWED

from kvplan_engine import LLM, Engine, EngineConfig, EngineError, SamplingParams

INT8 = "int8_per_token_head"
SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "device": "cpu",
    "device_memory": "512MiB",
    "max_model_len": 96,
    "max_num_batched_tokens": 48,
    "max_num_seqs": 4,
    "kv_cache_dtype": INT8,
}
NAMES = ("gpt2", "llama", "mistral")
NUM_TOKENS = 12


def widened(rows: torch.Tensor) -> torch.Tensor:
    """``rows`` [..., d] as integers of a 127th of their largest magnitude give them back."""
    scale = rows.abs().amax(-1, keepdim=True) / 127
    return (rows / scale).round() * scale


class IntegerCache(DynamicCache):
    """transformers' cache over quantised keys and values."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """See DynamicCache.update."""
        return super().update(widened(key_states), widened(value_states), *args, **kwargs)


def greedy_over(model: torch.nn.Module, prompt: list[int], num_tokens: int) -> list[int]:
    cache, tokens = IntegerCache(), []
    ids = torch.tensor([prompt])
    for _ in range(num_tokens):
        with torch.no_grad():
            logits = model(ids, past_key_values=cache, use_cache=True).logits[0, -1]
        tokens.append(int(logits.argmax()))
        ids = torch.tensor([tokens[-1:]])
    return tokens


@pytest.fixture(scope="module")
def expected(checkpoints: dict[str, Checkpoint]) -> dict[str, list[list[int]]]:
    """By transformers over quantised rows, each prompt alone."""
    return {
        name: [greedy_over(checkpoints[name].model, prompt, NUM_TOKENS) for prompt in branching_prompts(3)]
        for name in NAMES
    }


@pytest.mark.parametrize(
    "way",
    [
        {"block_size": 16, "attention_backend": "reference"},
        {"block_size": 1, "enable_prefix_caching": False},
        {"block_size": 3, "preemption_mode": "recompute"},
        {"block_size": 16, "preemption_mode": "recompute"},
        {"block_size": 3, "preemption_mode": "swap", "swap_space": 1 << 22},
        {"block_size": 3, "kv_host_cache_bytes": 1 << 22, "kv_load_policy": "always"},
        {"block_size": 16, "model_impl": "transformers"},
    ],
    ids=lambda way: "-".join(str(value) for value in way.values()),
)
@pytest.mark.parametrize("name", NAMES)
def test_every_way_gives_the_tokens_of_quantised_rows(
    checkpoints: dict[str, Checkpoint],
    expected: dict[str, list[list[int]]],
    name: str,
    way: dict[str, Any],
) -> None:
    settings = SETTINGS | way
    is_short, short = "preemption_mode" in way or "kv_host_cache_bytes" in way, 96
    if name == "mistral":  # its windows give blocks back: only small steps in a smaller pool run out of them
        settings["max_num_batched_tokens"], short = 16, 80
    llm = LLM(str(checkpoints[name].path), **settings)
    shrink_pool(llm, num_tokens=short if is_short else 1024)
    assert answer(llm, branching_prompts(3), NUM_TOKENS) == expected[name]
    stats = llm.get_stats()
    assert ("preemption_mode" in way) <= (stats["num_preemptions"] > 0)
    assert (way.get("preemption_mode") == "swap") == (stats["num_swaps"] > 0)


@pytest.mark.parametrize(
    ("name", "family", "block_size"),
    [("gemma3", WINDOWED, 3), ("qwen3_next", STATES, 16)],
    ids=["gemma3", "qwen3_next"],
)
def test_groups_of_layers_and_states_beside_integers(
    name: str, family: dict[str, Any], block_size: int, tmp_path: Path
) -> None:
    """Against the reference backend, one request at a time: blocks of several groups, rows of states beside pages."""
    path = str(DenseCheckpoint(name, tmp_path, family).path)
    plain = LLM(path, attention_backend="reference", enable_prefix_caching=False, **SETTINGS | {"max_num_seqs": 1})
    shrink_pool(plain, num_tokens=1024)
    wanted = answer(plain, branching_prompts(4), NUM_TOKENS)
    llm = LLM(path, block_size=block_size, **SETTINGS)
    shrink_pool(llm, num_tokens=1024)
    assert len(llm.engine.scheduler.pool.layout.groups) == 2
    assert answer(llm, branching_prompts(4), NUM_TOKENS) == wanted
    assert answer(llm, branching_prompts(4)[-1:], NUM_TOKENS) == wanted[-1:]
    assert llm.get_stats()["prefix_cache_hits"] > 0


@pytest.mark.parametrize("name", NAMES)
def test_logits_lie_between_those_of_bfloat16_and_fp8(checkpoints: dict[str, Checkpoint], name: str) -> None:
    found = {}
    for kv_cache_dtype in ("auto", "bfloat16", INT8, "fp8"):
        llm = LLM(str(checkpoints[name].path), **SETTINGS | {"kv_cache_dtype": kv_cache_dtype})
        shrink_pool(llm, num_tokens=1024)
        params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=384)
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in branching_prompts(5)], params)
        found[kv_cache_dtype] = np.array([[o.outputs[0].logprobs[0][token] for token in range(384)] for o in outputs])
    spread = found["auto"].std()
    error = {key: float(np.sqrt(((values - found["auto"]) ** 2).mean()) / spread) for key, values in found.items()}
    print(name, spread, error)
    assert 0 < error["bfloat16"] < error["fp8"] < 0.15
    assert 0 < error[INT8] < error["fp8"] / 2


def test_a_model_in_bfloat16_stores_the_same_integers(checkpoints: dict[str, Checkpoint]) -> None:
    """Its logits come as near to float32's as rounding its weights lets them, with integers as with bfloat16 rows."""
    found = {}
    for dtype, kv_cache_dtype in (("float32", "auto"), ("bfloat16", "auto"), ("bfloat16", INT8)):
        llm = LLM(str(checkpoints["llama"].path), **SETTINGS | {"dtype": dtype, "kv_cache_dtype": kv_cache_dtype})
        params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=384)
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in branching_prompts(5)], params)
        found[dtype, kv_cache_dtype] = np.array(
            [[o.outputs[0].logprobs[0][token] for token in range(384)] for o in outputs]
        )
    exact = found["float32", "auto"]
    rounded, integers = (
        np.sqrt(((found["bfloat16", kind] - exact) ** 2).mean()) / exact.std() for kind in ("auto", INT8)
    )
    print(rounded, integers)
    assert 0 < rounded < 0.1
    assert 0 < integers < 2 * rounded + 0.02


def test_a_block_has_a_byte_for_each_value_and_a_float32_for_each_head(checkpoints: dict[str, Checkpoint]) -> None:
    path = str(checkpoints["llama"].path)  # 3 layers, 2 KV heads of 16
    memory = {name: LLM(path, **SETTINGS | {"kv_cache_dtype": name}).engine.memory for name in ("auto", INT8)}
    assert memory["auto"].block_bytes == 3 * 2 * 16 * 2 * 16 * 4
    assert memory[INT8].block_bytes == 3 * 2 * 16 * 2 * (16 + 4)


def test_latents_are_refused_in_one_sentence() -> None:
    config = EngineConfig(model="deepseek-v2-lite", load_format="none", device_memory=80 * 2**30, kv_cache_dtype=INT8)
    with pytest.raises(EngineError, match="is for keys and values of KV heads, and layer 0 keeps latents") as refusal:
        Engine(config)
    assert refusal.value.hint == "use kv_cache_dtype='fp8'"
