"""What each of a server's data-parallel engines did during a run, to see whether its router divides the load."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.load.observed.monitor import ServerView
from kvplan.metrics.reading import ServerReading
from kvplan.metrics.window import difference


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """Highest values of the readings, and what was counted between the first and the last. None: not told."""

    kv_usage_max: float | None
    max_running: float | None
    max_waiting: float | None
    num_preemptions: float | None
    prefix_hit_rate: float | None
    generation_tokens: float | None


def engine_figures(server: ServerView) -> dict[str, EngineFigures]:
    """By the engine's number; empty for a server of one engine, or one that told nothing."""
    names = server.readings[-1].engines if server.readings else {}
    readings = {name: [each.engines[name] for each in server.readings if name in each.engines] for name in names}
    return {name: _figures(found) for name, found in readings.items()}


def _figures(readings: list[ServerReading]) -> EngineFigures:
    window = difference(readings[0], readings[-1])
    return EngineFigures(
        kv_usage_max=max((each.kv_cache_usage for each in readings if each.kv_cache_usage is not None), default=None),
        max_running=max((each.num_running for each in readings if each.num_running is not None), default=None),
        max_waiting=max((each.num_waiting for each in readings if each.num_waiting is not None), default=None),
        num_preemptions=window.num_preemptions,
        prefix_hit_rate=window.prefix_hit_rate,
        generation_tokens=window.generation_tokens,
    )
