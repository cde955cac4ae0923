"""What a run says in words: recommendations, boundaries, KV waste, predictions. Read from the summary, which the sweep
wrote with everything at hand; without one, recommendation and waste are made from the rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, cast

from kvplan.reports.selection import AXIS_COLUMNS, best_trial, is_busy, listed_trials
from kvplan.reports.wording import plural, setting, short_number
from kvplan.runs.answers.beside import beside_phrases, predicted_of, ratio_sentences
from kvplan.runs.answers.deploy import LaunchCommands, deployment_of
from kvplan.runs.rows import REFERENCE_KERNELS
from kvplan.runs.statuses import MEASURED_STATUSES, STATUS_BRIEF, best_to_worst
from kvplan.runs.storage.reader import Document, FinishedTrial, Run
from kvplan.runs.trials import SETTING_NAMES
from kvplan.settings import KNOBS

_GOALS: Final = {
    "slo": "Fastest within the SLO",
    "output_throughput": "Highest throughput",
    "median_tpot_ms": "Lowest TPOT",
    "p99_ttft_ms": "Lowest TTFT",
    "max_running": "Most sequences at once",
    "slo_load": "Highest load within the SLO",
    "measured_load": "The load that was measured",
}
# Label and unit of the figures that a recommendation shows, in this order.
_FIGURES: Final = {
    "output_throughput": ("output throughput", "tokens/s"),
    "median_ttft_ms": ("median TTFT", "ms"),
    "p99_ttft_ms": ("p99 TTFT", "ms"),
    "median_tpot_ms": ("median TPOT", "ms"),
    "p99_tpot_ms": ("p99 TPOT", "ms"),
    "max_running": ("most sequences at once", ""),
    "kv_usage_max": ("peak KV pool usage", "%"),
    "frag_pct": ("KV waste", "%"),
    "num_preemptions": ("preemptions", ""),
    "goodput_pct": ("requests within the SLO", "%"),
    "usd_per_mtok_out": ("price per million output tokens", "USD"),
}
_UNSUMMARIZED: Final = "there is no summary; highest output throughput of these trials"


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Settings to deploy: why, their figures, and commands to paste (name of the engine -> command).

    beside: what was predicted beside what was measured, one phrase for each figure.
    """

    title: str
    reason: str
    settings: Mapping[str, str]
    figures: Mapping[str, str]
    commands: Mapping[str, str]
    beside: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KvWasteFinding:
    """Share of KV memory that holds tokens, in %, paged as measured and under contiguous reservation."""

    paged_pct: float
    contiguous_pct: float
    block_size: float | None
    max_model_len: float | None


def recommendation_heading(run: Run) -> str:
    """What the recommendations are called: of a server that was only loaded, nothing was there to choose."""
    return "Result" if run.first("url") else "Recommendation"


def recommendations(run: Run) -> list[Recommendation]:
    """The summary's, in its order; without a summary one from the rows; [] where nothing was served."""
    found = [_from_summary(entry) for entry in run.entries("best") if isinstance(entry.get("settings"), dict)]
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


def _object(value: object) -> Document:
    return value if isinstance(value, dict) else {}


def _from_summary(entry: Document) -> Recommendation:
    goal = str(entry.get("goal") or "")
    runs = entry.get("num_runs")
    repeated = f", median of {runs} runs" if isinstance(runs, int) and runs > 1 else ""
    status = str(entry.get("status") or "")
    ended = f" Status {status}: {STATUS_BRIEF.get(status, '')}." if status not in ("", "ok") else ""
    reason, separator, remarks = str(entry.get("reason") or "").partition("; ")
    return Recommendation(
        title=_GOALS.get(goal, goal.replace("_", " ")),
        reason=_sentence(f"{reason}{repeated}{separator}{remarks}") + ended,
        settings={name: setting(value) for name, value in _settings(entry).items() if value is not None},
        figures=_figures(_object(entry.get("figures")), _object(entry.get("spread"))),
        commands={str(name): str(text) for name, text in _object(entry.get("commands")).items() if text},
        beside=tuple(beside_phrases(_object(entry.get("figures")), _object(entry.get("predicted")))),
    )


def _settings(entry: Document) -> Document:
    """The settings, with the load where one was searched."""
    is_of_load = entry.get("goal") in ("slo", "slo_load", "measured_load")
    searched = _object(entry.get("load")) if is_of_load else {}
    load = {name: value for name, value in searched.items() if value not in (None, "inf")}
    return {**_object(entry["settings"]), **load}


