"""Predicts loads that a calibration has not seen, and compares with what kvplan's own engine measured under them.

    python tools/score_load_model.py CALIBRATION_DIR LOAD_DIR...

CALIBRATION_DIR is a directory of `kvplan sweep`; step times are fitted to its rows. Each LOAD_DIR is one of a sweep
(requests are sent between steps: `batching`) or of `kvplan load` against `kvplan serve` (they come at any moment:
`queueing`), on the same machine and model. Their requests (lengths, arrivals, in flight at most) are played with the
settings of the run. Prints predicted / measured - 1 of each figure, and its median.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from kvplan.calibrate.peaks import expected_speed  # noqa: E402
from kvplan.calibrate.scoring import fit_trials  # noqa: E402
from kvplan.calibrate.trials import MeasuredTrial, read_trial_sets  # noqa: E402
from kvplan.estimate.speed.batching import simulate_requests  # noqa: E402
from kvplan.estimate.speed.queueing.figures import Distribution, PlayedRequest, played_figures  # noqa: E402
from kvplan.estimate.speed.simulation import Simulation  # noqa: E402
from kvplan.estimate.speed.step_time import Speed, StepTimes  # noqa: E402

FIGURES: Final = ("throughput", "TPOT p50", "TTFT p50", "TTFT p99")


@dataclass(frozen=True, slots=True)
class Scored:
    """One run: (predicted, measured) of each of FIGURES; tokens per second, and seconds."""

    name: str
    load: str
    pairs: tuple[tuple[float, float], ...]

    @property
    def errors(self) -> list[float]:
        return [predicted / measured - 1 for predicted, measured in self.pairs]


def score_trial(name: str, trial: MeasuredTrial, speed: Speed) -> Scored:
    """A trial of a sweep."""
    times = StepTimes(trial.shape, speed)
    simulated = simulate_requests(trial.requests, trial.limits, times, max_concurrency=trial.max_concurrency)
    found = played_figures(_requests(simulated), simulated.num_preemptions, simulated.max_running)
    row = trial.row
    tpot = found.tpot or Distribution(0.0, 0.0, 0.0)
    pairs = (
        (simulated.output_throughput, row["output_throughput"]),
        (tpot.median, row["median_tpot_ms"] / 1000),
        (found.ttft.median, row["median_ttft_ms"] / 1000),
        (found.ttft.p99, row["p99_ttft_ms"] / 1000),
    )
    rate = row["request_rate"]
    load = f"{rate} requests/s" if trial.arrives_over_time else f"at most {trial.max_concurrency or 'all'} in flight"
    return Scored(name, f"{len(trial.requests)} requests, {load}, {row['max_num_seqs']} seats", pairs)


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


def print_scores(scores: Iterable[Scored]) -> None:
    found = list(scores)
    print(f"{'':50}" + "".join(f"{figure:>24}" for figure in FIGURES))
    for score in found:
        cells = (f"{_short(told)} / {_short(seen)} {100 * (told / seen - 1):+4.0f} %" for told, seen in score.pairs)
        print(f"{score.name + ': ' + score.load:50}" + "".join(f"{cell:>24}" for cell in cells))
    medians = [statistics.median(abs(score.errors[index]) for score in found) for index in range(len(FIGURES))]
    print(f"{'median |error|':50}" + "".join(f"{100 * each:22.1f} %" for each in medians))


def _short(value: float) -> str:
    return f"{value:,.1f}" if value >= 10 else f"{1000 * value:,.1f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("calibration", type=Path)
    parser.add_argument("loads", type=Path, nargs="+")
    arguments = parser.parse_args()
    fitted = read_trial_sets([arguments.calibration])
    speed = fit_trials(fitted.trials, expected_speed(fitted.device, None))
    print_scores(
        score_trial(path.name, trial, speed) for path in arguments.loads for trial in read_trial_sets([path]).trials
    )


if __name__ == "__main__":
    main()
