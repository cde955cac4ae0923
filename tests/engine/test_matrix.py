"""Greedy tokens are transformers' in every combination of what paging makes possible, over a pool that is too small.

{prefix cache on, off} x {prompts in chunks, whole} x {recompute, swap, tiers} x {block size 1, 16, 32} x
{CPU kernels, reference} for every native architecture; tiers hold what the prefix cache evicts, so they need it on.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from conftest import ARCHITECTURES, Checkpoint, greedy
from test_equality import answer, shrink_pool

from kvplan_engine import LLM

NUM_TOKENS = 8
PROMPT_LENGTHS = (28, 41, 25)  # the first two fill the pool, whatever the block size, and outgrow it
POOL_TOKENS = 80

COMBINATIONS = [
    (prefix_caching, chunked, keeping, block_size)
    for prefix_caching in (False, True)
    for chunked in (False, True)
    for keeping in ("recompute", "swap", "tiers")
    for block_size in (1, 16, 32)
    if prefix_caching or keeping != "tiers"
]


def describe(combination: tuple[bool, bool, str, int]) -> str:
    prefix_caching, chunked, keeping, block_size = combination
    parts = ("cached" if prefix_caching else "uncached", "chunked" if chunked else "whole", keeping, str(block_size))
    return "-".join(parts)


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(11)
    return [rng.integers(1, 384, length).tolist() for length in PROMPT_LENGTHS]


@pytest.fixture(scope="module")
def expected(checkpoints: dict[str, Checkpoint]) -> dict[str, list[list[int]]]:
    return {name: greedy(checkpoint.model, prompts(), NUM_TOKENS) for name, checkpoint in checkpoints.items()}


@pytest.fixture(scope="module")
def loaded() -> Iterator[dict[tuple[str, str], LLM]]:
    """Each model is loaded once per backend; the combinations are reconfigurations of it."""
    engines: dict[tuple[str, str], LLM] = {}
    yield engines
    engines.clear()


def settings_for(
    combination: tuple[bool, bool, str, int], block_bytes_per_token: int, directory: Path
) -> dict[str, Any]:
    prefix_caching, chunked, keeping, block_size = combination
    settings: dict[str, Any] = {
        "enable_prefix_caching": prefix_caching,
        "max_num_batched_tokens": 16 if chunked else 256,
        "block_size": block_size,
        "preemption_mode": "recompute",
        "swap_space": 0,
        "kv_host_cache_bytes": 0,
        "kv_disk_cache_dir": None,
        "kv_disk_cache_bytes": 0,
        "kv_load_policy": "always",
    }
    if keeping == "swap":
        settings |= {"preemption_mode": "swap", "swap_space": 256 * block_bytes_per_token}
    if keeping == "tiers":  # host memory for a third of the pool, the rest goes on to disk
        settings |= {"kv_host_cache_bytes": 32 * block_bytes_per_token}
        settings |= {"kv_disk_cache_dir": str(directory), "kv_disk_cache_bytes": 1 << 24}
    return settings


def check_stats(llm: LLM, combination: tuple[bool, bool, str, int]) -> None:
    prefix_caching, _, keeping, _ = combination
    stats = llm.get_stats()
    assert stats["num_preemptions"] > 0
    assert stats["num_free_blocks"] == stats["num_blocks"]
    assert (stats["prefix_cache_hits"] > 0) == prefix_caching
    assert (stats["num_swaps"] > 0) == (keeping == "swap")
    assert (stats["kv_host_cache_hits"] + stats["kv_disk_cache_hits"] > 0) == (keeping == "tiers")
    if keeping == "swap":
        assert stats["recomputed_tokens"] == 0
    elif not prefix_caching:
        assert stats["recomputed_tokens"] > 0


@pytest.mark.parametrize("combination", COMBINATIONS, ids=describe)
@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_tokens_are_those_of_transformers(
    checkpoints: dict[str, Checkpoint],
    expected: dict[str, list[list[int]]],
    loaded: dict[tuple[str, str], LLM],
    tmp_path: Path,
    name: str,
    backend: str,
    combination: tuple[bool, bool, str, int],
) -> None:
    if (name, backend) not in loaded:
        loaded[name, backend] = LLM(
            str(checkpoints[name].path),
            dtype="float32",
            device="cpu",
            device_memory="512MiB",
            attention_backend=backend,
            max_num_batched_tokens=256,
            max_num_seqs=4,
            max_model_len=64,
        )
    llm = loaded[name, backend]
    memory = llm.engine.memory
    settings = settings_for(combination, memory.block_bytes // memory.block_size, tmp_path)
    llm.engine.reconfigure(gpu_memory_utilization=0.9, **settings)
    shrink_pool(llm, num_tokens=POOL_TOKENS)
    assert answer(llm, prompts(), NUM_TOKENS) == expected[name]
    if combination[0]:  # what is left in the pool and in the tiers is found
        for again in (0, 1, 1):
            assert answer(llm, [prompts()[again]], NUM_TOKENS) == [expected[name][again]]
    check_stats(llm, combination)


def test_smollm2_on_real_text(smollm2_path: Path, tmp_path: Path) -> None:
    """Trained weights: each way of keeping KV once, with and without chunks, prefixes and small blocks."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        smollm2_path.parent, gguf_file=smollm2_path.name, dtype=torch.float32
    ).eval()
    llm = LLM(
        str(smollm2_path), dtype="float32", device="cpu", max_model_len=64, max_num_batched_tokens=128, max_num_seqs=4
    )
    texts = [
        "The history of the printing press began in the middle of the fifteenth century, when Johannes Gutenberg, a "
        "goldsmith from Mainz,",
        "Water boils at a lower temperature on a mountain than at the sea because the pressure of the air",
        "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
        "In the year 1492, three ships left the harbour of Palos in the south of Spain, and",
    ]
    token_ids = [llm.tokenizer.encode(text) for text in texts]
    want = greedy(model, token_ids, 14)
    for number, combination in enumerate(
        [(False, False, "swap", 16), (True, True, "swap", 1), (True, True, "tiers", 8)]
    ):
        memory = llm.engine.memory
        settings = settings_for(combination, memory.block_bytes // memory.block_size, tmp_path / str(number))
        llm.engine.reconfigure(gpu_memory_utilization=0.9, **settings)
        shrink_pool(llm, num_tokens=64)
        assert answer(llm, token_ids, 14) == want
        if combination[0]:
            assert answer(llm, token_ids[:1], 14) == want[:1]
        stats = llm.get_stats()
        assert stats["num_preemptions"] > 0 or combination[2] == "tiers"
        assert (stats["num_swaps"] > 0) == (combination[2] == "swap")
        assert (stats["kv_host_cache_hits"] + stats["kv_disk_cache_hits"] > 0) == (combination[2] == "tiers")
