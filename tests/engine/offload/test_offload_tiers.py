"""KV tiers: what the pool evicts is found again in host memory and on disk, and the tokens stay the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_answers import answer, random_prompts, shrink_pool, small_llm
from small_models import Checkpoint, greedy

from kvplan_engine import LLM, EngineError, SamplingParams
from kvplan_engine.blocks.block_pool import BlockPool
from kvplan_engine.blocks.layout import uniform_layout
from kvplan_engine.blocks.transfers import FromHost, ToDisk, ToHost, TransferLog
from kvplan_engine.offload.disk_tier import DiskTier
from kvplan_engine.offload.host_tier import HostTier
from kvplan_engine.offload.preemption import CostModel
from kvplan_engine.offload.tiers import KvTiers


class Tiers:
    """A pool of 4 cached blocks a b c d, free, d the first to go; 2 host slots from slot 10 on."""

    def __init__(self, disk: DiskTier | None = None, *, num_slots: int = 2, policy: str = "always") -> None:
        self.log = TransferLog()
        self.pool = BlockPool(4, uniform_layout(4))
        self.host = HostTier(10, num_slots)
        cost = CostModel(block_bytes=64, block_size=4, seconds_per_token=1e-12)
        self.tiers = KvTiers(self.pool, self.host, disk, cost, self.log, policy)
        blocks = self.pool.allocate(4)
        for block, name in zip(blocks, (b"a", b"b", b"c", b"d"), strict=True):
            self.pool.cache(block, name)
        self.pool.free(blocks)


@pytest.fixture
def disk(tmp_path: Path) -> DiskTier:
    return DiskTier(tmp_path, limit_bytes=1 << 20, block_bytes=64, key=b"k" * 16)


def test_evicted_blocks_cascade_in_order(disk: DiskTier) -> None:
    t = Tiers(disk)
    t.pool.allocate(3)
    assert t.log.take() == [ToHost(3, 10), ToHost(2, 11), ToDisk((10,), True, b"d"), ToHost(1, 10)]
    assert [t.tiers.finder()(name) for name in (b"b", b"c", b"d")] == [True, True, False]
    t.host.check()


def test_what_is_being_loaded_is_not_overwritten() -> None:
    t = Tiers(num_slots=2)
    t.pool.allocate(2)  # d and c go to slots 10 and 11
    t.log.take()
    fetched = t.tiers.fetch([b"d"])
    assert fetched is not None
    (block,) = t.pool.allocate(1)  # b goes, and must not take slot 10
    t.tiers.place(fetched, [block])
    assert t.log.take() == [ToHost(1, 11), FromHost(10, 1)]
    t.host.check()


def test_a_block_that_came_back_is_not_copied_out_again() -> None:
    t = Tiers(num_slots=4)
    (block,) = t.pool.allocate(1)
    t.log.take()
    t.pool.cache(block, b"d")
    t.pool.free([block])
    t.pool.allocate(4)  # d is in slot 10 already
    assert t.log.take() == [ToHost(2, 11), ToHost(1, 12), ToHost(0, 13)]


def test_auto_neither_keeps_nor_loads_what_is_cheaper_to_compute() -> None:
    t = Tiers(policy="auto")  # a token takes a picosecond
    t.pool.allocate(4)
    assert t.log.take() == []
    assert not t.tiers.finder()(b"a")


def tiered_llm(checkpoint: Checkpoint, **settings: Any) -> LLM:
    limits = {"max_num_batched_tokens": 48, "max_num_seqs": 4, "max_model_len": 96, "block_size": 8}
    llm = small_llm(checkpoint.path, **limits | {"kv_host_cache_bytes": "1MiB", "kv_load_policy": "always"} | settings)
    shrink_pool(llm, num_tokens=96)
    return llm


def prompts() -> list[list[int]]:
    return random_prompts(*[50] * 6, seed=5)


def test_evicted_prefixes_are_found_in_host_memory(checkpoints: dict[str, Checkpoint]) -> None:
    checkpoint = checkpoints["llama"]
    want = greedy(checkpoint.model, prompts(), 12)
    llm = tiered_llm(checkpoint)
    assert answer(llm, prompts(), 12) == want
    first = llm.get_stats()
    assert answer(llm, prompts(), 12) == want
    second = llm.get_stats()
    assert second["kv_host_cache_hits"] - first["kv_host_cache_hits"] >= 5 * 48
    assert second["num_free_blocks"] == second["num_blocks"]


def test_a_host_tier_smaller_than_the_evictions_overflows_to_disk(
    checkpoints: dict[str, Checkpoint], tmp_path: Path
) -> None:
    checkpoint = checkpoints["qwen3"]
    want = greedy(checkpoint.model, prompts(), 12)
    llm = tiered_llm(
        checkpoint, kv_host_cache_bytes=5 * 6144, kv_disk_cache_dir=str(tmp_path), kv_disk_cache_bytes="8MiB"
    )
    assert llm.engine.memory.block_bytes == 6144
    assert answer(llm, prompts(), 12) == want
    assert answer(llm, prompts(), 12) == want
    stats = llm.get_stats()
    assert stats["kv_disk_cache_hits"] > 4 * 48
    assert stats["kv_host_cache_blocks"] == 5


def test_blocks_on_disk_survive_a_restart(checkpoints: dict[str, Checkpoint], tmp_path: Path) -> None:
    checkpoint = checkpoints["llama"]
    disk: dict[str, Any] = {"kv_disk_cache_dir": str(tmp_path), "kv_disk_cache_bytes": "8MiB"}
    want = greedy(checkpoint.model, prompts(), 12)
    llm = tiered_llm(checkpoint, **disk)
    assert answer(llm, prompts(), 12) == want
    llm.engine.close()
    again = tiered_llm(checkpoint, **disk, kv_host_cache_bytes=0)
    assert answer(again, prompts(), 12) == want
    assert again.get_stats()["kv_disk_cache_hits"] >= 6 * 48
    outputs = again.generate([{"prompt_token_ids": prompts()[0]}], SamplingParams(temperature=0.0, max_tokens=1))
    assert outputs[0].num_cached_tokens == 48


def test_blocks_of_other_weights_or_block_sizes_are_not_found(
    checkpoints: dict[str, Checkpoint], tmp_path: Path
) -> None:
    disk: dict[str, Any] = {"kv_disk_cache_dir": str(tmp_path), "kv_disk_cache_bytes": "8MiB"}
    config = str(checkpoints["llama"].path / "config.json")
    for settings in ({"seed": 0}, {"seed": 1}, {"seed": 1, "block_size": 16}):
        checkpoint = Checkpoint.__new__(Checkpoint)
        checkpoint.path = Path(config)
        llm = tiered_llm(checkpoint, load_format="dummy", **disk, **settings)
        llm.generate([{"prompt_token_ids": prompts()[0]}], SamplingParams(temperature=0.0, max_tokens=1))
        assert llm.get_stats()["kv_disk_cache_hits"] == 0
        llm.engine.close()
    assert len(list(tmp_path.iterdir())) == 3


def test_a_prefix_on_disk_is_kept_when_the_engine_is_reconfigured(
    checkpoints: dict[str, Checkpoint], tmp_path: Path
) -> None:
    llm = tiered_llm(checkpoints["gpt2"], kv_disk_cache_dir=str(tmp_path), kv_disk_cache_bytes="8MiB")
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    (before,) = llm.generate([{"prompt_token_ids": prompts()[0]}], params)
    llm.engine.reconfigure(max_num_seqs=2)
    (after,) = llm.generate([{"prompt_token_ids": prompts()[0]}], params)
    assert after.num_cached_tokens == 48
    assert after.outputs[0].token_ids == before.outputs[0].token_ids


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"kv_disk_cache_dir": "x"}, "needs a directory and a size"),
        ({"kv_disk_cache_bytes": 5}, "needs a directory and a size"),
        ({"kv_host_cache_bytes": 5, "enable_prefix_caching": False}, "the prefix cache is off"),
        ({"kv_host_cache_bytes": 5, "kv_reservation": "contiguous"}, "the prefix cache is off"),
        ({"scheduling": "sometimes"}, "scheduling 'sometimes' is not known"),
        ({"kv_host_cache_bytes": -1}, "kv_host_cache_bytes must be 0 or more"),
        ({"kv_load_policy": "never"}, "kv_load_policy 'never' is not known"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(EngineError, match=sentence):
        LLM({"architectures": ["GPT2LMHeadModel"]}, **settings)


def test_other_salts_find_nothing_in_any_tier(checkpoints: dict[str, Checkpoint], tmp_path: Path) -> None:
    """In the pool, in host memory, on disk, and there again after a restart."""
    checkpoint = checkpoints["llama"]
    settings = {"kv_host_cache_bytes": 5 * 6144, "kv_disk_cache_dir": str(tmp_path), "kv_disk_cache_bytes": "8MiB"}

    def cached(llm: LLM, salt: str | None) -> list[int]:
        params = SamplingParams(temperature=0.0, max_tokens=1)
        given = [{"prompt_token_ids": prompt, "cache_salt": salt} for prompt in prompts()]
        return [llm.generate([each], params)[0].num_cached_tokens for each in given]

    llm = tiered_llm(checkpoint, **settings)
    assert cached(llm, "a") == [0] * 6
    assert cached(llm, "b") == [0] * 6
    assert cached(llm, None) == [0] * 6
    assert cached(llm, "a") == [48] * 6
    stats = llm.get_stats()
    assert stats["kv_host_cache_hits"] + stats["kv_disk_cache_hits"] > 4 * 48
    llm.close()
    with tiered_llm(checkpoint, **settings) as again:
        assert cached(again, "c") == [0] * 6
        assert cached(again, "a") == [48] * 6
        assert cached(again, None) == [48] * 6


@pytest.mark.parametrize("salt", ["", 1, b"a", ["a"]])
def test_a_salt_that_is_no_text_is_refused(checkpoints: dict[str, Checkpoint], salt: Any) -> None:
    with tiered_llm(checkpoints["llama"]) as llm, pytest.raises(EngineError, match="cache_salt must be a text"):
        llm.generate([{"prompt_token_ids": [1, 2], "cache_salt": salt}])
