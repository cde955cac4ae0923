"""What engines over several ranks are asked: a pool too small for the prompts, so that sequences are preempted,
swapped, cached and computed in chunks, and what a planner that knows the config alone must have said of their memory.

Used by the tests and by tools/check_ranks.py, which goes through more ranks and stages than the tests have time for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine_answers import random_prompts
from matrix_cells import Cell, Watch, answers_in_turn, set_up

from kvplan.catalog.models import resolve_model
from kvplan.estimate.kvplan.memory import EnginePrediction, predict
from kvplan.estimate.kvplan.settings import EngineDevice
from kvplan.settings import ServingSettings
from kvplan_engine import LLM, Engine
from kvplan_engine.memory.breakdown import MemoryBreakdown
from kvplan_engine.memory.plan import Needs

CELLS = [
    Cell(prefix_caching=True, chunked=True, keeping="swap", block_size=16),
    Cell(prefix_caching=False, chunked=False, keeping="recompute", block_size=1),
]
_SETTINGS: Mapping[str, Any] = {"dtype": "float32", "device": "cpu", "max_num_batched_tokens": 256, "max_model_len": 64}


@dataclass(frozen=True, slots=True)
class Asked:
    """Greedy ``num_tokens`` after each of ``prompts``, over a pool of ``pool_tokens`` tokens.

    again: prompts by number that come once more after all, which the prefix cache then has.
    """

    prompts: Sequence[list[int]]
    pool_tokens: int
    num_tokens: int
    again: Sequence[int]

    def answers(self, llm: LLM, cell: Cell, folder: Path) -> dict[int, list[list[int]]]:
        """Tokens by prompt, for each time it was asked. AssertionError where ``cell`` is not what happened."""
        set_up(llm, cell, folder, pool_tokens=self.pool_tokens)
        answers: dict[int, list[list[int]]] = {number: [] for number in range(len(self.prompts))}
        watch = Watch(llm.engine)
        for number, tokens in answers_in_turn(llm, watch, cell, self.prompts, self.num_tokens, self.again):
            answers[number].append(tokens)
        return answers


RANDOM = Asked(random_prompts(28, 41, 25, seed=11), pool_tokens=80, num_tokens=8, again=(0, 1, 1))
"""For models with random weights and 384 tokens."""

SMOLLM2_SETTINGS: Mapping[str, Any] = {"device_memory": "1GiB", "quantization": "none", "max_num_seqs": 6}
TEXTS = (
    "The history of the printing press began in the middle of the fifteenth century, when Johannes Gutenberg, a "
    "goldsmith from Mainz, cast letters of metal that could be used again and again, in another order each time",
    "In the year 1492, three ships left the harbour of Palos in the south of Spain, and after five weeks on the open "
    "sea, out of sight of any land, a sailor in the bow of the",
)


def real_text(llm: LLM) -> Asked:
    """For SmolLM2: the beginnings of two texts."""
    prompts = [llm.tokenizer.encode(text)[:length] for text, length in zip(TEXTS, (36, 30), strict=True)]
    return Asked(prompts, pool_tokens=68, num_tokens=6, again=(0,))


def load(path: Path, num_ranks: int = 1, num_stages: int = 1, **settings: Any) -> LLM:
    """In float32, on the CPU."""
    chosen = {**_SETTINGS, "device_memory": "256MiB", "max_num_seqs": 8, **settings}
    return LLM(str(path), **chosen, tensor_parallel_size=num_ranks, pipeline_parallel_size=num_stages)


def check_memory(engine: Engine) -> int:
    """The blocks of each rank, which a planner and an engine that only counts say too. AssertionError otherwise."""
    engine.reconfigure(gpu_memory_utilization=0.8, max_num_batched_tokens=128, block_size=16, swap_space=0)
    memory, config = engine.memory, engine.config
    asked = ServingSettings(
        gpu_memory_utilization=0.8,
        max_num_batched_tokens=128,
        max_num_seqs=config.max_num_seqs,
        max_model_len=64,
        block_size=16,
        dtype="float32",
        quantization=config.quantization or "auto",
        tensor_parallel_size=config.tensor_parallel_size,
        pipeline_parallel_size=config.pipeline_parallel_size,
        enable_expert_parallel=config.enable_expert_parallel,
    )
    predicted = predict(resolve_model(config.model), asked, EngineDevice(memory.device_total_bytes))
    found_by: list[EnginePrediction | MemoryBreakdown] = [predicted]
    found_by.append(Engine(replace(config, load_format="none")).memory)
    for found in found_by:
        assert found.num_blocks == memory.num_blocks
        assert found.block_bytes == memory.block_bytes
        assert found.weight_bytes == memory.weight_bytes
        assert found.activation_bytes == memory.activation_bytes
    assert memory.overhead_bytes == predicted.overhead_bytes, "a rank took more than is kept back"
    needs = [_own_needs(memory), *engine._open.carver.needs]
    assert len(needs) == config.num_ranks
    assert memory.num_blocks == min(each.num_blocks(memory.budget_bytes) for each in needs)
    if config.pipeline_parallel_size == 1:
        assert len(set(needs)) == 1, "ranks that share every layer have equal parts"
    return memory.num_blocks


def _own_needs(memory: MemoryBreakdown) -> Needs:
    sizes = (memory.weight_bytes, memory.activation_bytes, memory.overhead_bytes, memory.block_bytes)
    return Needs(*sizes, memory.device_total_bytes)
