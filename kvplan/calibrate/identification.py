"""Which coefficients observations determine: the singular values of what they change, beside what is believed.

Columns of the Jacobian are how the logarithms of all figures change with the logarithm of a coefficient, in units of
the figures' noise and of the coefficient's own prior spread. A singular value of 1 says that the observations know a
direction as well as the prior does; directions above ``_TOLD`` are taken from the observations. Each needs one
coefficient to stand for it: those are chosen by QR with column pivoting on the right singular vectors (Golub, Klema and
Stewart 1976, "Rank degeneracy and least squares problems"; for models like these: Burth, Verghese and Velez-Reyes 1999,
"Subset selection for improved parameter estimation in on-line identification of a synchronous generator").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

_TOLD: Final = 2.0
"""The observations' word counts for at least four fifths of such a direction: 2^2 / (2^2 + 1^2)."""


@dataclass(frozen=True, slots=True)
class Identified:
    """names: the coefficients that the observations determine. singular_values: of all directions, largest first.

    condition: of the chosen columns; 1 where each is seen by itself. uncertainty: relative standard error by name.
    """

    names: tuple[str, ...]
    singular_values: tuple[float, ...]
    condition: float
    uncertainty: dict[str, float]


def identify(jacobian: np.ndarray, names: Sequence[str], spreads: Sequence[float]) -> Identified:
    """jacobian [M, P]: of log figures over their noise, by log coefficient. spreads [P]: standard deviations."""
    scaled = jacobian * np.asarray(spreads)
    values, right = np.linalg.svd(scaled, full_matrices=False)[1:]
    rank = int((values >= _TOLD).sum())
    chosen = sorted(_pivots(right[:rank]))
    columns = scaled[:, chosen]
    return Identified(
        names=tuple(names[index] for index in chosen),
        singular_values=tuple(float(value) for value in values) + (0.0,) * (len(names) - len(values)),
        condition=float(np.linalg.cond(columns)) if chosen else 1.0,
        uncertainty=_standard_errors(jacobian[:, chosen], [names[index] for index in chosen]),
    )


def _pivots(rows: np.ndarray) -> list[int]:
    """Choose as many columns of ``rows`` [R, P] as it has rows: the longest once those before are projected away."""
    left = rows.copy()
    found: list[int] = []
    for _ in range(len(rows)):
        lengths = np.linalg.norm(left, axis=0)
        lengths[found] = 0.0
        pivot = int(np.argmax(lengths))
        direction = left[:, pivot] / lengths[pivot]
        left = left - np.outer(direction, direction @ left)
        found.append(pivot)
    return found


def _standard_errors(columns: np.ndarray, names: Sequence[str]) -> dict[str, float]:
    if not names:
        return {}
    covariance = np.linalg.inv(columns.T @ columns)
    return {name: float(np.sqrt(covariance[index, index])) for index, name in enumerate(names)}
