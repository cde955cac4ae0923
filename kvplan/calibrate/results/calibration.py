"""The whole of it: files of results in, coefficients with their errors and a measured profile out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvplan.calibrate.results.learning import Learned, learn
from kvplan.calibrate.results.matching import Matched, match
from kvplan.calibrate.results.prior import Prior, prior_of
from kvplan.calibrate.results.reading import read_results
from kvplan.calibrate.results.served import ServedDeployment


@dataclass(frozen=True, slots=True)
class ResultCalibration:
    """paths: what was read. prior: where coefficients come from that the results do not determine."""

    paths: tuple[Path, ...]
    matched: Matched
    prior: Prior
    learned: Learned


def calibrate_results(paths: Sequence[Path], options: ServedDeployment) -> ResultCalibration:
    """KvplanError for files that cannot be read, hold nothing served, or mix devices or engines."""
    found = match(read_results(paths), options)
    prior = prior_of(found.first)
    matched = found.believing(prior.kernels)
    return ResultCalibration(tuple(paths), matched, prior, learn(matched, prior.kernels.base))