def _from_trial(trial: FinishedTrial) -> Recommendation:
    names = [name for name in SETTING_NAMES if trial.value(name) not in (None, KNOBS[name].default)]
    # A row that was damaged may lack what a command needs.
    is_whole = {*AXIS_COLUMNS, "dtype"} <= set(names) and trial.text("model_id") and trial.text("device")
    deployment = deployment_of(trial.row, trial.text("model_id")) if is_whole else LaunchCommands({}, ())
    return Recommendation(
        title=_GOALS["output_throughput"],
        reason=_sentence("; ".join([f"{_UNSUMMARIZED} (status {trial.status})", *deployment.refusals])),
        settings={name: setting(trial.value(name)) for name in names},
        figures=_figures(cast(Document, trial.row), {}),
        commands=deployment.commands,
        beside=tuple(beside_phrases(cast(Document, trial.row), predicted_of(trial.row))),
    )


def _sentence(text: str) -> str:
    """With a capital, unless it begins with an identifier, and a full stop."""
    first = text[:1] if "_" in text.partition(" ")[0] else text[:1].upper()
    return first + text[1:].rstrip(".") + "." if text else ""


def _figures(values: Document, spread: Document) -> dict[str, str]:
    """Label -> figure with its unit, followed by the lowest and highest of several runs where they differ."""
    found = {}
    for name, (label, unit) in _FIGURES.items():
        value, scale = values.get(name), 100 if name == "kv_usage_max" else 1
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(scale * value):
            low, high = cast(tuple[float, float], spread.get(name) or (value, value))
            apart = f" ({short_number(scale * low)} to {short_number(scale * high)})" if low != high else ""
            found[label] = f"{short_number(scale * value)} {unit}".rstrip() + apart
    return found


def status_counts(run: Run) -> dict[str, int]:
    """status -> number of trials, from best to worst."""
    counts = run.frame["status"].value_counts()
    return {status: int(counts[status]) for status in best_to_worst(counts.index)}


def sentences(run: Run, key: str) -> list[str]:
    """The ``sentence`` of every entry of a list in the summary (boundaries, violations)."""
    found = [_sentence(str(entry["sentence"])) for entry in run.entries(key) if entry.get("sentence")]
    return list(dict.fromkeys(found))


def kv_waste(run: Run) -> KvWasteFinding | None:
    """From the summary; without one from the best trial."""
    found = _object(run.summary.get("kv_waste"))
    paged, contiguous = found.get("paged_waste_pct"), found.get("contiguous_utilization_pct")
    if isinstance(paged, int | float) and isinstance(contiguous, int | float):
        size, length = (cast(float | None, found.get(name)) for name in ("block_size", "max_model_len"))
        return KvWasteFinding(100 - paged, contiguous, size, length)
    best = best_trial(run)
    if best is None:
        return None
    wasted, held = best.number("frag_pct"), best.number("contiguous_utilization_pct")
    if wasted is None or held is None:
        return None
    return KvWasteFinding(100 - wasted, held, best.number("block_size"), best.number("max_model_len"))


_COUNTED_WEIGHTS: Final = {
    "predicted": " The size of the weights is the planner's, as predicted for the published format, not measured.",
    "counted": " The size of the weights is parameters x dtype.",
}


def counted_sentence(run: Run) -> str:
    """Say that there are no speeds and why, '' where something was computed."""
    if not run.is_counted:
        return ""
    if any(trial.number("kv_cache_tokens_vllm") for trial in run.trials):
        told = " What a GPU holds beside its KV pool is vLLM's, as predicted, not measured."
    else:
        told = _COUNTED_WEIGHTS.get(run.first("weights_origin"), "")
    return (
        "Nothing was computed (load format none): blocks, bytes, queues and preemptions are those of the engine's own "
        "scheduler and pool with random tokens, means are over steps, and there are no speeds." + told
    )


def shared_sentence(run: Run) -> str:
    """Say that layers shared their weights, '' where each had its own."""
    if run.first("dummy_layers") != "shared":
        return ""
    return (
        "Identical layers shared one copy of dummy weights but count in full: capacity is exact, speeds approximate "
        "the whole model's, as each layer still reads all its bytes from memory."
    )


def transformers_sentence(run: Run) -> str:
    """Say that classes of transformers computed the model, '' where the engine's decoder did."""
    if run.first("model_impl") != "transformers":
        return ""
    return (
        "The model ran in its class of transformers: weights and the size of a block are accounted as always; its "
        "activations are measured, not predicted, and take what the pool lacks, and speeds are those of that class."
    )


