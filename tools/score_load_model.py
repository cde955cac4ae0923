"""Predicts loads that a calibration has not seen, and compares with what kvplan's own engine measured under them.

    python tools/score_load_model.py DIR...

Each DIR is one of `tools/measure_loads.py`, or a sweep whose trials have several loads. Step times are fitted to its
trials with all requests at once, as `kvplan calibrate` does; the others, under a rate or with so many in flight, are
played with their own requests (lengths, arrivals) and settings. Prints predicted / measured of each figure (medians of
a load's runs), the median error over all of them, and how far apart two runs of one load in one directory are. Trials
on a busy machine are left out and counted.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from kvplan.calibrate.peaks import expected_speed  # noqa: E402
from kvplan.calibrate.scoring import fit_trials  # noqa: E402
from kvplan.calibrate.trials import MeasuredTrial, TrialSet, read_trial_sets  # noqa: E402
from kvplan.estimate.speed.queueing.figures import Distribution, PlayedRequest, played_figures  # noqa: E402
from kvplan.estimate.speed.simulation.batching import simulate_requests  # noqa: E402
from kvplan.estimate.speed.simulation.interface import Simulation  # noqa: E402
from kvplan.estimate.speed.steps.step_time import Speed, StepTimes  # noqa: E402

MOST_OTHER_CPU_PCT: Final = 10
"""A trial during which other processes used more of the CPU than this is left out, here and of the fit."""
FIGURES: Final = ("tokens/s", "TPOT p50, ms", "TTFT p50, ms", "TTFT p99, ms")


@dataclass(frozen=True, slots=True)
class Scored:
    """One run of a load: of each of FIGURES what was predicted and measured."""

    load: str
    predicted: tuple[float, ...]
    measured: tuple[float, ...]

    @property
    def errors(self) -> tuple[float, ...]:
        return tuple(told / seen - 1 for told, seen in zip(self.predicted, self.measured, strict=True))


def score_directory(found: TrialSet) -> list[Scored]:
    """Every load of a directory, predicted by its other trials."""
    undisturbed = [trial for trial in found.trials if not is_disturbed(trial)]
    speed = fit_trials([each for each in undisturbed if not is_load(each)], expected_speed(found.device, None))
    return [score_trial(each, speed) for each in sorted(filter(is_load, undisturbed), key=_size)]


def _size(trial: MeasuredTrial) -> tuple[int, float]:
    """Rates first, then closed loops, each by size."""
    return trial.max_concurrency or 0, float(trial.row["request_rate"] or 0.0)


def is_disturbed(trial: MeasuredTrial) -> bool:
    return (trial.row["other_cpu_pct"] or 0) > MOST_OTHER_CPU_PCT


def is_load(trial: MeasuredTrial) -> bool:
    """Whether its requests come one after the other."""
    return trial.arrives_over_time or trial.max_concurrency is not None


def score_trial(trial: MeasuredTrial, speed: Speed) -> Scored:
    """One trial, played with ``speed``."""
    times = StepTimes(trial.shape, speed)
    simulated = simulate_requests(trial.requests, trial.limits, times, max_concurrency=trial.max_concurrency)
    found = played_figures(_requests(simulated), simulated.num_preemptions, simulated.max_running)
    row, tpot = trial.row, found.tpot or Distribution(0.0, 0.0, 0.0)
    predicted = (
        simulated.output_throughput,
        *(1000 * each for each in (tpot.median, found.ttft.median, found.ttft.p99)),
    )
    names = ("output_throughput", "median_tpot_ms", "median_ttft_ms", "p99_ttft_ms")
    load = f"{row['request_rate']} requests/s" if trial.arrives_over_time else f"{trial.max_concurrency} in flight"
    return Scored(load, predicted, tuple(float(row[name] or 0.0) for name in names))  # type: ignore[literal-required]


def _requests(simulated: Simulation) -> list[PlayedRequest]:
    ends = simulated.loads.end_seconds
    return [
        PlayedRequest(
            each.num_prompt_tokens,
            each.num_output_tokens,
            each.arrival_seconds,
            ends[each.token_steps[0][0]],
            ends[each.token_steps[-1][1] - 1],
        )
        for each in simulated.requests
    ]


def print_scores(directories: Sequence[Sequence[Scored]]) -> None:
    """A table in Markdown: a line for each load, then the errors."""
    by_load: dict[str, list[Scored]] = defaultdict(list)
    for scored in directories:
        for each in scored:
            by_load[each.load].append(each)
    everything = [each for scored in directories for each in scored]
    apart = [pair for scored in directories for pair in _repeated(scored)]
    _print_row("predicted / measured", (f"{figure}, error" for figure in FIGURES))
    _print_row("---", ("---" for _ in FIGURES))
    for load, runs in by_load.items():
        _print_row(f"{load}, {len(runs)} runs", (_cell(runs, index) for index in range(len(FIGURES))))
    _print_row(f"median error of {len(everything)} runs", _percents([each.errors for each in everything]))
    _print_row(f"a load run twice, {len(apart)} pairs", _percents(apart))


def _repeated(scored: Sequence[Scored]) -> list[tuple[float, ...]]:
    """How far the second run of a load is from its first, of each figure."""
    first: dict[str, Scored] = {}
    return [
        tuple(second / one - 1 for second, one in zip(each.measured, first[each.load].measured, strict=True))
        for each in scored
        if first.setdefault(each.load, each) is not each
    ]


def _cell(runs: Sequence[Scored], index: int) -> str:
    told = statistics.median(each.predicted[index] for each in runs)
    seen = statistics.median(each.measured[index] for each in runs)
    error = statistics.median(each.errors[index] for each in runs)
    return f"{told:,.1f} / {seen:,.1f}, {100 * error:+.0f} %"


def _percents(differences: Sequence[Sequence[float]]) -> list[str]:
    if not differences:
        return ["" for _ in FIGURES]
    return [f"{100 * statistics.median(map(abs, column)):.1f} %" for column in zip(*differences, strict=True)]


def _print_row(name: str, cells: Iterable[str]) -> None:
    print(f"| {name} | {' | '.join(cells)} |")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directories", type=Path, nargs="+")
    given = parser.parse_args(arguments)
    sets = [read_trial_sets([path]) for path in given.directories]
    print_scores([score_directory(found) for found in sets])
    disturbed = sum(is_disturbed(trial) for found in sets for trial in found.trials)
    print(f"\n{disturbed} trials left out: other processes used more than {MOST_OTHER_CPU_PCT} % of the CPU")


if __name__ == "__main__":
    main()
