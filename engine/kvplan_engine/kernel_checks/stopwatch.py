"""Which of two ways is faster: launched in turn for some milliseconds, on the device's own clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from kvplan_engine.kernel_checks.case import Contest, Work

BUDGET_SECONDS = 0.02
"""Of one contest, warm-up apart."""
WINS_BELOW = 0.98
"""Of the twin's time: less of a difference is noise."""
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
