"""One check: what a kernel makes of a small case, and what plain torch in float32 makes of it."""

from __future__ import annotations

import statistics
import time
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


# Which of two ways is faster: launched in turn for some milliseconds, on the device's own clock.


BUDGET_SECONDS = 0.02
"""Seconds of one contest, warm-up apart."""
WINS_BELOW = 0.98
"""Share of the twin's time; less of a difference is noise."""
_WARM_UPS = 2
_FEWEST_ROUNDS = 3
_MOST_ROUNDS = 50


@dataclass(frozen=True, slots=True)
class Times:
    """Medians of one launch each, in microseconds."""

    fast: float
    twin: float

    @property
    def fast_wins(self) -> bool:
        """Whether the fast one wins by more than noise."""
        return self.fast < WINS_BELOW * self.twin


def compete(make: Callable[[], Contest], device: torch.device) -> Times | None:
    """Both in turn, captured as a graph each, as steps run them; None on a device whose times mean nothing."""
    if device.type != "cuda":
        return None
    contest = make()
    with torch.cuda.device(device):
        ways = [_captured(work) for work in (contest.fast, contest.twin)]
        rounds: list[list[float]] = [[], []]
        started = time.perf_counter()
        while len(rounds[1]) < _FEWEST_ROUNDS or (
            time.perf_counter() - started < BUDGET_SECONDS and len(rounds[1]) < _MOST_ROUNDS
        ):
            for way, found in zip(ways, rounds, strict=True):
                found.append(_micros_of(way))
    return Times(*(statistics.median(each) for each in rounds))


def _captured(work: Work) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UPS):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        work()
    graph.replay()
    torch.cuda.synchronize()
    return graph


def _micros_of(graph: torch.cuda.CUDAGraph) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return 1000 * begin.elapsed_time(end)
