"""A made-up run directory in the real format, for tests of whatever reads one. No figure in it was measured.

``write_sample_directory(directory)`` writes trials.jsonl, results.csv, manifest.json and summary.json of a small sweep:
a throughput plane (max_num_seqs x block_size), a memory plane (gpu_memory_utilization x max_model_len) and one row of
every status. Run as a script with a directory to look at it.
"""

from __future__ import annotations

import csv
import json
import math
import random
import sys
from pathlib import Path

from kvplan.runs.columns import columns_as_json, table_columns
from kvplan.runs.directory import MANIFEST_SCHEMA, SUMMARY_SCHEMA, TRIAL_SCHEMA
from kvplan.runs.rows import empty_row
from kvplan.runs.statuses import MEASURED_STATUSES

RUN_ID = "sample-gpt2"
DEVICE_MEMORY_BYTES = 4 * 1024**3
WEIGHT_BYTES = 497_759_232
FIXED_BYTES = WEIGHT_BYTES + 130_000_000 + 134_217_728
BYTES_PER_TOKEN = 73_728


def _latencies(row: dict, scale: float, rng: random.Random) -> None:
    for name, base in (("ttft", 900.0), ("tpot", 45.0), ("itl", 46.0), ("e2el", 2600.0)):
        median = base * scale * rng.uniform(0.95, 1.05)
        row[f"mean_{name}_ms"] = median * 1.04
        row[f"median_{name}_ms"] = median
        row[f"std_{name}_ms"] = median * 0.3
        row[f"p90_{name}_ms"] = median * 1.5
        row[f"p99_{name}_ms"] = median * 1.9


def _series(duration: float, peak_usage: float, running: int, rate: float, blocks: int, block_size: int) -> dict:
    points = 120
    phase = [index / (points - 1) for index in range(points)]
    usage = [peak_usage * min(1.0, 4 * x) * (1.0 if x < 0.8 else (1 - x) / 0.2) for x in phase]
    return {
        "seconds": [round(duration * x, 4) for x in phase],
        "kv_usage": usage,
        "num_running": [running if x < 0.8 else math.ceil(running * (1 - x) / 0.2) for x in phase],
        "num_waiting": [max(0, round(16 * (0.5 - x))) for x in phase],
        "used_tokens": [round(value * blocks * block_size * 0.97) for value in usage],
        "output_tokens_per_second": [rate * (0.6 + 0.4 * math.sin(3 * x)) for x in phase],
    }


def _fill_measured(row: dict, rng: random.Random) -> dict:
    sequences, block_size = row["max_num_seqs"], row["block_size"]
    rate = 260 * sequences / (sequences + 6) * (1 - 0.01 * math.log2(block_size))
    pressure = 1.0 if row["status"] == "ok" else 1.4
    rate = rate / pressure * rng.uniform(0.97, 1.03)
    duration = 512 / rate
    blocks = row["num_blocks_total"]
    usage = min(1.0, 16 * 230 / (blocks * block_size))
    row.update(
        duration=duration, completed=16, failed=0, total_input_tokens=3072, total_output_tokens=512,
        request_throughput=16 / duration, output_throughput=rate, total_token_throughput=3584 / duration,
        max_concurrent_requests=16, kv_usage_mean=0.7 * usage, kv_usage_p95=0.98 * usage, kv_usage_max=usage,
        internal_frag_bytes_mean=block_size / 2 * BYTES_PER_TOKEN * min(16, sequences),
        frag_pct=100 * block_size / 2 / 230, kv_waste_pct=100 * block_size / 2 / 230,
        contiguous_utilization_pct=100 * 215 / row["max_model_len"],
        num_preemptions=7 if row["status"] == "preempted" else 0,
        recomputed_tokens=1400 if row["status"] == "preempted" else 0,
        max_running=min(16, sequences), max_waiting=max(0, 16 - sequences), prefix_hit_rate=0.0,
        meas_max_concurrency=min(16, sequences), pred_error_pct=0.0, num_steps=180,
    )  # fmt: skip
    _latencies(row, 260 / rate, rng)
    return _series(duration, usage, min(16, sequences), rate, blocks, block_size)


