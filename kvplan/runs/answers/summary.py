"""summary.json: the answers that the rows hold. Pure functions of rows and manifest, so that it can be made again."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from statistics import median
from typing import Final, TypedDict

from kvplan.runs.answers.best_settings import BestSetting, best_settings
from kvplan.runs.answers.boundaries import find_boundaries
from kvplan.runs.answers.deploy import model_to_deploy
from kvplan.runs.answers.outliers import NOISY_CPU_PCT, excluded_runs, noise_reason
from kvplan.runs.answers.points import BoundaryAxis, Point, lines_along, points_of
from kvplan.runs.answers.slo_result import SloSummary, search_results, slo_results
from kvplan.runs.answers.stand_in import StandIn, stand_in
from kvplan.runs.columns import Row
from kvplan.runs.directory import SUMMARY_SCHEMA, Manifest
from kvplan.runs.rows import has_speed, is_counted, is_measured, settings_of
from kvplan.runs.setting_text import settings_text, shown_in
from kvplan.runs.trials import LOAD_NAMES, TrialSettings

DEFAULT_BLOCK_SIZE: Final = 16


class BlockSizeWaste(TypedDict):
    """Median KV waste of all undisturbed trials with one block size."""

    block_size: int
    paged_waste_pct: float


class KvWaste(TypedDict):
    """KV memory that holds no token, in percent: paged as measured, and under contiguous reservation."""

    trial_id: str
    block_size: int
    max_model_len: int
    paged_waste_pct: float
    paged_utilization_pct: float
    contiguous_utilization_pct: float
    contiguous_waste_pct: float
    by_block_size: list[BlockSizeWaste]


class Noise(TypedDict):
    """How quiet the machine was while trials were timed: CPU time of other processes, clocks of the GPU."""

    num_measured: int
    num_noisy: int
    noisy_above_cpu_pct: float
    other_cpu_pct_median: float | None
    other_cpu_pct_max: float | None
    gpu_clock_pct_median: float | None
    num_reruns: int


class PredictionErrors(TypedDict):
    """How far predictions were off; every figure says over how many trials it is.

    block_bytes_equal: None where the engine does not tell the size of its blocks. num_timed: trials whose throughput
    was predicted; num_informed: those of them that were not predicted before anything was measured on the device.
    """

    num_compared: int
    block_bytes_equal: int | None
    num_blocks_equal: int
    num_blocks_max_error_pct: float | None
    num_outcomes_compared: int
    outcomes_equal: int
    num_served: int
    max_concurrency_equal: int
    num_timed: int
    num_informed: int
    output_throughput_median_error_pct: float | None
    output_throughput_informed_error_pct: float | None


class Summary(TypedDict):
    """summary.json. boundaries, excluded: Boundary and Exclusion as JSON. is_counted: nothing was computed.

    layout_waste_pct: median of the column over the trials that were served.
    """

    schema: str
    run_id: str
    model_id: str
    device: str
    device_name: str
    is_counted: bool
    workload: str
    num_trials: int
    num_finished: int
    interrupted: bool
    status_counts: dict[str, int]
    best: list[BestSetting]
    slo: SloSummary | None
    boundaries: list[dict[str, object]]
    violations: list[Violation]
    excluded: list[dict[str, object]]
    noise: Noise
    kv_waste: KvWaste | None
    layout_waste_pct: float | None
    predictions: PredictionErrors
    stand_in: StandIn | None
    speculation: list[DraftGain]


def summarize(manifest: Manifest, rows: Sequence[Row], *, interrupted: bool = False) -> Summary:
    """The whole summary. Figures of settings that ran several times are medians of their runs; outliers that were run
    again are left out and listed under ``excluded``."""
    objectives = manifest["options"].get("slo_ms") or {}
    return {
        "schema": SUMMARY_SCHEMA,
        "run_id": manifest["run_id"],
        "model_id": manifest["model"]["id"],
        "device": manifest["device"]["kind"],
        "device_name": manifest["device"]["name"],
        "is_counted": any(map(is_counted, rows)),
        "workload": manifest["workload"]["text"],
        "num_trials": _num_planned(manifest, rows) if interrupted else len(rows),
        "num_finished": len(rows),
        "interrupted": interrupted,
        "status_counts": dict(Counter(str(row["status"]) for row in rows)),
        "best": _as_started(best_settings(rows, model_to_deploy(manifest), search_results(rows, objectives)), manifest),
        "slo": slo_results(rows, objectives),
        "boundaries": [boundary.as_json() for boundary in find_boundaries(rows, manifest["options"]["boundary"])],
        "violations": find_violations(rows),
        "excluded": [asdict(exclusion) for exclusion in excluded_runs(rows)],
        "noise": noise_of(rows),
        "kv_waste": kv_waste(rows),
        "layout_waste_pct": layout_waste(rows),
        "predictions": prediction_errors(rows),
        "stand_in": stand_in(manifest, rows),
        "speculation": speculation_gains(rows),
    }


def _as_started(best: list[BestSetting], manifest: Manifest) -> list[BestSetting]:
    """``best`` with the arguments that vLLM was given beside its settings in the commands that start it."""
    options = manifest["options"]
    if options.get("engine") != "vllm" or not options.get("engine_args"):
        return best
    pairs = (str(text).strip().removeprefix("--").partition("=") for text in options["engine_args"])
    words = [word for name, _, value in pairs for word in ("--" + name.replace("_", "-"), value) if word]
    for entry in best:
        if "vllm" in entry["commands"]:
            entry["commands"]["vllm"] += " " + shlex.join(words)
    return best


def _num_planned(manifest: Manifest, rows: Sequence[Row]) -> int:
    """The trials of the plan and those that were run again, which it does not hold; all there are where a search added
    its own."""
    num_reruns = sum(bool(row["rerun_of"]) for row in rows)
    return max(len(manifest["trials"]) + num_reruns, len(rows))


def kv_waste(rows: Sequence[Row]) -> KvWaste | None:
    """KV waste of the fastest undisturbed trial with the default block size (with any, if that was not run).

    Of those that only count, which have no speeds, the one with the most sequences at once. Rows without a block size
    or a longest sequence are left out: others' servers do not tell them, and files can be damaged.
    """
    told = [row for row in rows if None not in (row["frag_pct"], row["block_size"], row["max_model_len"])]
    undisturbed = [row for row in told if is_measured(row)]
    undisturbed = [row for row in undisturbed if row["status"] == "ok"] or undisturbed
    if not undisturbed:
        return None
    usual = [row for row in undisturbed if row["block_size"] == DEFAULT_BLOCK_SIZE] or undisturbed
    row = max(usual, key=lambda row: (row["max_model_len"], row["output_throughput"] or row["max_running"] or 0.0))
    paged_waste, contiguous = row["frag_pct"] or 0.0, row["contiguous_utilization_pct"] or 0.0
    return {
        "trial_id": row["trial_id"],
        "block_size": row["block_size"],
        "max_model_len": row["max_model_len"],
        "paged_waste_pct": paged_waste,
        "paged_utilization_pct": 100 - paged_waste,
        "contiguous_utilization_pct": contiguous,
        "contiguous_waste_pct": 100 - contiguous,
        "by_block_size": [
            {"block_size": size, "paged_waste_pct": _median_waste(undisturbed, size)}
            for size in sorted({row["block_size"] for row in undisturbed})
        ],
    }


def layout_waste(rows: Sequence[Row]) -> float | None:
    """Median over the trials that were served, None where none was read (an earlier version wrote the rows)."""
    found = [percent for row in rows if is_measured(row) and (percent := row.get("layout_waste_pct")) is not None]
    return median(found) if found else None


def _median_waste(rows: Sequence[Row], block_size: int) -> float:
    return median(row["frag_pct"] or 0.0 for row in rows if row["block_size"] == block_size)


def noise_of(rows: Sequence[Row]) -> Noise:
    measured = [row for row in rows if is_measured(row)]
    others = [percent for row in measured if (percent := row.get("other_cpu_pct")) is not None]
    clocks = [percent for row in measured if (percent := row.get("gpu_clock_pct")) is not None]
    return {
        "num_measured": len(measured),
        "num_noisy": sum(noise_reason(row) is not None for row in measured),
        "noisy_above_cpu_pct": NOISY_CPU_PCT,
        "other_cpu_pct_median": median(others) if others else None,
        "other_cpu_pct_max": max(others, default=None),
        "gpu_clock_pct_median": median(clocks) if clocks else None,
        "num_reruns": sum(bool(row.get("rerun_of")) for row in rows),
    }


def prediction_errors(rows: Sequence[Row]) -> PredictionErrors:
    rows = [row for row in rows if row["predicted_status"] is not None]
    allocated = [row for row in rows if row["num_blocks_total"]]
    served = [row for row in rows if is_measured(row)]
    ran = [row for row in rows if row["status"] not in ("timeout", "crash", "rank_died", "skipped_oom_dominated")]
    block_errors = [_error_pct(row["num_blocks_predicted"], row["num_blocks_total"]) for row in allocated]
    tells_bytes = not allocated or any(row["block_bytes"] is not None for row in allocated)
    timed = [row for row in served if has_speed(row) and row["pred_output_throughput"] is not None]
    speed_errors = [abs(_error_pct(row["pred_output_throughput"], row["output_throughput"])) for row in timed]
    informed = [error for row, error in zip(timed, speed_errors, strict=True) if not _is_blind(row)]
    return {
        "num_compared": len(allocated),
        "block_bytes_equal": sum(row["block_bytes"] == row["block_bytes_predicted"] for row in allocated)
        if tells_bytes
        else None,
        "num_blocks_equal": sum(row["num_blocks_total"] == row["num_blocks_predicted"] for row in allocated),
        "num_blocks_max_error_pct": max((abs(error) for error in block_errors), default=None),
        "num_outcomes_compared": len(ran),
        "outcomes_equal": sum(row["status"] == row["predicted_status"] for row in ran),
        "num_served": len(served),
        "max_concurrency_equal": sum(row["pred_max_concurrency"] == row["meas_max_concurrency"] for row in served),
        "num_timed": len(timed),
        "num_informed": len(informed),
        "output_throughput_median_error_pct": median(speed_errors) if speed_errors else None,
        "output_throughput_informed_error_pct": median(informed) if informed else None,
    }


def _is_blind(row: Row) -> bool:
    """Whether its speed was estimated before anything was measured, as of a first trial without a profile."""
    return row.get("prediction_origin") == "roofline" and row.get("learned_time_factor") == 1


def _error_pct(predicted: float | None, measured: float | None) -> float:
    return 100 * ((predicted or 0.0) - measured) / measured if measured else 0.0


class Violation(TypedDict):
    """Two points of a line along ``axis``: ``failed`` should have worked, because ``worked`` did."""

    axis: str
    at: dict[str, float | str]
    worked: float
    failed: float
    sentence: str


def find_violations(rows: Iterable[Row]) -> list[Violation]:
    """Memory is expected to be monotone: more utilization and less context can only help a start.

    The highest utilization that survives is a boundary of its own: failures beyond it contradict nothing.
    """
    points = points_of(rows)
    violations = []
    for line in lines_along(points, "gpu_memory_utilization"):
        violations += _violations_along("gpu_memory_utilization", _up_to_the_last_start(line))
    for line in lines_along(points, "max_model_len"):
        violations += _violations_along("max_model_len", line[::-1])
    return violations


def _violations_along(axis: BoundaryAxis, hardest_first: Sequence[Point]) -> list[Violation]:
    violations: list[Violation] = []
    worked: Point | None = None
    for point in hardest_first:
        if point.starts:
            worked = worked or point
        elif point.fails and worked is not None:
            violations.append(_violation(axis, worked, point))
    return violations


def _up_to_the_last_start(line: list[Point]) -> list[Point]:
    last = max((index for index, point in enumerate(line) if point.starts), default=-1)
    return line[: last + 1]


def _violation(axis: BoundaryAxis, worked: Point, failed: Point) -> Violation:
    good, bad = worked.value(axis), failed.value(axis)
    return {
        "axis": axis,
        "at": failed.others(axis),
        "worked": good,
        "failed": bad,
        "sentence": f"{axis} {bad:,} failed although {good:,} worked with otherwise the same settings",
    }


class DraftGain(TypedDict):
    """One setting with drafts. gain: tokens a second while it decoded (1 / mean TPOT) over those without drafts.

    gain_predicted: by the load model, at the acceptance that was measured; None without a calibration.
    """

    num_speculative_tokens: int
    acceptance_rate: float | None
    gain: float
    gain_predicted: float | None
    sentence: str


def speculation_gains(rows: Sequence[Row]) -> list[DraftGain]:
    """Return for each setting with drafts that also ran without; medians of their runs."""
    excluded = {exclusion.trial_id for exclusion in excluded_runs(rows)}
    groups: dict[tuple[TrialSettings, object], list[Row]] = {}
    for row in rows:
        if has_speed(row) and row.get("mean_tpot_ms") and row["trial_id"] not in excluded:
            load = tuple(row.get(name) for name in LOAD_NAMES)
            groups.setdefault((settings_of(row), load), []).append(row)
    shown = shown_in(rows)
    return [
        _gain(settings, drafted, groups[without], shown)
        for (settings, load), drafted in groups.items()
        if settings.num_speculative_tokens
        and (without := (settings.with_changes(num_speculative_tokens=0), load)) in groups
    ]


def _gain(settings: TrialSettings, drafted: Sequence[Row], plain: Sequence[Row], shown: Sequence[str]) -> DraftGain:
    gain = _median(plain, "mean_tpot_ms") / _median(drafted, "mean_tpot_ms")
    predicted = [value for row in drafted if (value := row.get("pred_speculation_gain"))]
    rates = [value for row in drafted if (value := row.get("acceptance_rate")) is not None]
    expected, rate = (median(each) if each else None for each in (predicted, rates))
    accepted = "nothing was drafted" if rate is None else f"{100 * rate:.0f} % of the drafts accepted"
    beside = "" if expected is None else f", {expected:.2f} predicted at this acceptance"
    sentence = f"{settings_text(settings, shown)}: {gain:.2f} times the tokens a second{beside} ({accepted})"
    return {
        "num_speculative_tokens": settings.num_speculative_tokens,
        "acceptance_rate": rate,
        "gain": gain,
        "gain_predicted": expected,
        "sentence": sentence,
    }


def _median(rows: Sequence[Row], name: str) -> float:
    return float(median(row[name] for row in rows))  # type: ignore[literal-required]
