"""How well a calibration from some results predicts others: each path left out in turn.

    python tools/score_calibration.py DIR DIR... [--model NAME] [--gpu NAME] [--engine NAME]

The paths are what ``kvplan calibrate`` takes of other engines, all of one device and engine. Each line: the path that
the fit did not see, and the errors of its loads, predicted by a fit to all the others.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kvplan.calibrate.results.learning import errors, learn
from kvplan.calibrate.results.matching import match
from kvplan.calibrate.results.prior import prior_of
from kvplan.calibrate.results.reading import read_results
from kvplan.calibrate.results.served import Served
from kvplan.calibrate.scoring import summarize_errors
from kvplan.catalog.devices.measured import HeldOutError


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", type=Path, nargs="+", metavar="DIR")
    for name in ("model", "gpu", "engine"):
        parser.add_argument(f"--{name}")
    given = parser.parse_args(arguments)
    options = Served(model=given.model, gpu=given.gpu, engine=given.engine)
    if len(given.paths) < 2:
        parser.error("give at least two paths: one is predicted by the others")
    for path in given.paths:
        print(f"{path.name}: {as_text(held_out(path, [each for each in given.paths if each != path], options))}")
    return 0


def held_out(path: Path, others: Sequence[Path], options: Served) -> dict[str, HeldOutError]:
    """The errors on the results of ``path`` of a fit to those of ``others``."""
    fitted, unseen = match(read_results(others), options), match(read_results([path]), options)
    kernels = prior_of(fitted.first).kernels
    speed = learn(fitted.believing(kernels), kernels.base).speed
    return summarize_errors(errors(unseen.believing(kernels).all, speed))


def as_text(found: dict[str, HeldOutError]) -> str:
    """``output_throughput 5.1 % (p90 7.9 %), tpot ...``"""
    return ", ".join(f"{name} {error.median_pct:.1f} % (p90 {error.p90_pct:.1f} %)" for name, error in found.items())


if __name__ == "__main__":
    sys.exit(main())