def _fill_failed(row: dict) -> None:
    messages = {
        "oom_weights": ("weights", "The weights need 474.70 MiB; 204.80 MiB are free."),
        "oom_kv_init": ("kv_init", "Nothing is left for the KV cache after weights, activations and overhead."),
        "oom_runtime": ("runtime", "The allocator could not get 96.00 MiB while requests were being served."),
        "rejected_ctx": (None, "A sequence of 1,024 tokens does not fit; the largest that does has 416."),
        "timeout": (None, "The trial was ended after 60 s; 4 s were predicted."),
        "crash": (None, "The worker died by SIGKILL."),
        "skipped_oom_dominated": (None, "Not run: the same settings at utilization 0.2 ran out of memory."),
    }
    row["oom_phase"], row["error"] = messages[row["status"]]
    if row["oom_phase"]:
        row["oom_requested_bytes"], row["oom_free_bytes"] = 497_759_232, 214_748_364
    if row["status"] == "rejected_ctx":
        row["largest_max_model_len"] = 416


def _status(pool_bytes: int, utilization: float, context: int) -> str:
    tokens = pool_bytes // BYTES_PER_TOKEN
    if DEVICE_MEMORY_BYTES * utilization < WEIGHT_BYTES:
        return "oom_weights"
    if pool_bytes <= 0:
        return "oom_kv_init"
    if tokens < context:
        return "rejected_ctx"
    if tokens < 1500:
        return "preempted"
    return "queued" if tokens < 3000 else "ok"


def _record(number: int, plane: str, settings: dict, status: str | None, rng: random.Random) -> dict:
    pool = int(DEVICE_MEMORY_BYTES * settings["gpu_memory_utilization"]) - FIXED_BYTES
    block_bytes = BYTES_PER_TOKEN * settings["block_size"]
    row = empty_row()
    row.update(settings)
    row.update(
        run_id=RUN_ID, trial_id=f"sample{number:04d}", trial_number=number, design_parts=plane,
        model_id="gpt2", device="cpu",
        device_name="Sample CPU", engine="kvplan", engine_version="0.1.0",
        dtype="float32", kv_cache_dtype="float32",
        load_format="dummy", seed=0, run_number=1, started_at=f"2026-01-01T00:{number % 60:02d}:00+00:00",
        max_num_batched_tokens=2048, tensor_parallel_size=1, device_memory_bytes=DEVICE_MEMORY_BYTES,
        workload="uniform, input 96..288, output 16..48", num_prompts=16, request_rate="inf", num_clipped_prompts=0,
        block_bytes_predicted=block_bytes, num_blocks_predicted=max(0, pool // block_bytes),
        predicted_status=_status(pool, settings["gpu_memory_utilization"], settings["max_model_len"]),
        pred_max_concurrency=min(16, settings["max_num_seqs"]), pred_output_throughput=200.0, predicted_seconds=4.0,
        budget_bytes=int(DEVICE_MEMORY_BYTES * settings["gpu_memory_utilization"]), other_cpu_pct=1.5,
        setup_seconds=0.2, trial_seconds=3.0,
    )  # fmt: skip
    row["status"] = status or row["predicted_status"]
    series = None
    if row["status"] in MEASURED_STATUSES:
        row.update(
            block_bytes=block_bytes, num_blocks_total=pool // block_bytes, kv_pool_bytes=pool,
            weights_bytes=WEIGHT_BYTES, activation_bytes=130_000_000, activation_peak_bytes=121_000_000,
            overhead_bytes=134_217_728, peak_allocated_bytes=pool + FIXED_BYTES - 90_000_000,
        )  # fmt: skip
        series = _fill_measured(row, rng)
    else:
        _fill_failed(row)
    return {"schema": TRIAL_SCHEMA, "row": row, "series": series}


def sample_records(seed: int = 0) -> list[dict]:
    """The records of a small sweep, every status included at least once."""
    rng = random.Random(seed)
    records: list[dict] = []
    for sequences in (2, 4, 8, 16, 32):
        for block_size in (8, 16, 32):
            settings = {"gpu_memory_utilization": 0.9, "max_num_seqs": sequences, "block_size": block_size}
            records.append(_record(len(records) + 1, "throughput", settings | {"max_model_len": 1024}, None, rng))
    for utilization in (0.05, 0.15, 0.185, 0.19, 0.2, 0.21, 0.23, 0.3, 0.9):
        for context in (256, 512, 1024):
            settings = {"gpu_memory_utilization": utilization, "max_num_seqs": 16, "block_size": 16}
            records.append(_record(len(records) + 1, "memory", settings | {"max_model_len": context}, None, rng))
    for status in ("oom_runtime", "timeout", "crash", "skipped_oom_dominated"):
        settings = {"gpu_memory_utilization": 0.9, "max_num_seqs": 64, "block_size": 16, "max_model_len": 1024}
        records.append(_record(len(records) + 1, "grid", settings, status, rng))
    return records


def _manifest() -> dict:
    return {
        "schema": MANIFEST_SCHEMA,
        "run_id": RUN_ID,
        "created_at": "2026-01-01T00:00:00+00:00",
        "command": "kvplan sweep --model gpt2",
        "model": {"id": "gpt2", "architecture": "GPT2LMHeadModel", "num_parameters": 124_439_808},
        "device": {"kind": "cpu", "name": "Sample CPU", "memory_bytes": DEVICE_MEMORY_BYTES, "num_cores": 2},
        "settings": {"seed": 0, "num_runs": 1, "load_format": "dummy"},
        "planes": [
            {"name": "throughput", "x": "max_num_seqs", "y": "block_size"},
            {"name": "memory", "x": "gpu_memory_utilization", "y": "max_model_len"},
        ],
        "versions": {"kvplan": "0.1.0", "kvplan_engine": "0.1.0", "python": "3.12.0", "torch": "2.13.0"},
        "commit": None,
        "columns": columns_as_json(),
    }


def _summary(records: list[dict]) -> dict:
    rows = [record["row"] for record in records]
    best = max((row for row in rows if row["status"] == "ok"), key=lambda row: row["output_throughput"])
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["status"]] = counts.get(row["status"], 0) + 1
    keys = ("gpu_memory_utilization", "max_num_seqs", "block_size", "max_model_len", "max_num_batched_tokens")
    return {
        "schema": SUMMARY_SCHEMA,
        "run_id": RUN_ID,
        "model_id": "gpt2",
        "device": "cpu",
        "num_trials": len(rows),
        "status_counts": counts,
        "best": [
            {
                "goal": "output_throughput",
                "trial_id": best["trial_id"],
                "settings": {key: best[key] for key in keys},
                "figures": {"output_throughput": best["output_throughput"], "median_tpot_ms": best["median_tpot_ms"]},
                "reason": "most output tokens per second",
                "commands": {"kvplan": "kvplan sweep --model gpt2", "vllm": "vllm serve gpt2"},
            }
        ],
        "boundaries": [
            {
                "kind": "largest_max_model_len",
                "at": {"gpu_memory_utilization": 0.2, "max_num_seqs": 16, "block_size": 16},
                "starts": 512,
                "holds": None,
                "fails": 1024,
                "sentence": "utilization 0.2: starts up to 512 tokens, refused at 1,024",
            }
        ],
        "kv_waste": {"paged_waste_pct": 3.4, "contiguous_utilization_pct": 21.0, "trial_id": best["trial_id"]},
        "predictions": {"num_compared": 30, "block_bytes_equal": 30, "num_blocks_max_error_pct": 0.0},
        "violations": [],
        "notes": [],
    }


