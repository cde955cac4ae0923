"""What each of a server's data-parallel engines did during a run, to see whether its router divides the load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvplan.load.observed.monitor import ServerView
from kvplan.metrics.reading import ServerReading
from kvplan.metrics.window import difference


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """Highest values of the readings within the run, and what was counted from before to after it. None: not told."""

    kv_usage_max: float | None
    max_running: float | None
    max_waiting: float | None
    num_preemptions: float | None
    prefix_hit_rate: float | None
    generation_tokens: float | None


def engine_figures(server: ServerView) -> dict[str, EngineFigures]:
    """Return figures by the engine's number; empty for a server of one engine, or one that told nothing."""
    names = server.readings[-1].engines if server.readings else {}
    return {name: _figures(_of_engine(name, server.readings), _of_engine(name, server.within)) for name in names}


def _of_engine(name: str, readings: Sequence[ServerReading]) -> list[ServerReading]:
    return [each.engines[name] for each in readings if name in each.engines]


def _figures(readings: Sequence[ServerReading], within: Sequence[ServerReading]) -> EngineFigures:
    window = difference(readings[0], readings[-1])
    return EngineFigures(
        kv_usage_max=max((each.kv_cache_usage for each in within if each.kv_cache_usage is not None), default=None),
        max_running=max((each.num_running for each in within if each.num_running is not None), default=None),
        max_waiting=max((each.num_waiting for each in within if each.num_waiting is not None), default=None),
        num_preemptions=window.num_preemptions,
        prefix_hit_rate=window.prefix_hit_rate,
        generation_tokens=window.generation_tokens,
    )
