"""The cells of the equality matrix: how the engine is set up in each, and that it did what the cell is named.

{prefix cache on, off} x {prompts in chunks, whole} x {recompute, swap, tiers} x {block size 1, 16, 32}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from engine_answers import shrink_pool

from kvplan_engine import LLM, BeamSearchParams, BeamSearchSequence, Engine, SamplingParams

CHUNK_TOKENS = 16
WHOLE_TOKENS = 256
_KEEPINGS = ("recompute", "swap", "tiers")


@dataclass(frozen=True, slots=True)
class Cell:
    """keeping: what becomes of KV that the pool has no room for."""

    prefix_caching: bool
    chunked: bool
    keeping: str
    block_size: int

    def __str__(self) -> str:
        cache, chunks = "cached" if self.prefix_caching else "uncached", "chunked" if self.chunked else "whole"
        return f"{cache}-{chunks}-{self.keeping}-{self.block_size}"

    @property
    def values(self) -> tuple[bool, bool, str, int]:
        """One of each axis."""
        return self.prefix_caching, self.chunked, self.keeping, self.block_size

    @property
    def is_possible(self) -> bool:
        """Tiers hold what the prefix cache evicts: without it there is nothing to hold."""
        return self.prefix_caching or self.keeping != "tiers"

    def settings(self, kv_bytes_per_token: int, directory: Path) -> dict[str, Any]:
        """Arguments of ``Engine.reconfigure``."""
        settings: dict[str, Any] = {
            "enable_prefix_caching": self.prefix_caching,
            "max_num_batched_tokens": CHUNK_TOKENS if self.chunked else WHOLE_TOKENS,
            "block_size": self.block_size,
            "preemption_mode": "recompute",
            "swap_space": 0,
            "kv_host_cache_bytes": 0,
            "kv_disk_cache_dir": None,
            "kv_disk_cache_bytes": 0,
            "kv_load_policy": "always",
        }
        if self.keeping == "swap":
            settings |= {"preemption_mode": "swap", "swap_space": 512 * kv_bytes_per_token}
        if self.keeping == "tiers":  # host memory for a block or a part of the pool, the rest goes on to disk
            settings |= {"kv_host_cache_bytes": 32 * kv_bytes_per_token}
            settings |= {"kv_disk_cache_dir": str(directory), "kv_disk_cache_bytes": 1 << 30}
        return settings


ALL_CELLS = [Cell(*values) for values in product((False, True), (False, True), _KEEPINGS, (1, 16, 32))]
CELLS = [cell for cell in ALL_CELLS if cell.is_possible]


def set_up(llm: LLM, cell: Cell, directory: Path, *, pool_tokens: int) -> None:
    """The engine of ``llm`` as ``cell`` wants it, with an empty pool of ``pool_tokens`` tokens."""
    memory = llm.engine.memory
    settings = cell.settings(memory.block_bytes // memory.block_size, directory)
    llm.engine.reconfigure(gpu_memory_utilization=0.9, **settings)
    shrink_pool(llm, num_tokens=pool_tokens)


class Watch:
    """What an engine did from here on: differences of its counters, and what its steps looked like."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._before = engine.get_stats()
        self.num_chunk_steps = 0  # a prompt was left in the middle
        self.num_decodes_beside_chunks = 0

    def run(self) -> None:
        """Step until everything is answered."""
        engine = self._engine
        while engine.has_unfinished_requests():
            outputs = engine.step()
            if any(s.num_tokens - s.num_computed_tokens > 1 for s in engine.scheduler.running):
                self.num_chunk_steps += 1
                self.num_decodes_beside_chunks += any(output.new_token_ids for output in outputs)

    def grown(self, *names: str) -> int:
        """By how much these counters have grown together."""
        now = self._engine.get_stats()
        return sum(now[name] - self._before[name] for name in names)

    def check(self, cell: Cell) -> None:
        """The cell's name is what happened."""
        assert self.grown("num_preemptions") > 0, f"{cell}: nothing was preempted"
        assert (self.grown("num_swaps") > 0) == (cell.keeping == "swap"), f"{cell}: swaps"
        assert (self.grown("prefix_cache_hits") > 0) == cell.prefix_caching, f"{cell}: prefix cache"
        loaded = self.grown("kv_host_cache_hits", "kv_disk_cache_hits")
        assert (loaded > 0) == (cell.keeping == "tiers"), f"{cell}: tiers"
        assert (self.num_chunk_steps > 0) == cell.chunked, f"{cell}: chunks"
        stats = self._engine.get_stats()
        assert stats["num_free_blocks"] == stats["num_blocks"], f"{cell}: blocks are lost"


def add_greedy(engine: Engine, prompts: list[list[int]], num_tokens: int) -> list[Any]:
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    return [engine.add_request(f"greedy {i}", prompt, params) for i, prompt in enumerate(prompts)]


def add_beams(engine: Engine, prompts: list[list[int]], params: BeamSearchParams) -> list[Any]:
    return [engine.add_beam_search(f"beams {i}", prompt, params) for i, prompt in enumerate(prompts)]


def answers_in_turn(
    llm: LLM, watch: Watch, cell: Cell, prompts: Sequence[list[int]], num_tokens: int, again: Sequence[int] = (0, 1, 1)
) -> list[tuple[int, list[int]]]:
    """Prompts by number and their greedy answers: all at once, then those of ``again`` where they may be cached."""
    together, found = range(len(prompts)), []
    for order in [together, *([number] for number in again)] if cell.prefix_caching else [together]:
        requests = add_greedy(llm.engine, [prompts[number] for number in order], num_tokens)
        watch.run()
        found += zip(order, greedy_tokens(requests), strict=True)
    watch.check(cell)
    return found


def check_in_turn(
    llm: LLM, watch: Watch, cell: Cell, prompts: Sequence[list[int]], expected: Sequence[list[int]]
) -> None:
    for number, tokens in answers_in_turn(llm, watch, cell, prompts, len(expected[0])):
        assert tokens == expected[number], f"{cell}: prompt {number}"


def check_drafted(llm: LLM) -> None:
    """Some drafts were right and some were wrong."""
    stats = llm.get_stats()
    assert 0 < stats["spec_decode_num_accepted_tokens"] < stats["spec_decode_num_draft_tokens"]


def greedy_tokens(requests: list[Any]) -> list[list[int]]:
    return [request.sequences[0].output_token_ids for request in requests]


def beam_answers(requests: list[Any]) -> list[list[BeamSearchSequence]]:
    return [request.beams.finished for request in requests]