def _request(trial_id: str, number: int) -> dict:
    """One of the best trial's requests: a few waited for a seat."""
    ttft, sent = 0.2 + 0.4 * (number % 4), 0.05 * number
    return {
        "trial_id": trial_id, "id": number, "scheduled_s": sent, "sent_s": sent, "ttft_s": ttft, "tpot_s": 0.03,
        "itl_max_s": 0.05, "e2el_s": ttft + 0.93, "end_s": sent + ttft + 0.93, "input_tokens": 192, "cached_tokens": 0,
        "output_tokens": 32, "error": None,
    }  # fmt: skip


def write_sample_directory(directory: Path) -> Path:
    """Write the sample sweep's four files into ``directory`` (made where missing) and return it."""
    directory.mkdir(parents=True, exist_ok=True)
    records = sample_records()
    lines = [json.dumps(record) for record in records]
    (directory / "trials.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with (directory / "results.csv").open("w", newline="", encoding="utf-8") as file:
        names = table_columns([record["row"] for record in records])
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(record["row"] for record in records)
    best = _summary(records)["best"][0]["trial_id"]
    requests = [_request(best, number) for number in range(16)]
    (directory / "requests.jsonl").write_text("".join(json.dumps(line) + "\n" for line in requests), encoding="utf-8")
    (directory / "manifest.json").write_text(json.dumps(_manifest(), indent=2), encoding="utf-8")
    (directory / "summary.json").write_text(json.dumps(_summary(records), indent=2), encoding="utf-8")
    return directory


if __name__ == "__main__":
    print(write_sample_directory(Path(sys.argv[1])))
