"""What a run says in words: recommendations, boundaries, KV waste, predictions. Read from the summary, which the sweep
wrote with everything at hand; without one, the recommendation and the waste are made from the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final

from kvplan.reports.selection import AXIS_COLUMNS, best_trial, summary_best
from kvplan.reports.statuses import in_order, look_of
from kvplan.reports.wording import plural, setting, short_number
from kvplan.runs.reader import Run, Trial

_GOALS: Final = {
    "slo": "Fastest within the service level",
    "output_throughput": "Highest throughput",
    "median_tpot_ms": "Shortest time per token",
    "p99_ttft_ms": "Shortest time to the first token",
}
# Label and unit of the figures that a recommendation shows, in this order.
_FIGURES: Final = {
    "output_throughput": ("output throughput", "tokens/s"),
    "median_ttft_ms": ("median TTFT", "ms"),
    "p99_ttft_ms": ("p99 TTFT", "ms"),
    "median_tpot_ms": ("median TPOT", "ms"),
    "p99_tpot_ms": ("p99 TPOT", "ms"),
    "kv_usage_max": ("KV pool at most used", "%"),
    "frag_pct": ("KV waste", "%"),
    "num_preemptions": ("preemptions", ""),
    "goodput_pct": ("requests within the service level", "%"),
    "usd_per_mtok_out": ("price of a million output tokens", "USD"),
}
# Share of the processor time taken by others from which timings are called noisy.
_NOISY_PCT: Final = 15.0


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Settings to deploy: why, what they gave, and commands to paste (name of the engine -> command)."""

    title: str
    reason: str
    settings: Mapping[str, str]
    figures: Mapping[str, str]
    commands: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class KvWaste:
    """Share of KV memory that holds tokens, in %, paged as measured and under contiguous reservation."""

    paged_pct: float
    contiguous_pct: float
    block_size: float | None
    max_model_len: float | None


def recommendations(run: Run) -> list[Recommendation]:
    """The summary's, in its order; without a summary one from the rows; [] where nothing was served."""
    found = [_from_summary(entry) for entry in summary_best(run) if isinstance(entry.get("settings"), dict)]
    if found:
        return _merged(found)
    best = best_trial(run)
    return [] if best is None else [_from_trial(best)]


def _merged(found: list[Recommendation]) -> list[Recommendation]:
    """One entry per setting: what is best for two goals is said once, with both."""
    by_settings: dict[tuple[str, ...], Recommendation] = {}
    for entry in found:
        key = tuple(entry.settings.values())
        first = by_settings.get(key)
        by_settings[key] = entry if first is None else replace(first, title=_joined_titles(first.title, entry.title))
    return list(by_settings.values())


def _joined_titles(first: str, second: str) -> str:
    return f"{first}, {second[:1].lower()}{second[1:]}"


def _from_summary(entry: Mapping[str, Any]) -> Recommendation:
    goal = str(entry.get("goal") or "")
    figures, commands = entry.get("figures"), entry.get("commands")
    runs = entry.get("num_runs")
    repeated = f", median of {runs} runs" if isinstance(runs, int) and runs > 1 else ""
    status = str(entry.get("status") or "")
    ended = f" Status {status}: {look_of(status).meaning}." if status not in ("", "ok") else ""
    return Recommendation(
        title=_GOALS.get(goal, goal.replace("_", " ")),
        reason=_sentence(str(entry.get("reason") or "") + repeated) + ended,
        settings={name: setting(value) for name, value in _settings(entry).items() if value is not None},
        figures=_figures(figures if isinstance(figures, dict) else {}, entry.get("spread")),
        commands={str(k): str(v) for k, v in commands.items() if v} if isinstance(commands, dict) else {},
    )


