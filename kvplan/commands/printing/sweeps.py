"""What ``kvplan sweep`` prints: progress on stderr, results on stdout."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvplan.commands.printing.render import print_json, print_table
from kvplan.foreign_text import unguarded
from kvplan.runs.answers.beside import beside_phrases
from kvplan.runs.answers.best_settings import BestSetting
from kvplan.runs.answers.outliers import noise_reason
from kvplan.runs.answers.summary import KvWaste, PredictionErrors
from kvplan.runs.columns import Row
from kvplan.runs.rows import is_measured
from kvplan.runs.setting_text import cells, heads, setting_values, text_columns, values_of
from kvplan.runs.statuses import STATUS_BRIEF, context_limit_text
from kvplan.runs.trials import Trial, TrialSettings
from kvplan.sweeps.capacity import COUNTED_NOTICE
from kvplan.sweeps.design import base_settings
from kvplan.sweeps.forecast.prediction import TrialPrediction
from kvplan.sweeps.forecast.timing import SECONDS_PER_LOAD, SECONDS_PER_START, SECONDS_PER_TRIAL
from kvplan.sweeps.plan import SweepPlan
from kvplan.sweeps.progress import PlainProgress, Progress, RichProgress, format_seconds
from kvplan.sweeps.session import SweepOutcome
from kvplan.terminal import fitted
from kvplan.units import format_bytes, plural

_GOALS: Mapping[str, str] = {
    "slo": "within SLO",
    "output_throughput": "throughput",
    "median_tpot_ms": "time per token",
    "p99_ttft_ms": "first token",
    "max_running": "at once",
}
_MOST_NUMBERS = 8


def make_progress() -> Progress:
    """Live on a terminal, one line per trial elsewhere."""
    return RichProgress(unguarded(sys.stderr)) if sys.stderr.isatty() else PlainProgress(sys.stderr)


def announce(plan: SweepPlan, directory: Path) -> None:
    for notice in plan.notices:
        print(notice, file=sys.stderr)
    trials = plural(len(plan.trials), "trial")
    print(f"{plan.spec.title}: {trials} of {plan.workload.as_text()}; writing {directory}", file=sys.stderr)


def print_dry_run(plan: SweepPlan, *, as_json: bool) -> None:
    """The trials with their predictions."""
    predictions = plan.predictions()
    starts = len({trial.settings for trial in plan.trials})
    loading = SECONDS_PER_LOAD if plan.engine is None else SECONDS_PER_START * starts
    seconds = sum(prediction.seconds + SECONDS_PER_TRIAL for prediction in predictions) + loading
    if as_json:
        trials = [_trial_json(trial, prediction) for trial, prediction in zip(plan.trials, predictions, strict=True)]
        print_json(
            {"schema": "kvplan.sweep-plan/1", "model_id": plan.spec.served_id, "sized_as": plan.spec.sized_as}
            | {"seconds": seconds, "assumed": assumed_of_gpu(plan), "trials": trials}
        )
        return
    assumed = assumed_of_gpu(plan)
    for notice in (*plan.notices, *((assumed,) if assumed else ())):
        print(notice, file=sys.stderr)
    head = ["trial", *heads(plan.shown), "blocks", "running", "outcome", "time"]
    rows = [
        _trial_cells(trial, prediction, plan.shown) for trial, prediction in zip(plan.trials, predictions, strict=True)
    ]
    columns = (*text_columns(plan.shown, first=1), head.index("outcome"))
    print_table(f"{plan.spec.title} on {plan.device.name}: {plan.workload.as_text()}", head, rows, text_columns=columns)
    counts = Counter(prediction.status for prediction in predictions)
    expected = ", ".join(f"{count} {status}" for status, count in counts.items())
    print(f"{plural(len(rows), 'trial')}, about {format_seconds(seconds)}; expected: {expected}")


def assumed_of_gpu(plan: SweepPlan) -> str | None:
    """What a dry run, which opens no GPU, takes for granted of it; None where it has nothing to do with one."""
    if plan.device.kind != "cuda" or plan.engine is not None or plan.options.is_counted:
        return None
    memory = plan.predictor.own_memory(base_settings(plan.predictor))
    overhead, graphs = (format_bytes(size, digits=0) for size in (memory.overhead_bytes, memory.graph_bytes))
    return (
        f"a dry run opens no GPU: that torch can use it, {overhead} for context and libraries and {graphs} for "
        "captured steps are assumed; the sweep measures them first, and plans its boundaries by them"
    )


def _trial_json(trial: Trial, prediction: TrialPrediction) -> dict[str, object]:
    return {
        **trial.as_json(),
        "trial_id": trial.trial_id,
        "predicted_status": prediction.status,
        "num_blocks_predicted": prediction.num_blocks,
        "block_bytes_predicted": prediction.block_bytes,
        "num_clipped_prompts": prediction.requests.num_clipped,
        "pred_max_concurrency": prediction.max_concurrency,
        "predicted_seconds": round(prediction.seconds, 3),
    }


def _trial_cells(trial: Trial, prediction: TrialPrediction, shown: Sequence[str]) -> list[str]:
    return [
        str(trial.number),
        *cells(values_of(trial), shown),
        f"{prediction.num_blocks:,}",
        str(prediction.max_concurrency) if prediction.is_measured else "",
        _expected_outcome(prediction),
        f"{prediction.seconds:.1f} s" if prediction.is_measured else "",
    ]


def _expected_outcome(prediction: TrialPrediction) -> str:
    if prediction.status != "rejected_ctx" or not prediction.largest_context:
        return prediction.status
    return f"rejected_ctx ({context_limit_text(prediction.largest_context, prediction.context_limited_by)})"


def print_written(directory: Path, pictures: Sequence[Path]) -> None:
    """Which files were written."""
    names = ", ".join(["trials.jsonl", "results.csv", "summary.json", *sorted(path.name for path in pictures)])
    print(fitted(f"written to {directory}: {names}", sys.stderr, further="  "), file=sys.stderr)


def print_undrawn(directory: Path) -> None:
    """The same of a run that was stopped: its pictures take longer than one waits for then."""
    print(f"written to {directory}; `kvplan report {shlex.quote(str(directory))}` draws its page", file=sys.stderr)


def print_outcome(outcome: SweepOutcome, *, as_json: bool) -> None:
    """The summary: as JSON alone, or as tables. What disturbed the sweep goes to stderr either way."""
    _warn_of_noise(outcome.rows)
    if as_json:
        print_json(outcome.summary)
        return
    summary = outcome.summary
    if outcome.interrupted:
        done, total = summary["num_finished"], summary["num_trials"]
        print(
            f"interrupted after {done} of {plural(total, 'trial')}; continue with --resume {outcome.directory}",
            file=sys.stderr,
        )
    if summary["best"] and summary["is_counted"]:
        _print_most_at_once(summary["best"], outcome.shown)
    elif summary["best"]:
        _print_best(summary["best"], outcome.shown)
    else:
        print(nothing_served(outcome.rows))
    if summary["slo"] is not None:
        _print_sentences("Within the service level", [str(search["sentence"]) for search in summary["slo"]["searches"]])
    _print_sentences("Boundaries", [str(boundary["sentence"]) for boundary in summary["boundaries"]])
    _print_sentences("Contradicting a boundary", [violation["sentence"] for violation in summary["violations"]])
    _print_sentences("Excluded from all medians", [str(excluded["sentence"]) for excluded in summary["excluded"]])
    _print_sentences("Speculation", [each["sentence"] for each in summary["speculation"]])
    _print_waste(summary["kv_waste"], summary["layout_waste_pct"])
    _print_predictions(summary["predictions"])
    if summary["is_counted"]:
        print(f"\n{COUNTED_NOTICE[:1].upper()}{COUNTED_NOTICE[1:]}.")
    if summary["stand_in"] is not None:
        print(f"\n{summary['stand_in']['sentence']}")
    counts = ", ".join(f"{count} {status}" for status, count in summary["status_counts"].items())
    if counts:
        print(f"\n{plural(summary['num_finished'], 'trial')}: {counts}")


def nothing_served(rows: Sequence[Row]) -> str:
    """Why no trial served its requests: the commonest way in which they ended, with an example's own words."""
    if not rows:
        return "No trial was finished."
    (status, count), *_ = Counter(str(row["status"]) for row in rows).most_common()
    example = next((row["error"] for row in rows if row["status"] == status and row["error"]), None)
    reason = f"{status}, {STATUS_BRIEF.get(status, 'which is unknown here')}"
    share = "all of them" if count == len(rows) else f"{count:,} of {plural(len(rows), 'trial')}"
    return f"No trial served its requests; {share} ended as {reason}." + (f" {example}" if example else "")


