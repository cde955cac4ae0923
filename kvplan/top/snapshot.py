"""Everything that is known at one moment, as JSON too: servers, what still fits in each, and this machine's GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any, Final

from kvplan.catalog.spec import ModelSpec
from kvplan.metrics.histograms import Histogram
from kvplan.top.gpus import GpuState
from kvplan.top.room import Room, known_model, room_for
from kvplan.top.watch import ServerState

SCHEMA: Final = "kvplan.top/1"
_LATENCIES: Final = ("ttft", "tpot", "itl", "e2e_latency", "queue_time")


@dataclass(frozen=True, slots=True)
class ServerRow:
    """A server and the room in it, one entry per context; [] where it does not tell its pool."""

    state: ServerState
    rooms: tuple[Room, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """rows: in the order of the command line. gpus: this machine's, if one of the servers runs on it."""

    rows: tuple[ServerRow, ...]
    gpus: tuple[GpuState, ...] = ()


def make_snapshot(
    states: Sequence[ServerState],
    gpus: Sequence[GpuState] = (),
    *,
    contexts: Sequence[int] = (),
    spec: ModelSpec | None = None,
) -> Snapshot:
    """contexts: none for each server's longest. spec: the model to plan with, None to find each one by its name."""
    return Snapshot(tuple(ServerRow(state, _rooms(state, contexts, spec)) for state in states), tuple(gpus))


def _rooms(state: ServerState, contexts: Sequence[int], spec: ModelSpec | None) -> tuple[Room, ...]:
    reading = state.reading
    if reading is None or not state.is_up:
        return ()
    longest = state.limits.max_model_len
    lengths = contexts or ((longest,) if longest else ())
    model = spec or known_model((*state.models, *reading.model_names))
    found = (room_for(length, reading, state.limits, model) for length in lengths)
    return tuple(room for room in found if room is not None)


def top_document(snapshot: Snapshot, now: datetime | None = None) -> dict[str, Any]:
    """Servers in the order of the command line. ``window``: between the two last readings, null with one."""
    return {
        "schema": SCHEMA,
        "read_at": (now or datetime.now(timezone.utc)).isoformat(timespec="milliseconds"),
        "servers": [_server(row) for row in snapshot.rows],
        "gpus": [gpu.as_json() for gpu in snapshot.gpus],
    }


def _server(row: ServerRow) -> dict[str, Any]:
    state = row.state
    reading, window = state.reading, state.window
    return {
        "url": state.url,
        "is_up": state.is_up,
        "error": state.error,
        "engine": None if reading is None else reading.engine,
        "models": list(state.models or (reading.model_names if reading else ())),
        "limits": asdict(state.limits),
        "reading": None if reading is None else _without_clock(reading.as_json()),
        "window": None if window is None else window.as_json(),
        "percentile_ranges": {} if window is None else _ranges(window),
        "room": [room.as_json() for room in row.rooms],
    }


def _without_clock(reading: dict[str, Any]) -> dict[str, Any]:
    """``seconds`` counts from a moment that only this process knows."""
    kept = {name: value for name, value in reading.items() if name not in ("seconds", "engine")}
    return kept | {"engines": {name: _without_clock(each) for name, each in reading["engines"].items()}}


def _ranges(window: object) -> dict[str, dict[str, list[float | None]]]:
    """The edges of the bucket that holds each percentile, in seconds: all that a histogram is certain of."""
    found: dict[str, dict[str, list[float | None]]] = {}
    for name in _LATENCIES:
        histogram = getattr(window, name)
        if isinstance(histogram, Histogram) and histogram.count > 0:
            found[name] = {f"p{percent}": _edges(histogram, percent) for percent in (50, 90, 95, 99)}
    return found


def _edges(histogram: Histogram, percent: int) -> list[float | None]:
    """[low, high]; high is null above the last finite bound."""
    edges = histogram.percentile_range(percent)
    assert edges is not None, "asked only of histograms with observations"
    return [edges[0], None if edges[1] == float("inf") else edges[1]]
