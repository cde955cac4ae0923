"""Measurements of memory: how many long sequences a device holds, and what happens at its very edge."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvplan_engine import Engine, EngineConfig, EngineError, SamplingParams
from kvplan_engine.measuring.engine import DRY_CONFIG, kv_bytes_per_token, model_config
from kvplan_engine.measuring.support import Bench, outcome_of

MODEL = "llama-3.1-8b"
OUTPUT_LEN = 64
_MEMORY_SECONDS_TO_SPARE = 3


@dataclass(frozen=True, slots=True)
class Filling:
    """What was seen while sequences were put into a pool. most_running: at once. seconds: of all steps."""

    most_running: int
    most_blocks: int
    num_preemptions: int
    seconds: float


def measure_memory(bench: Bench) -> None:
    """First the edge, which is the shorter one; then sequences of 8k and 32k tokens (80 GB: about 50, and 12 to 13)."""
    measure_edge(bench, bench.seconds_left() / 3)
    contexts = (48, 96) if bench.dry else (8192, 32768)
    for number, context in enumerate(contexts):
        share = bench.seconds_left() / (len(contexts) - number)  # of it an engine's start takes its part
        measure_sequences(bench, context, time.perf_counter() + share - _MEMORY_SECONDS_TO_SPARE)


def start(bench: Bench, utilization: float, max_num_seqs: int, max_model_len: int) -> Engine:
    """An engine of the model with dummy weights; the error where it does not start belongs to the caller."""
    return Engine(
        EngineConfig(
            model=DRY_CONFIG if bench.dry else model_config(bench, MODEL),
            device="cpu" if bench.dry else "cuda",
            dtype="float32" if bench.dry else "bfloat16",
            load_format="dummy",
            device_memory=160 * 1024**2 if bench.dry else None,
            gpu_memory_utilization=utilization,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            max_num_batched_tokens=64 if bench.dry else 8192,
            enable_prefix_caching=False,
        )
    )


def fill(
    engine: Engine, count: int, prompt_len: int, output_len: int, seconds: float, enough: int | None = None
) -> Filling:
    """Serve ``count`` sequences at once, for at most ``seconds``, or until ``enough`` of them run at once."""
    generator, vocab_size = random.Random(0), engine.model.config.vocab_size
    params = SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True)
    for number in range(count):
        prompt = [generator.randrange(vocab_size) for _ in range(prompt_len)]
        engine.add_request(f"sequence-{number}", prompt, params)
    started, most_running, most_blocks = time.perf_counter(), 0, 0
    while engine.has_unfinished_requests() and time.perf_counter() - started < seconds:
        engine.step()
        most_running = max(most_running, engine.stats.num_running)
        most_blocks = max(most_blocks, engine.stats.num_used_blocks)
        if enough is not None and most_running >= enough:
            break
    return Filling(most_running, most_blocks, engine.stats.num_preemptions, time.perf_counter() - started)


def measure_edge(bench: Bench, seconds: float) -> None:
    """Utilization 0.99 under the largest batch: it runs, or the row says which allocation failed."""
    max_num_seqs, prompt_len, output_len = (4, 20, 4) if bench.dry else (512, 400, 40)
    shape: dict[str, object] = {
        "model": "tiny" if bench.dry else MODEL,
        "max_num_seqs": max_num_seqs,
        "utilization": 0.99,
    }
    started, served = time.perf_counter(), 0.0
    try:
        engine = start(bench, 0.99, max_num_seqs, 256 if bench.dry else 8192)
        filled = fill(engine, max_num_seqs, prompt_len, output_len, started + seconds - time.perf_counter())
        outcome = "ran" if not engine.has_unfinished_requests() else "ran until its time was up"
        served = filled.most_blocks / engine.memory.num_blocks
        engine.close()
    except EngineError as error:
        outcome = f"{error.status}: {error.message}"
    seconds = time.perf_counter() - started
    shape["outcome"] = outcome
    bench.add("memory", "utilization 0.99", 100 * served, "% of blocks", shape, median_seconds=seconds)
    bench.release_memory()


def measure_sequences(bench: Bench, context: int, ends_at: float) -> None:
    """How many sequences of ``context`` tokens ran at once, beside how many the pool has room for."""
    output_len = 8 if bench.dry else OUTPUT_LEN
    engine = start(bench, 0.9, 4 if bench.dry else 256, context)
    room = engine.memory.num_blocks // -(-context // engine.memory.block_size)
    count = min(room + 2, 6) if bench.dry else room + 2
    enough = min(room, count)
    filled = fill(engine, count, context - output_len, output_len, ends_at - time.perf_counter(), enough)
    shape = {
        "model": "tiny" if bench.dry else MODEL,
        "context": context,
        "pool_gib": round(engine.memory.kv_pool_bytes / 1024**3, 2),
        "kv_bytes_per_token": int(kv_bytes_per_token(engine)),
        "preemptions": filled.num_preemptions,
    }
    bench.add(
        "memory",
        "sequences at once",
        filled.most_running,
        "sequences",
        shape,
        share=filled.most_running / enough,
        reference="room for whole sequences in the pool",
        median_seconds=filled.seconds,
    )
    engine.close()
    bench.release_memory()


# The product's own sweep on the device beside its predictions.


WITHIN = 0.02
_SWEEP_SECONDS_TO_SPARE = 6
_AXES = {
    "--gpu-memory-utilization": "0.2,0.5,0.9,1.0",
    "--max-num-seqs": "16,256",
    "--block-size": "16,32",
    "--max-model-len": "2k,32k",
}
_DRY_AXES = {
    "--gpu-memory-utilization": "0.02,0.9",
    "--max-num-seqs": "2",
    "--block-size": "16",
    "--max-model-len": "64",
}


def measure_sweep(bench: Bench) -> None:
    """Four axes with their out-of-memory boundaries, as far as the time goes; every row predicted beforehand.

    The sweep's own directory is kept beside the rows: speeds are calibrated from it.
    """
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "sweep" if bench.out is None else _new_beside(bench.out)
        started = time.perf_counter()
        ended = run_sweep(bench, Path(folder), directory)
        seconds = time.perf_counter() - started
        lines = (directory / "trials.jsonl").read_text().splitlines()
    add_predictions(bench, [json.loads(line)["row"] for line in lines], seconds, ended)


def _new_beside(rows: Path) -> Path:
    """The directory ``sweep`` beside ``rows``; an earlier measurement's goes."""
    directory = rows.parent / "sweep"
    if (directory / "trials.jsonl").is_file():
        shutil.rmtree(directory)
    return directory