def _warn_of_noise(rows: Sequence[Row]) -> None:
    """One line on stderr if something else used the machine while trials were timed."""
    noisy = [row for row in rows if noise_reason(row) is not None]
    if not noisy:
        return
    numbers = ", ".join(str(row["trial_number"]) for row in noisy[:_MOST_NUMBERS])
    more = f" and {len(noisy) - _MOST_NUMBERS} more" if len(noisy) > _MOST_NUMBERS else ""
    measured = plural(sum(map(is_measured, rows)), "served trial")
    share = max((row.get("other_cpu_pct") or 0.0 for row in noisy), default=0.0)
    busy = f"other processes used up to {share:.0f} % of the CPU" if share else "the GPU was throttled"
    print(
        f"warning: the machine was busy during {len(noisy)} of {measured} ({numbers}{more}): {busy}. "
        "Their throughput and latency are not the engine's own; blocks, memory and outcomes are not affected.",
        file=sys.stderr,
    )


def _print_best(best: Sequence[BestSetting], shown: Sequence[str]) -> None:
    head = ["best", *heads(shown), "tokens/s", "TTFT p99 ms", "TPOT ms", "KV waste %"]
    rows = []
    for entry in best:
        figures = entry["figures"]
        rows.append(
            [
                _GOALS[entry["goal"]],
                *cells({**_all_settings(entry), **entry["load"]}, shown),
                f"{figures['output_throughput']:,.1f}",
                f"{figures['p99_ttft_ms']:,.0f}",
                "" if figures["median_tpot_ms"] is None else f"{figures['median_tpot_ms']:,.1f}",
                "" if figures["frag_pct"] is None else f"{figures['frag_pct']:.1f}",
            ]
        )
    print_table("Best settings", head, rows, text_columns=(0, *text_columns(shown, first=1)))
    _print_beside(best[0])
    for remark in dict.fromkeys(
        f"{_GOALS[entry['goal']]}: {entry['reason']}" for entry in best if ";" in entry["reason"]
    ):
        print(f"  {remark}")
    for command in best[0]["commands"].values():
        print(f"  {command}")


