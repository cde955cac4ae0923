"""summary.json: the answers that the rows hold. Pure functions of rows and manifest, so that it can be made again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from kvplan.runs.boundaries import SAME_THROUGHPUT, find_boundaries, find_violations
from kvplan.runs.columns import SUMMARY_SCHEMA
from kvplan.runs.outliers import (
    LOAD_NAMES,
    NOISY_CPU_PCT,
    excluded_runs,
    noise_reason,
    runs_by_setting,
    without_excluded,
)
from kvplan.runs.slo_result import slo_results
from kvplan.runs.statuses import MEASURED_STATUSES
from kvplan.runs.trials import SETTING_NAMES

Row = Mapping[str, Any]

DEFAULT_BLOCK_SIZE = 16
_FIGURES = (
    "output_throughput",
    "total_token_throughput",
    "request_throughput",
    "median_ttft_ms",
    "p99_ttft_ms",
    "median_tpot_ms",
    "p99_tpot_ms",
    "kv_usage_max",
    "frag_pct",
    "num_preemptions",
    "request_goodput",
    "goodput_pct",
    "usd_per_mtok_out",
)


def _seconds_per_token(row: Row) -> float:
    return 1.0 / row["output_throughput"]


_GOALS: tuple[tuple[str, Callable[[Row], float], str], ...] = (
    ("output_throughput", _seconds_per_token, "most output tokens per second"),
    ("median_tpot_ms", lambda row: row["median_tpot_ms"] or 0.0, "shortest time per output token"),
    ("p99_ttft_ms", lambda row: row["p99_ttft_ms"], "shortest time to first token (99th percentile)"),
)


def summarize(manifest: Mapping[str, Any], rows: Sequence[Row], *, interrupted: bool = False) -> dict[str, Any]:
    """The whole summary. Figures of settings that ran several times are medians of their runs, outliers that were run
    again left out and listed under ``excluded``."""
    objectives = manifest["options"].get("slo_ms") or {}
    return {
        "schema": SUMMARY_SCHEMA,
        "run_id": manifest["run_id"],
        "model_id": manifest["model"]["id"],
        "device": manifest["device"]["kind"],
        "device_name": manifest["device"]["name"],
        "workload": manifest["workload"]["text"],
        "num_trials": max(len(manifest["trials"]), len(rows)) if interrupted else len(rows),
        "num_finished": len(rows),
        "interrupted": interrupted,
        "status_counts": dict(Counter(str(row["status"]) for row in rows)),
        "best": best_settings(rows, str(manifest["model"]["id"])),
        "slo": slo_results(rows, objectives),
        "boundaries": [boundary.as_json() for boundary in find_boundaries(rows, manifest["options"]["boundary"])],
        "violations": find_violations(rows),
        "excluded": [asdict(exclusion) for exclusion in excluded_runs(rows)],
        "noise": noise_of(rows),
        "kv_waste": kv_waste(rows),
        "predictions": prediction_errors(rows),
    }


def best_settings(rows: Sequence[Row], model_id: str) -> list[dict[str, Any]]:
    """The best setting for each goal, among those that served every request as asked and without waiting for blocks.

    Where no trial did, those that had to queue or preempt are taken; where none was measured, the list is empty.
    """
    candidates = _median_rows([row for row in without_excluded(rows) if row["status"] in MEASURED_STATUSES])
    for good in (_is_undisturbed, _is_complete, lambda row: True):
        chosen = [row for row in candidates if good(row)]
        if chosen:
            within = _within_objectives(chosen, model_id)
            if within and any("slo" in str(row["planes"]).split(";") for row in rows):
                return within  # rows of a search differ in their load: to compare them by anything else means little
            best = [_best(goal, _first(chosen, key), reason, model_id) for goal, key, reason in _GOALS]
            return within + best
    return []


def _first(rows: Sequence[Row], cost: Callable[[Row], float]) -> Row:
    """The row of least cost; of those that noise cannot tell from it, the heaviest load (they differ in a search), the
    longest context, then the least waste."""
    least = min(cost(row) for row in rows)
    alike = [row for row in rows if cost(row) <= least * (1 + SAME_THROUGHPUT)]
    return min(alike, key=lambda row: (-_load_of(row), -row["max_model_len"], row["frag_pct"] or 0.0, cost(row)))


def _load_of(row: Row) -> float:
    """A number that grows with the load, for rows that differ in nothing else."""
    rate = row["request_rate"] if isinstance(row["request_rate"], int | float) else 0.0
    return float(rate or row["max_concurrency"] or 0.0)


def _within_objectives(rows: Sequence[Row], model_id: str) -> list[dict[str, Any]]:
    """The fastest setting among those that keep the service level, where one was asked for."""
    keeping = [row for row in rows if row["slo_pass"]]
    if not keeping:
        return []
    fastest = _first(keeping, _seconds_per_token)
    return [_best("slo", fastest, "most output tokens per second within the service level", model_id)]


def _is_undisturbed(row: Row) -> bool:
    return row["status"] == "ok" and _is_complete(row)


def _is_complete(row: Row) -> bool:
    return not row["num_clipped_prompts"] and not row["failed"]


def _median_rows(rows: Sequence[Row]) -> list[Row]:
    """One row per setting: its figures are medians over its runs, its status the worst of them."""
    merged: list[Row] = []
    for runs in runs_by_setting(rows).values():
        row = dict(runs[0])
        row["spread"] = {}
        for name in _FIGURES:
            values = [run[name] for run in runs if run[name] is not None]
            row[name] = median(values) if values else None
            if len(values) > 1:
                row["spread"][name] = [min(values), max(values)]
        row["slo_pass"] = all(run["slo_pass"] for run in runs)
        row["status"] = max((str(run["status"]) for run in runs), key=("ok", "queued", "preempted").index)
        row["num_runs"] = len(runs)
        merged.append(row)
    return merged


def _best(goal: str, row: Row, reason: str, model_id: str) -> dict[str, Any]:
    settings = {name: row[name] for name in SETTING_NAMES}
    return {
        "goal": goal,
        "reason": reason,
        "trial_id": row["trial_id"],
        "status": row["status"],
        "num_runs": row["num_runs"],
        "load": {name: row[name] for name in LOAD_NAMES},
        "spread": row["spread"],
        "settings": settings,
        "figures": {name: row[name] for name in _FIGURES},
        "commands": {"kvplan": _python_command(model_id, settings), "vllm": _vllm_command(model_id, settings)},
    }


_DEPLOYED = ("gpu_memory_utilization", "max_num_seqs", "block_size", "max_model_len", "max_num_batched_tokens")


def _python_command(model_id: str, settings: Mapping[str, Any]) -> str:
    arguments = ", ".join(f"{name}={settings[name]}" for name in _DEPLOYED)
    return f'LLM(model="{model_id}", {arguments})'


def _vllm_command(model_id: str, settings: Mapping[str, Any]) -> str:
    options = " ".join(f"--{name.replace('_', '-')} {settings[name]}" for name in _DEPLOYED)
    return f"vllm serve {model_id} {options}"


def kv_waste(rows: Sequence[Row]) -> dict[str, Any] | None:
    """KV memory that holds no token: paged as measured, beside the same sequences under contiguous reservation.

    From the fastest undisturbed trial with the default block size (with any, where that was not run). by_block_size
    has the medians of all undisturbed trials.
    """
    undisturbed = [row for row in rows if row["status"] in MEASURED_STATUSES and row["frag_pct"] is not None]
    undisturbed = [row for row in undisturbed if row["status"] == "ok"] or undisturbed
    if not undisturbed:
        return None
    usual = [row for row in undisturbed if row["block_size"] == DEFAULT_BLOCK_SIZE] or undisturbed
    row = max(usual, key=lambda row: (row["max_model_len"], row["output_throughput"]))
    sizes = sorted({row["block_size"] for row in undisturbed})
    return {
        "trial_id": row["trial_id"],
        "block_size": row["block_size"],
        "max_model_len": row["max_model_len"],
        "paged_waste_pct": row["frag_pct"],
        "paged_utilization_pct": 100 - row["frag_pct"],
        "contiguous_utilization_pct": row["contiguous_utilization_pct"],
        "contiguous_waste_pct": 100 - row["contiguous_utilization_pct"],
        "by_block_size": [
            {
                "block_size": size,
                "paged_waste_pct": median(row["frag_pct"] for row in undisturbed if row["block_size"] == size),
            }
            for size in sizes
        ],
    }


def noise_of(rows: Sequence[Row]) -> dict[str, Any]:
    """How quiet the machine was while trials were timed: processor time of others, clocks of the GPU."""
    measured = [row for row in rows if row["status"] in MEASURED_STATUSES]
    others = [row["other_cpu_pct"] for row in measured if row.get("other_cpu_pct") is not None]
    clocks = [row["gpu_clock_pct"] for row in measured if row.get("gpu_clock_pct") is not None]
    return {
        "num_measured": len(measured),
        "num_noisy": sum(noise_reason(row) is not None for row in measured),
        "noisy_above_cpu_pct": NOISY_CPU_PCT,
        "other_cpu_pct_median": median(others) if others else None,
        "other_cpu_pct_max": max(others, default=None),
        "gpu_clock_pct_median": median(clocks) if clocks else None,
        "num_reruns": sum(bool(row.get("rerun_of")) for row in rows),
    }


def prediction_errors(rows: Sequence[Row]) -> dict[str, Any]:
    """How far the planner was from what happened; every figure says over how many trials it is."""
    allocated = [row for row in rows if row["num_blocks_total"]]
    served = [row for row in rows if row["status"] in MEASURED_STATUSES]
    ran = [row for row in rows if row["status"] not in ("timeout", "crash", "skipped_oom_dominated")]
    block_errors = [_error_pct(row["num_blocks_predicted"], row["num_blocks_total"]) for row in allocated]
    speed_errors = [_error_pct(row["pred_output_throughput"], row["output_throughput"]) for row in served]
    return {
        "num_compared": len(allocated),
        "block_bytes_equal": sum(row["block_bytes"] == row["block_bytes_predicted"] for row in allocated),
        "num_blocks_equal": sum(row["num_blocks_total"] == row["num_blocks_predicted"] for row in allocated),
        "num_blocks_max_error_pct": max((abs(error) for error in block_errors), default=None),
        "num_outcomes_compared": len(ran),
        "outcomes_equal": sum(row["status"] == row["predicted_status"] for row in ran),
        "num_served": len(served),
        "max_concurrency_equal": sum(row["pred_max_concurrency"] == row["meas_max_concurrency"] for row in served),
        "output_throughput_median_error_pct": median(abs(error) for error in speed_errors) if speed_errors else None,
    }


def _error_pct(predicted: float | None, measured: float) -> float:
    return 100 * ((predicted or 0.0) - measured) / measured if measured else 0.0
