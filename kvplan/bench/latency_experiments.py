"""Latency: cached KV tiers and chunked prefill, each against its baseline. Runs in the worker process."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kvplan.bench.figures import Experiment, compare
from kvplan.bench.options import BenchOrder, BenchScale
from kvplan.bench.serving import BenchRequest, random_prompt, serve, set_up, warm_up
from kvplan.bench.speed_experiments import ENOUGH_SECONDS, alternate
from kvplan_engine import Engine

_BLOCK_SIZE = 16
_NO_TIERS: dict[str, Any] = {"kv_host_cache_bytes": 0, "kv_disk_cache_dir": None, "kv_disk_cache_bytes": 0}


# ---- KV tiers


@dataclass(slots=True)
class _FirstTokens:
    """Milliseconds to the first token, one value per round, by where the KV of the prefix was."""

    nowhere: list[float] = field(default_factory=list)
    pool: list[float] = field(default_factory=list)
    host: list[float] = field(default_factory=list)
    disk: list[float] = field(default_factory=list)
    num_host_tokens: int = 0
    num_disk_tokens: int = 0


def tiers(order: BenchOrder, scale: BenchScale, open_engine: Callable[[], Engine]) -> Experiment:
    """``open_engine`` is called once, and again for each restart."""
    rng = np.random.default_rng(order.seed)
    times = _FirstTokens()
    with tempfile.TemporaryDirectory(prefix="kvplan-bench-") as folder:
        engine = open_engine()
        started = time.perf_counter()
        for number in range(order.num_rounds):
            if time.perf_counter() - started > ENOUGH_SECONDS:
                break
            engine = _measure_tiers(engine, scale, rng, Path(folder) / str(number), times, open_engine)
        engine.close()
    computed = times.nowhere
    return Experiment(
        name="tiers",
        title=f"KV tiers: time to first token after a repeated prefix of {scale.prefix_tokens} tokens",
        baseline="computed",
        measured="kept",
        workload=(
            f"one request at a time: a prefix of {scale.prefix_tokens} tokens and {scale.question_tokens} others; "
            "the pool holds one such request, so the next one evicts the prefix to host memory; closing the engine "
            "writes it to disk"
        ),
        figures=(
            compare("still in the pool (prefix cache)", "ms", computed, times.pool, higher_is_better=False),
            compare("in host memory", "ms", computed, times.host, higher_is_better=False),
            compare("on disk, after a restart", "ms", computed, times.disk, higher_is_better=False),
        ),
        notes=(
            f"of the prefix, {times.num_host_tokens} tokens were loaded from host memory and {times.num_disk_tokens} "
            "from disk, from files dropped from the page cache; the engine does not load what it estimates to be "
            "cheaper to recompute",
        ),
    )


def _measure_tiers(
    engine: Engine,
    scale: BenchScale,
    rng: np.random.Generator,
    folder: Path,
    times: _FirstTokens,
    open_engine: Callable[[], Engine],
) -> Engine:
    """One round; returns the engine to go on with."""
    num_tokens = scale.prefix_tokens + scale.question_tokens
    num_blocks = -(-(num_tokens + 1) // _BLOCK_SIZE) + 1
    kept_bytes = 2 * num_blocks * engine.memory.block_bytes
    pool = {"num_blocks": num_blocks, "max_model_len": num_blocks * _BLOCK_SIZE}
    settings: dict[str, Any] = {
        **pool,
        "enable_prefix_caching": True,
        "kv_host_cache_bytes": kept_bytes,
        "kv_disk_cache_dir": str(folder),
        "kv_disk_cache_bytes": 2 * kept_bytes,
    }
    prefix = random_prompt(rng, engine, scale.prefix_tokens)

    def ask(beginning: list[int]) -> float:
        prompt = beginning + random_prompt(rng, engine, num_tokens - len(beginning))
        return 1000 * serve(engine, [BenchRequest(prompt, 1)]).first_token_seconds[0]

    set_up(engine, **pool, enable_prefix_caching=False, **_NO_TIERS)
    times.nowhere.append(ask(prefix))
    set_up(engine, **settings)
    ask(prefix)
    times.pool.append(ask(prefix))
    ask([])
    times.host.append(ask(prefix))
    times.num_host_tokens = engine.get_stats()["kv_host_cache_hits"]
    engine.close()
    drop_from_page_cache(folder)
    engine = open_engine()
    set_up(engine, **settings)
    warm_up(engine)
    times.disk.append(ask(prefix))
    times.num_disk_tokens = engine.get_stats()["kv_disk_cache_hits"]
    return engine


def drop_from_page_cache(folder: Path) -> None:
    """Have the files of ``folder`` read from the device next time, as after a reboot."""
    for path in folder.rglob("*.kv"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


# ---- chunked prefill


@dataclass(frozen=True, slots=True)
class Arrival:
    """A long prompt among running sequences: the longest stall of any of them, and the prompt's time to first token."""

    stall_seconds: float
    first_token_seconds: float


def measure_arrival(engine: Engine, running: list[BenchRequest], late: BenchRequest, num_steps: int) -> Arrival:
    """Let ``running`` decode for ``num_steps`` steps; then add ``late`` and measure up to its first token."""
    for index, request in enumerate(running):
        engine.add_request(f"running-{index}", request.prompt_token_ids, request.params)
    last_token: dict[str, float] = {}
    for _ in range(num_steps):
        last_token |= {output.request_id: time.perf_counter() for output in engine.step()}
    assert len(last_token) == len(running), "not all requests are running"
    arrived = time.perf_counter()
    engine.add_request("late", late.prompt_token_ids, late.params)
    stall, first_token = 0.0, None
    while first_token is None:
        ids = {output.request_id for output in engine.step()}
        now = time.perf_counter()
        if "late" in ids:
            first_token = now - arrived
        for name in ids & last_token.keys():
            stall = max(stall, now - last_token[name])
            last_token[name] = now
    for name in ("late", *last_token):
        engine.abort(name)
    return Arrival(stall, first_token)


def chunking(order: BenchOrder, scale: BenchScale, engine: Engine) -> Experiment:
    rng = np.random.default_rng(order.seed)
    running = [
        BenchRequest(random_prompt(rng, engine, scale.batch_prompt), scale.prefix_tokens // 2)
        for _ in range(scale.stall_sequences)
    ]
    late = BenchRequest(random_prompt(rng, engine, scale.prefix_tokens), 1)
    whole = scale.prefix_tokens + scale.stall_sequences

    def run(num_tokens: int) -> Arrival:
        set_up(engine, max_num_seqs=16, max_num_batched_tokens=num_tokens, enable_prefix_caching=False)
        return measure_arrival(engine, running, late, num_steps=6)

    before, after = alternate(order.num_rounds, lambda: run(whole), lambda: run(scale.chunk_tokens))
    set_up(engine, max_num_batched_tokens=512)
    stalls = [[1000 * arrival.stall_seconds for arrival in side] for side in (before, after)]
    first = [[1000 * arrival.first_token_seconds for arrival in side] for side in (before, after)]
    return Experiment(
        name="chunking",
        title=f"A prompt of {scale.prefix_tokens} tokens arrives while others are decoding",
        baseline="in one step",
        measured="in chunks",
        workload=(
            f"{scale.stall_sequences} running sequences; a step computes up to {whole} tokens, and up to "
            f"{scale.chunk_tokens} in chunks"
        ),
        figures=(
            compare("longest stall of a running sequence", "ms", *stalls, higher_is_better=False),
            compare("first token of the long prompt", "ms", *first, higher_is_better=False),
        ),
    )
