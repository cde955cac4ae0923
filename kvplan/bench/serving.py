"""The engine in the worker process: created once, reconfigured for each side of a comparison, and driven."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvplan_engine import Engine, EngineConfig, SamplingParams


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """A prompt and the number of tokens to generate for it."""

    prompt_token_ids: list[int]
    num_output_tokens: int
    num_samples: int = 1

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(
            n=self.num_samples,
            temperature=0.0 if self.num_samples == 1 else 1.0,
            max_tokens=self.num_output_tokens,
            ignore_eos=True,
        )


KERNELS_USED: dict[str, str] = {}
"""What computed the engines of this process, each with its model's dtype: a worker runs one order, and ends."""


@dataclass(slots=True)
class ServedWorkload:
    """A served workload. first_token_seconds: per request, since the start."""

    seconds: float = 0.0
    num_output_tokens: int = 0
    first_token_seconds: list[float] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> float:
        return self.num_output_tokens / self.seconds


def make_engine(settings: dict[str, Any], **changes: Any) -> Engine:
    """An engine with the user's settings and an experiment's changes."""
    engine = Engine(EngineConfig(**{**settings, **changes}))
    if engine.model.kernels_name is not None:
        KERNELS_USED[engine.model.kernels_name] = engine.model.dtype
    engine.touch_pool()
    return engine


def set_up(engine: Engine, *, num_blocks: int | None = None, **changes: Any) -> None:
    """New settings and an empty pool; with ``num_blocks``, a pool of exactly that many blocks."""
    engine.reconfigure(gpu_memory_utilization=0.9, **changes)
    if num_blocks is not None:
        memory = engine.memory
        held = memory.weight_bytes + memory.activation_bytes + memory.overhead_bytes + memory.graph_bytes
        budget = held + num_blocks * memory.block_bytes + memory.block_bytes // 2
        engine.reconfigure(gpu_memory_utilization=budget / memory.device_total_bytes)
        assert engine.memory.num_blocks == num_blocks, "the pool has a different size than requested"
    engine.touch_pool()


def serve(engine: Engine, requests: Sequence[BenchRequest]) -> ServedWorkload:
    """Queue everything at once and step until it is served."""
    served = ServedWorkload()
    started = time.perf_counter()
    waiting_for_first = set()
    for index, request in enumerate(requests):
        engine.add_request(str(index), request.prompt_token_ids, request.params)
        waiting_for_first.add(str(index))
    while engine.has_unfinished_requests():
        for output in engine.step():
            served.num_output_tokens += len(output.new_token_ids)
            if output.request_id in waiting_for_first:
                waiting_for_first.discard(output.request_id)
                served.first_token_seconds.append(time.perf_counter() - started)
    served.seconds = time.perf_counter() - started
    return served


def serve_under_load(engine: Engine, requests: Sequence[BenchRequest]) -> ServedWorkload:
    """A server whose queue is never empty: measured from a full batch until no request waits any more.

    Whatever the scheduling, as many prompts are computed in that time as answers are completed: the first prompts come
    before it, and the last answers, whose batch only shrinks, are aborted.
    """
    served = ServedWorkload()
    for index, request in enumerate(requests):
        engine.add_request(str(index), request.prompt_token_ids, request.params)
    # Step until the statistics of one more step are there: with steps ahead, as on a GPU, that may take two calls.
    before = engine.stats
    while engine.stats is before:
        engine.step()
    assert engine.stats.num_running == engine.config.max_num_seqs, "the first prompts took more than one step"
    started = time.perf_counter()
    while engine.stats.num_waiting:
        served.num_output_tokens += sum(len(output.new_token_ids) for output in engine.step())
    served.seconds = time.perf_counter() - started
    for index in range(len(requests)):
        engine.abort(str(index))
    return served


def warm_up(engine: Engine) -> None:
    """A short request, so that one-time work is done."""
    serve(engine, [BenchRequest([0] * 16, 4)])


def random_prompt(rng: np.random.Generator, engine: Engine, num_tokens: int) -> list[int]:
    tokens: list[int] = rng.integers(0, engine.model.config.vocab_size, num_tokens).tolist()
    return tokens


def exponential_lengths(rng: np.random.Generator, mean: int, count: int, largest: int) -> list[int]:
    """Whole numbers from 1 to ``largest``."""
    return [int(min(max(1, round(value)), largest)) for value in rng.exponential(mean, count)]
