"""Latency and throughput of a simulation, by vLLM's definitions (as kvplan.sweeps.worker.metrics measures them)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from kvplan.estimate.speed.simulation.interface import SimulatedRequest, Simulation


@dataclass(frozen=True, slots=True)
class SimulatedFigures:
    """Medians in seconds over the requests (ITL: over all gaps); None where no request has a second token."""

    output_throughput: float
    median_ttft_seconds: float | None
    median_tpot_seconds: float | None
    median_itl_seconds: float | None


def simulated_figures(simulated: Simulation) -> SimulatedFigures:
    """The figures of a simulation in which every request ended."""
    ends = simulated.loads.end_seconds
    tpots = [each for request in simulated.requests if (each := tpot_seconds(request, ends)) is not None]
    ttfts = [ttft_seconds(request, ends) for request in simulated.requests]
    return SimulatedFigures(
        output_throughput=simulated.output_throughput,
        median_ttft_seconds=median(ttfts) if ttfts else None,
        median_tpot_seconds=median(tpots) if tpots else None,
        median_itl_seconds=_median_itl(simulated),
    )


def ttft_seconds(request: SimulatedRequest, end_seconds: Sequence[float]) -> float:
    """First token minus arrival; ``end_seconds`` are those of the steps."""
    return end_seconds[request.token_steps[0][0]] - request.arrival_seconds


def tpot_seconds(request: SimulatedRequest, end_seconds: Sequence[float]) -> float | None:
    """(latency - TTFT) / (output tokens - 1)."""
    if request.num_output_tokens < 2:
        return None
    first, last = request.token_steps[0][0], request.token_steps[-1][1] - 1
    return (end_seconds[last] - end_seconds[first]) / (request.num_output_tokens - 1)


def _median_itl(simulated: Simulation) -> float | None:
    """Gaps between a request's consecutive tokens; those of one run of steps are the steps' own durations."""
    import numpy as np

    ends = np.asarray(simulated.loads.end_seconds)
    gaps = []
    for request in simulated.requests:
        steps = np.concatenate([np.arange(first, stop) for first, stop in request.token_steps])
        gaps.append(np.diff(ends[steps]))
    pooled = np.concatenate(gaps) if gaps else np.empty(0)
    return float(np.median(pooled)) if len(pooled) else None