def _settings(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Settings, and the load where one was searched."""
    load = entry.get("load")
    found = {**entry["settings"]}
    if entry.get("goal") == "slo" and isinstance(load, dict):
        found |= {name: value for name, value in load.items() if value not in (None, "inf")}
    return found


def _from_trial(trial: Trial) -> Recommendation:
    settings = {name: setting(trial.row.get(name)) for name in AXIS_COLUMNS if trial.row.get(name) is not None}
    options = " ".join(f"--{name.replace('_', '-')} {trial.row[name]}" for name in settings)
    return Recommendation(
        title=_GOALS["output_throughput"],
        reason=f"Most output tokens per second of the trials at hand (status {trial.status}); there is no summary.",
        settings=settings,
        figures=_figures(trial.row),
        commands={"vllm": f"vllm serve {trial.text('model_id')} {options}"},
    )


def _sentence(text: str) -> str:
    """With a capital, unless it begins with an identifier, and a full stop."""
    first = text[:1] if "_" in text.partition(" ")[0] else text[:1].upper()
    return first + text[1:].rstrip(".") + "." if text else ""


def _figures(values: Mapping[str, Any], spread: object = None) -> dict[str, str]:
    """Label -> figure with its unit, and behind it the lowest and highest of several runs where they differ."""
    found = {}
    ranges = spread if isinstance(spread, dict) else {}
    for name, (label, unit) in _FIGURES.items():
        value = values.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            scale = 100 if name == "kv_usage_max" else 1
            text = f"{short_number(scale * value)} {unit}".rstrip()
            low, high = ranges.get(name) or (value, value)
            apart = f" ({short_number(scale * low)} to {short_number(scale * high)})" if low != high else ""
            found[label] = text + apart
    return found


def status_counts(run: Run) -> dict[str, int]:
    """status -> number of trials, from best to worst."""
    counts = Counter(trial.status for trial in run.trials)
    return {status: counts[status] for status in in_order(set(counts))}


def sentences(run: Run, key: str) -> list[str]:
    """The ``sentence`` of every entry of a list in the summary (boundaries, violations)."""
    listed = run.summary.get(key)
    entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    return list(dict.fromkeys(_sentence(str(entry["sentence"])) for entry in entries if entry.get("sentence")))


def kv_waste(run: Run) -> KvWaste | None:
    """From the summary; without one from the best trial."""
    found = run.summary.get("kv_waste")
    if isinstance(found, dict):
        paged, contiguous = found.get("paged_waste_pct"), found.get("contiguous_utilization_pct")
        if isinstance(paged, int | float) and isinstance(contiguous, int | float):
            return KvWaste(100 - paged, contiguous, found.get("block_size"), found.get("max_model_len"))
    best = best_trial(run)
    if best is None or (wasted := best.number("frag_pct")) is None:
        return None
    contiguous = best.number("contiguous_utilization_pct")
    if contiguous is None:
        return None
    return KvWaste(100 - wasted, contiguous, best.number("block_size"), best.number("max_model_len"))


def noise_sentence(run: Run) -> str:
    """A warning where others had much of the processor while trials ran, '' where the machine was quiet."""
    shares = [share for trial in run.measured if (share := trial.number("other_cpu_pct")) is not None]
    if not shares or median(shares) < _NOISY_PCT:
        return ""
    return (
        f"The machine was not quiet: others took {median(shares):.0f} % of its processor time in the median trial, "
        f"{max(shares):.0f} % at most. Throughput and latencies are noisy; blocks and memory are not affected."
    )


def prediction_sentences(run: Run) -> list[str]:
    """What the summary counted of the predictions, one sentence each; [] without one."""
    counted = run.summary.get("predictions")
    if not isinstance(counted, dict):
        return []
    lines = [
        _share(counted, "block_bytes_equal", "num_compared", "Bytes of a block predicted exactly"),
        _share(counted, "num_blocks_equal", "num_compared", "Number of blocks predicted exactly"),
        _share(counted, "outcomes_equal", "num_outcomes_compared", "Outcome predicted"),
        _share(counted, "max_concurrency_equal", "num_served", "Most sequences at once predicted exactly"),
        _error(counted, "num_blocks_max_error_pct", "Number of blocks, largest error"),
        _error(counted, "output_throughput_median_error_pct", "Output throughput, median error"),
    ]
    return [line for line in lines if line]


def _share(counted: Mapping[str, Any], part: str, whole: str, label: str) -> str:
    if not isinstance(counted.get(part), int) or not isinstance(counted.get(whole), int):
        return ""
    return f"{label}: {counted[part]} of {plural(counted[whole], 'trial')}."


def _error(counted: Mapping[str, Any], key: str, label: str) -> str:
    value = counted.get(key)
    return f"{label}: {short_number(value)} %." if isinstance(value, int | float) else ""
