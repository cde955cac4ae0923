"""Scores the ranges of predicted speeds on sweeps that the calibration did not see.

Run: python tools/score_speed_ranges.py DIR...

    DIR...  directories of `kvplan sweep` on one device, of any models and loads

Each sweep with enough settings is calibrated as `kvplan calibrate` does, and predicts every other. A range holds a
figure when it lies between predicted / (1 + e) and predicted / (1 - e), e being what a deployment on this device gets:
the conformal 90 % quantile of the errors on held-out settings, wider for a model that was not calibrated, and what
another run adds (``ANOTHER_RUN``). "held out": what another run adds is fitted to the other sweeps, without the one
that is scored. Rows that were served while other processes used the CPU are left out, as in a calibration, and counted.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from kvplan.calibrate.calibration import calibrate_directories, profile_document  # noqa: E402
from kvplan.calibrate.scoring import FIGURES, conformal_quantile, score_trials  # noqa: E402
from kvplan.calibrate.trials import TrialSet, read_trial_sets  # noqa: E402
from kvplan.catalog.devices.measured import MeasuredProfile, read_measured  # noqa: E402
from kvplan.errors import KvplanError  # noqa: E402
from kvplan.estimate.speed.steps.clocks import ANOTHER_RUN, DeviceSpeed  # noqa: E402


@dataclass(frozen=True, slots=True)
class FigureError:
    """One figure of one row of ``scored``, predicted by the calibration of ``fitted``.

    ``error``: |predicted / measured - 1|; ``allowed``: what its range allows for.
    """

    fitted: str
    scored: str
    figure: str
    error: float
    allowed: float

    @property
    def allowed_within_run(self) -> float:
        """What the range would allow for without what another run adds."""
        return math.sqrt(max(self.allowed**2 - ANOTHER_RUN**2, 0.0))

    @property
    def missing(self) -> float:
        """What another run has to add for the range to hold this figure."""
        return math.sqrt(max(self.error**2 - self.allowed_within_run**2, 0.0))


def calibrated(directory: Path) -> MeasuredProfile:
    """The profile that `kvplan calibrate` would keep of this sweep. KvplanError where it has too few settings."""
    document = profile_document(calibrate_directories([directory], held_out=0.5, seed=0))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        path.write_text(json.dumps(document), encoding="utf-8")
        return read_measured(path)


def figure_errors(fitted: str, profile: MeasuredProfile, scored: str, sweep: TrialSet) -> Iterator[FigureError]:
    """Every figure of every row of ``sweep``, which is of one model."""
    device = DeviceSpeed.of(profile, next(iter(sweep.models)), sweep.device.dtype)
    errors = score_trials(sweep.trials, device.speed.base) / 100
    for figure in FIGURES:
        for error in errors[figure].dropna().abs():
            yield FigureError(fitted, scored, figure, float(error), device.errors[figure])


def cross_errors(sweeps: Mapping[str, TrialSet], profiles: Mapping[str, MeasuredProfile]) -> list[FigureError]:
    """Each profile on every sweep but its own."""
    return [
        error
        for fitted, profile in profiles.items()
        for scored, sweep in sweeps.items()
        if scored != fitted
        for error in figure_errors(fitted, profile, scored, sweep)
    ]


def inside(errors: Iterable[FigureError], another_run: float) -> list[bool]:
    """Whether each lies in its range, if another run adds ``another_run``."""
    return [each.error <= math.hypot(each.allowed_within_run, another_run) for each in errors]


def fit_another_run(errors: Iterable[FigureError]) -> float:
    """What another run has to add for 9 in 10 to lie in their ranges."""
    return conformal_quantile([each.missing for each in errors])


def held_out_inside(errors: Sequence[FigureError]) -> list[bool]:
    """As ``inside``, each sweep with what the others need, whether as the fitted one or the scored one."""
    found = []
    for scored in sorted({each.scored for each in errors}):
        others = [each for each in errors if scored not in (each.fitted, each.scored)]
        found += inside([each for each in errors if each.scored == scored], fit_another_run(others))
    return found


def _share(found: Sequence[bool]) -> str:
    return f"{sum(found)} of {len(found)} ({sum(found) / len(found):.0%})"


def _print_sweep(name: str, sweep: TrialSet, *, is_fitted: bool) -> None:
    busy = [share for trial in sweep.trials if (share := trial.row["other_cpu_pct"]) is not None]
    other = f"other processes {median(busy):.1f} % of the CPU" if busy else "other processes unknown"
    left_out = sum(count for reason, count in sweep.excluded.items() if reason.startswith("other processes"))
    load = sweep.sources[0]["workload"]
    models = ", ".join(model.rsplit("/", 1)[-1] for model in sweep.models)
    print(
        f"  {name}: {models}, {load}; {len(sweep.trials)} rows, {len(sweep.settings)} settings, {other}, "
        f"{left_out} rows left out{'; calibrated' if is_fitted else ''}"
    )


def print_scores(errors: Sequence[FigureError]) -> None:
    """How many figures lie in their ranges, of all and of each sweep."""
    print(f"another run adds {ANOTHER_RUN:g}; all sweeps together would need {fit_another_run(errors):.3f}")
    print(f"  {'figure':18s} {'within the run only':>22} {'as shipped':>22} {'held out':>22}")
    for figure in FIGURES:
        members = [each for each in errors if each.figure == figure]
        columns = (inside(members, 0.0), inside(members, ANOTHER_RUN), held_out_inside(members))
        print(f"  {figure:18s} " + " ".join(f"{_share(column):>22}" for column in columns))
    for name in sorted({each.scored for each in errors}):
        print(f"  scored on {name}: {_share(inside([each for each in errors if each.scored == name], ANOTHER_RUN))}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directories", type=Path, nargs="+", metavar="DIR")
    sweeps: dict[str, TrialSet] = {}
    profiles: dict[str, MeasuredProfile] = {}
    for directory in parser.parse_args().directories:
        try:
            sweeps[directory.name] = read_trial_sets([directory])
        except KvplanError as error:
            print(f"  {directory.name}: not scored. {error.message}")
            continue
        with suppress(KvplanError):  # too few settings: it is only predicted
            profiles[directory.name] = calibrated(directory)
    for name, sweep in sweeps.items():
        _print_sweep(name, sweep, is_fitted=name in profiles)
    print_scores(cross_errors(sweeps, profiles))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