def _print_beside(entry: BestSetting) -> None:
    """What was predicted of a setting, beside what was measured."""
    phrases = beside_phrases(entry["figures"], entry.get("predicted", {}))
    if phrases:
        print(f"  {_GOALS[entry['goal']]}: {'; '.join(phrases)}")


def _all_settings(entry: BestSetting) -> dict[str, Any]:
    """Return all settings, those at their defaults too, which its record leaves out."""
    return setting_values(TrialSettings.of_known(entry["settings"]))


def _print_most_at_once(best: Sequence[BestSetting], shown: Sequence[str]) -> None:
    """The best setting of a sweep that only counted."""
    head = ["best", *heads(shown), "at once", "peak KV %", "KV waste %"]
    rows = []
    for entry in best:
        figures = entry["figures"]
        amounts = (figures["max_running"], 100 * (figures["kv_usage_max"] or 0.0), figures["frag_pct"])
        settings = cells({**_all_settings(entry), **entry["load"]}, shown)
        rows.append([_GOALS[entry["goal"]], *settings, *(f"{amount or 0.0:,.4g}" for amount in amounts)])
    print_table("Most sequences at once", head, rows, text_columns=(0, *text_columns(shown, first=1)))
    for entry in best:
        print(f"  {entry['reason'][:1].upper()}{entry['reason'][1:]}.")
    for command in best[0]["commands"].values():
        print(f"  {command}")


def _print_sentences(title: str, sentences: Sequence[str]) -> None:
    if sentences:
        print(f"\n{title}")
        for sentence in sentences:
            print(f"  {sentence}")


def _print_waste(waste: KvWaste | None, layout_waste_pct: float | None) -> None:
    """layout_waste_pct: said where it is not nothing, so for models with unlike layers."""
    if waste is None:
        return
    unlike = f"; blocks hold {layout_waste_pct:.1f} % more than the layers keep" if layout_waste_pct else ""
    print(
        f"\nKV waste: {waste['paged_waste_pct']:.1f} % paged (block {waste['block_size']}), "
        f"{waste['contiguous_waste_pct']:.1f} % if every sequence reserved {waste['max_model_len']:,} tokens{unlike}"
    )


def _print_predictions(predictions: PredictionErrors) -> None:
    compared, bytes_equal = predictions["num_compared"], predictions["block_bytes_equal"]
    if compared:
        trials = plural(compared, "trial")
        size = "" if bytes_equal is None else f"block size in bytes for {bytes_equal} of {trials}, "
        blocks = str(predictions["num_blocks_equal"]) + (f" of {trials}" if bytes_equal is None else "")
        print(
            f"Predicted correctly before the start: {size}number of blocks for {blocks} (largest error "
            f"{predictions['num_blocks_max_error_pct']:.2f} %), outcome for {predictions['outcomes_equal']} of "
            f"{predictions['num_outcomes_compared']}"
        )