def stand_in_sentence(run: Run) -> str:
    """Say for which settings speeds on a GPU stand in for vLLM's, '' where the summary says nothing of that."""
    return str(_object(run.summary.get("stand_in")).get("sentence") or "")


def kernels_sentence(run: Run) -> str:
    """A warning where trials were timed without the engine's kernels, '' where they had them, or none says."""
    slow = run.measured[run.measured["kernels"] == REFERENCE_KERNELS]
    if slow.empty:
        return ""
    which = plural(len(slow), "timed trial") if len(slow) < len(run.measured) else "every timed trial"
    return (
        f"Measured without compiled kernels: in {which} the engine ran on plain torch, 5 to 26 times slower "
        "(column kernels: reference). Throughput and latency say nothing of the engine; blocks, memory and outcomes "
        "are not affected."
    )


def noise_sentence(run: Run) -> str:
    """A warning where other processes used much of the CPU while trials ran, '' where the machine was quiet."""
    if not is_busy(run):
        return ""
    shares = run.measured["other_cpu_pct"].dropna()
    return (
        f"The machine was busy: other processes used {shares.median():.0f} % of its CPU in the median trial and "
        f"{shares.max():.0f} % at most. Throughput and latency are noisy; block counts and memory are not affected."
    )


def clipped_sentence(run: Run) -> str:
    """A warning where prompts were shortened to fit the context, '' where none was."""
    clipped = run.measured[run.measured["num_clipped_prompts"] > 0]
    if clipped.empty:
        return ""
    lengths = ", ".join(setting(length) for length in sorted(clipped["max_model_len"].unique()))
    number = plural(len(clipped), "trial")
    is_mixed = len(clipped) < len(run.measured) or "," in lengths
    mixed = ": they did less work than the others, so their speeds do not compare" if is_mixed else ""
    return f"At max_model_len {lengths} prompts were shortened to fit ({number}, column num_clipped_prompts){mixed}."


def not_listed_sentence(run: Run) -> str:
    """How many trials the tables leave out, '' where they list all."""
    number = len(run.trials) - len(listed_trials(run))
    return f"Not listed: {plural(number, 'setting')} not run because a lighter one had failed." if number else ""


_THROUGHPUT_ERROR: Final = "output_throughput_median_error_pct"


def prediction_sentences(run: Run) -> list[str]:
    """What the summary counted of the predictions, one sentence each; [] without one."""
    counted = _object(run.summary.get("predictions"))
    rows = [trial.row for trial in run.trials if trial.status in MEASURED_STATUSES]
    lines = [
        _share(counted, "block_bytes_equal", "num_compared", "Bytes per block predicted exactly"),
        _share(counted, "num_blocks_equal", "num_compared", "Number of blocks predicted exactly"),
        _share(counted, "outcomes_equal", "num_outcomes_compared", "Outcome predicted correctly"),
        _share(counted, "max_concurrency_equal", "num_served", "Peak concurrency predicted exactly"),
        _error(counted, "num_blocks_max_error_pct", "Largest error of the number of blocks"),
        _throughput_error(counted),
        *(_sentence(line) for line in ratio_sentences(rows)),
    ]
    return [line for line in lines if line]


def _share(counted: Document, part: str, whole: str, label: str) -> str:
    number, total = counted.get(part), counted.get(whole)
    if not isinstance(number, int) or not isinstance(total, int) or not total:
        return ""
    return f"{label}: {number} of {plural(total, 'trial')}."


def _throughput_error(counted: Document) -> str:
    """Error of all trials and, where some were predicted before any had run, of the others: those that plots state."""
    of_all = _error(counted, _THROUGHPUT_ERROR, "Median error of output throughput")
    of_others, timed = counted.get("output_throughput_informed_error_pct"), counted.get("num_timed")
    number = counted.get("num_informed")
    if not (of_all and isinstance(timed, int) and isinstance(number, int) and isinstance(of_others, int | float)):
        return of_all
    if number == timed:
        return of_all
    return (
        f"{of_all.removesuffix('.')} in {plural(timed, 'trial')}, {short_number(of_others)} % in the {number} "
        "that were predicted after a first one (the filled points of the plot)."
    )


def _error(counted: Document, key: str, label: str) -> str:
    value = counted.get(key)
    return f"{label}: {short_number(value)} %." if isinstance(value, int | float) else ""