def run_sweep(bench: Bench, folder: Path, directory: Path) -> str:
    """The command as a user would give it; stopped in time, with what it has recorded until then."""
    model, device, sizes = "llama-3.1-8b", "cuda", ["--num-prompts", "24", "--input-len", "128..512"]
    if bench.dry:
        model, device, sizes = str(folder / "config.json"), "cpu", ["--num-prompts", "2", "--input-len", "8..16"]
        (folder / "config.json").write_text(json.dumps(DRY_CONFIG))
        sizes += ["--device-memory", "300MiB", "--dtype", "float32"]
    axes = [word for pair in (_DRY_AXES if bench.dry else _AXES).items() for word in pair]
    command = [sys.executable, "-m", "kvplan", "sweep", "--model", model, "--device", device, "--load-format", "dummy"]
    command += [*axes, *sizes, "--output-len", "4..8" if bench.dry else "16..32", "--out", str(directory)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    outcome = outcome_of(command, max(1.0, bench.seconds_left() - _SWEEP_SECONDS_TO_SPARE), sys.stderr, env=environment)
    if outcome.startswith("stopped"):
        return "stopped in time"
    if outcome != "exit code 0":
        raise RuntimeError(f"the sweep ended with {outcome}")
    return "complete"


def add_predictions(bench: Bench, rows: list[dict[str, Any]], seconds: float, ended: str) -> None:
    """Bytes per block to the byte and blocks within 2 %, over the rows in which there was a pool."""
    pools = [row for row in rows if row["num_blocks_total"]]
    exact = sum(row["block_bytes"] == row["block_bytes_predicted"] for row in pools)
    errors = [abs(row["num_blocks_predicted"] / row["num_blocks_total"] - 1) for row in pools]
    statuses = dict(Counter(row["status"] for row in rows))
    if not pools:
        raise RuntimeError(f"no trial came to have a pool: {statuses}; the last: {rows[-1:]}")
    common: dict[str, Any] = {
        "goal": 1.0,
        "median_seconds": seconds / max(1, len(rows)),
        "reference": "rows with a pool",
    }
    shape = {"rows": len(rows), "sweep": ended, **statuses}
    bench.add("sweep", "bytes per block predicted exactly", exact, "rows", shape, exact / len(pools), **common)
    near = sum(error <= WITHIN for error in errors)
    shape = {"rows": len(rows), "worst_pct": round(100 * max(errors), 3)}
    bench.add("sweep", "blocks predicted within 2 %", near, "rows", shape, near / len(pools), **common)
