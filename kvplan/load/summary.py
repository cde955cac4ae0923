"""summary.json of a load, and what ``--json`` prints: the keys of ``vllm bench serve``, and the server's side.

bench.json: a run as the result file of ``vllm bench serve --save-result --save-detailed`` has it.

Checked against vllm/benchmarks/serve.py of 0.32.0: a list with one entry per request for each key, in order of sending.
A failed request has a TTFT of 0, no gaps and its error. Texts of answers are not kept, so there are no
``generated_texts``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from kvplan.load.client.record import RequestRecord
from kvplan.load.observed.figures import MeasuredRun, counting, tells_gaps, token_times
from kvplan.load.observed.monitor import EngineFigures
from kvplan.load.observed.verdict import LoadVerdict
from kvplan.load.options import SearchRange
from kvplan.runs.answers.slo_result import SloResult, line_result, slo_summary
from kvplan.runs.columns import Row
from kvplan.runs.request_lines import gaps_between, rounded
from kvplan.runs.rows import cell
from kvplan.runs.storage.files import write_whole
from kvplan.runs.trials import LOAD_NAMES
from kvplan.sweeps.worker.metrics import PERCENTILES

BENCH: Final = "bench.json"
LOAD_SCHEMA: Final = "kvplan.load/1"

_STATISTICS: Final = tuple(
    f"{statistic}_{latency}_ms"
    for latency in ("ttft", "tpot", "itl", "e2el")
    for statistic in ("mean", "median", "std", *PERCENTILES)
)
# vllm bench serve's result file.
BENCH_KEYS: Final = (
    "model_id", "num_prompts", "request_rate", "burstiness", "max_concurrency", "duration", "completed", "failed",
    "total_input_tokens", "total_output_tokens", "request_throughput", "request_goodput", "output_throughput",
    "total_token_throughput", "max_concurrent_requests", *_STATISTICS,
)  # fmt: skip
_RESULT_FIGURES: Final = (
    "output_throughput", "request_throughput", "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms",
    "kv_usage_max", "num_preemptions", "request_goodput", "goodput_pct",
)  # fmt: skip
_OWN_KEYS: Final = (
    "status", "error", "url", "endpoint", "engine", "engine_version", "users", "think_time", "num_warmups",
    "goodput_pct", "slo_pass", "mean_sent_ttft_ms", "p99_sent_ttft_ms", "token_source", "chunks_per_token",
    "client_bound", "dispatch_delay_p99_ms", "loop_lag_p99_ms", "client_cpu_pct", "client_ceiling",
    "bound_by", "kv_usage_mean", "kv_usage_p95", "kv_usage_max", "max_running", "max_waiting", "num_preemptions",
    "prefix_hit_rate", "num_drafts", "num_draft_tokens", "num_accepted_tokens", "acceptance_rate",
    "mean_acceptance_length", "accepted_per_position", "queue_p95", "server_mean_queue_ms", "server_mean_ttft_ms",
    "server_mean_itl_ms", "server_mean_e2el_ms", "kv_cache_tokens", "max_num_seqs", "data_parallel_size",
)  # fmt: skip


def load_summary(
    rows: Sequence[Row],
    *,
    run_id: str,
    workload: str,
    objectives_ms: Mapping[str, float],
    search: SearchRange | None,
    verdicts: Sequence[LoadVerdict],
    engines: Sequence[Mapping[str, EngineFigures]],
    notes: Sequence[str],
    interrupted: bool,
) -> dict[str, Any]:
    """Return the summary of at least one row.

    At the top the figures of the main run, number ``main_run`` of ``runs``: the last one, or in a search the largest
    load within the service level. verdicts: what bound each of the rows, in a sentence. engines: of each of the rows,
    what each of several engines did. Keys that reports read are
    those of a sweep's summary.
    """
    found = None if search is None else _search_result(rows, objectives_ms, search)
    place = _main_place(rows, found)
    runs = [
        {name: cell(row, name) for name in (*BENCH_KEYS, *_OWN_KEYS)}
        | {"verdict": found_verdict.sentence, "engines": {name: asdict(engine) for name, engine in each.items()}}
        for row, found_verdict, each in zip(rows, verdicts, engines, strict=True)
    ]
    return {
        "schema": LOAD_SCHEMA,
        "run_id": run_id,
        "date": rows[place]["started_at"],
        "workload": workload,
        "main_run": place + 1,
        **runs[place],
        "num_trials": len(rows),
        "num_finished": len(rows),
        "interrupted": interrupted,
        "status_counts": dict(Counter(str(row["status"]) for row in rows)),
        "best": [_result_entry(rows[place], verdicts[place], found)],
        "slo": slo_summary([found] if found else [], objectives_ms) if objectives_ms else None,
        "boundaries": [],
        "violations": [],
        "excluded": [],
        "notes": list(notes),
        "runs": runs,
    }


def _result_entry(row: Row, verdict: LoadVerdict, found: SloResult | None) -> dict[str, Any]:
    """The main run as a report shows it first: what bound it, and its figures."""
    is_found = found is not None and found.keeps is not None
    return {
        "goal": "slo_load" if is_found else "measured_load",
        "reason": verdict.text,
        "trial_id": row["trial_id"],
        "status": row["status"],
        "num_runs": 1,
        "load": {name: cell(row, name) for name in LOAD_NAMES},
        "spread": {},
        "settings": {},
        "figures": {name: cell(row, name) for name in _RESULT_FIGURES},
        "commands": {},
    }


def _search_result(rows: Sequence[Row], objectives_ms: Mapping[str, float], search: SearchRange) -> SloResult | None:
    where = str(rows[0]["model_id"])
    return line_result(None, rows, objectives_ms, where, search.variable)


def _main_place(rows: Sequence[Row], found: SloResult | None) -> int:
    """The place of the run whose figures stand for the load."""
    if found is None or found.keeps is None:
        return len(rows) - 1
    return max(place for place, row in enumerate(rows) if cell(row, found.variable) == found.keeps)


def write_bench(directory: Path, figures: Mapping[str, Any], run: MeasuredRun) -> Path:
    """Write the file and return its path. figures: of the run, under the names of the columns."""
    # ``p99.9_ttft_ms``, as vLLM writes it.
    document = {name.replace("p99_9_", "p99.9_"): figures.get(name) for name in BENCH_KEYS} | bench_lists(run)
    path = directory / BENCH
    write_whole(path, json.dumps(document, allow_nan=False) + "\n")
    return path


def bench_lists(run: MeasuredRun) -> dict[str, list[Any]]:
    """Return what each measured request showed. Times count from its sending, start_times from the run's start."""
    measured = run.measured
    start = run.start
    has_gaps = tells_gaps(counting([record for record in measured if record.is_served]))
    times = [token_times(record) if record.is_served else [] for record in measured]
    return {
        "input_lens": [record.num_prompt_tokens or record.num_prompt_tokens_asked for record in measured],
        "output_lens": [record.num_output_tokens or 0 if record.is_served else 0 for record in measured],
        "ttfts": [_since(record, tokens[:1]) for record, tokens in zip(measured, times, strict=True)],
        "itls": [gaps_between(tokens) if has_gaps else [] for tokens in times],
        "latencies": [_since(record, tokens[-1:]) for record, tokens in zip(measured, times, strict=True)],
        "start_times": [rounded(record.started - start) for record in measured],
        "errors": ["" if record.is_served else record.error or "no token came" for record in measured],
    }


def _since(record: RequestRecord, moment: list[float]) -> float | None:
    """Seconds from sending to the moment, 0 without one."""
    return rounded(moment[0] - record.started) if moment else 0.0
