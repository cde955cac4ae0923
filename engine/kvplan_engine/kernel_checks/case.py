"""One check: what a kernel makes of a small case, and what plain torch in float32 makes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from kvplan_engine.kernels.cuda.launching.runtime import CudaRuntime

TOLERANCE = {torch.float32: 2e-4, torch.float16: 4e-3, torch.bfloat16: 2e-2}
"""The error that is allowed, a few roundings of the type of a result (see ``Comparison.largest_error``)."""
_LEAST = 1e-6

Work = Callable[[], object]
"""Something to launch, again and again."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Results of a kernel and of torch, pair by pair."""

    found: Sequence[torch.Tensor]
    wanted: Sequence[torch.Tensor]
    tolerance: float

    def largest_error(self) -> float:
        """The largest difference, by the number's own size and that of all of them; infinite where one is no number."""
        errors = [_error(one.cpu().double(), other.cpu().double()) for one, other in self._pairs()]
        return max(errors, default=0.0)

    def _pairs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return list(zip(self.found, self.wanted, strict=True))


def _error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    if not found.numel():
        return 0.0
    size = wanted.abs() + wanted.square().mean().sqrt() + _LEAST
    return float(((found - wanted).abs() / size).nan_to_num(nan=torch.inf).max())


@dataclass(frozen=True, slots=True)
class Contest:
    """Two ways to the same result, launched in turn: the family's, and its twin's."""

    fast: Work
    twin: Work


@dataclass(frozen=True, slots=True)
class Case:
    """A check of the first of ``families`` that the device does not avoid; the ones behind it are its twins, in turn.

    compare: on a device, as its properties are then. contest: the same of its speed; None where it is not in question.
    """

    families: tuple[str, ...]
    compare: Callable[[CudaRuntime], Comparison]
    contest: Callable[[CudaRuntime], Contest] | None = None
