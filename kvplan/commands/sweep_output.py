"""What ``kvplan sweep`` prints: progress on stderr, results on stdout."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from kvplan.commands.render import print_json, print_table
from kvplan.runs.best_settings import BestSetting
from kvplan.runs.summary import KvWaste, PredictionErrors
from kvplan.runs.trials import Trial
from kvplan.sweeps.forecast.prediction import TrialPrediction
from kvplan.sweeps.forecast.timing import SECONDS_PER_LOAD, SECONDS_PER_TRIAL
from kvplan.sweeps.plan import SweepPlan
from kvplan.sweeps.progress import PlainProgress, Progress, RichProgress, format_seconds
from kvplan.sweeps.session import SweepOutcome

_GOALS: Mapping[str, str] = {
    "slo": "within SLO",
    "output_throughput": "throughput",
    "median_tpot_ms": "time per token",
    "p99_ttft_ms": "first token",
}


def make_progress() -> Progress:
    """Live on a terminal, one line per trial elsewhere."""
    return RichProgress(sys.stderr) if sys.stderr.isatty() else PlainProgress(sys.stderr)


def announce(plan: SweepPlan, directory: Path) -> None:
    for notice in plan.notices:
        print(notice, file=sys.stderr)
    print(
        f"{plan.spec.id}: {len(plan.trials)} trials of {plan.workload.as_text()}; writing {directory}", file=sys.stderr
    )


def print_dry_run(plan: SweepPlan, *, as_json: bool) -> None:
    """The trials with their predictions."""
    predictions = plan.predictions()
    seconds = sum(prediction.seconds + SECONDS_PER_TRIAL for prediction in predictions) + SECONDS_PER_LOAD
    if as_json:
        trials = [_trial_json(trial, prediction) for trial, prediction in zip(plan.trials, predictions, strict=True)]
        print_json({"schema": "kvplan.sweep-plan/1", "model_id": plan.spec.id, "seconds": seconds, "trials": trials})
        return
    for notice in plan.notices:
        print(notice, file=sys.stderr)
    head = ["trial", "utilization", "sequences", "block", "context", "blocks", "running", "outcome", "time"]
    rows = [_trial_cells(trial, prediction) for trial, prediction in zip(plan.trials, predictions, strict=True)]
    print_table(f"{plan.spec.id} on {plan.device.name}: {plan.workload.as_text()}", head, rows, text_columns=(7,))
    counts = Counter(prediction.status for prediction in predictions)
    expected = ", ".join(f"{count} {status}" for status, count in counts.items())
    print(f"{len(rows)} trials, about {format_seconds(seconds)}; expected: {expected}")


def _trial_json(trial: Trial, prediction: TrialPrediction) -> dict[str, object]:
    return {
        **trial.as_json(),
        "trial_id": trial.trial_id,
        "predicted_status": prediction.status,
        "num_blocks_predicted": prediction.num_blocks,
        "block_bytes_predicted": prediction.block_bytes,
        "pred_max_concurrency": prediction.max_concurrency,
        "predicted_seconds": round(prediction.seconds, 3),
    }


def _trial_cells(trial: Trial, prediction: TrialPrediction) -> list[str]:
    settings = trial.settings
    return [
        str(trial.number),
        f"{settings.gpu_memory_utilization:g}",
        str(settings.max_num_seqs),
        str(settings.block_size),
        f"{settings.max_model_len:,}",
        f"{prediction.num_blocks:,}",
        str(prediction.max_concurrency) if prediction.is_measured else "",
        prediction.status,
        f"{prediction.seconds:.1f} s" if prediction.is_measured else "",
    ]


def print_written(directory: Path, pictures: Sequence[Path]) -> None:
    """Which files were written."""
    names = ", ".join(["trials.jsonl", "results.csv", "summary.json", *sorted(path.name for path in pictures)])
    print(f"written to {directory}: {names}", file=sys.stderr)


def print_outcome(outcome: SweepOutcome, *, as_json: bool) -> None:
    """The summary: as JSON alone, or as tables."""
    if as_json:
        print_json(outcome.summary)
        return
    summary = outcome.summary
    if outcome.interrupted:
        done, total = summary["num_finished"], summary["num_trials"]
        print(
            f"interrupted after {done} of {total} trials; continue with --resume {outcome.directory}", file=sys.stderr
        )
    _print_best(summary["best"])
    if summary["slo"] is not None:
        _print_sentences("Within the service level", [str(search["sentence"]) for search in summary["slo"]["searches"]])
    _print_sentences("Boundaries", [str(boundary["sentence"]) for boundary in summary["boundaries"]])
    _print_sentences("Contradicting a boundary", [violation["sentence"] for violation in summary["violations"]])
    _print_sentences("Excluded from all medians", [str(excluded["sentence"]) for excluded in summary["excluded"]])
    _print_waste(summary["kv_waste"])
    _print_predictions(summary["predictions"])
    counts = ", ".join(f"{count} {status}" for status, count in summary["status_counts"].items())
    print(f"\n{summary['num_finished']} trials: {counts}")


def _print_best(best: Sequence[BestSetting]) -> None:
    if not best:
        print("No trial served its requests.")
        return
    head = ["best", "utilization", "sequences", "block", "context", "tokens/s", "TTFT p99 ms", "TPOT ms", "KV waste %"]
    rows = []
    for entry in best:
        settings, figures = entry["settings"], entry["figures"]
        rows.append(
            [
                _GOALS[entry["goal"]],
                f"{settings['gpu_memory_utilization']:g}",
                str(settings["max_num_seqs"]),
                str(settings["block_size"]),
                f"{settings['max_model_len']:,}",
                f"{figures['output_throughput']:,.1f}",
                f"{figures['p99_ttft_ms']:,.0f}",
                "" if figures["median_tpot_ms"] is None else f"{figures['median_tpot_ms']:,.1f}",
                f"{figures['frag_pct']:.1f}",
            ]
        )
    print_table("Best settings", head, rows)
    print(f"  {best[0]['commands']['vllm']}")


def _print_sentences(title: str, sentences: Sequence[str]) -> None:
    if sentences:
        print(f"\n{title}")
        for sentence in sentences:
            print(f"  {sentence}")


def _print_waste(waste: KvWaste | None) -> None:
    if waste is None:
        return
    print(
        f"\nKV waste: {waste['paged_waste_pct']:.1f} % paged (block {waste['block_size']}), "
        f"{waste['contiguous_waste_pct']:.1f} % if every sequence reserved {waste['max_model_len']:,} tokens"
    )


def _print_predictions(predictions: PredictionErrors) -> None:
    compared = predictions["num_compared"]
    if compared:
        print(
            f"Predicted correctly before the start: block size in bytes for {predictions['block_bytes_equal']} of "
            f"{compared} trials, number of blocks for {predictions['num_blocks_equal']} (largest error "
            f"{predictions['num_blocks_max_error_pct']:.2f} %), outcome for {predictions['outcomes_equal']} of "
            f"{predictions['num_outcomes_compared']}"
        )
