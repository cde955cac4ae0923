"""Everything that is known at one moment: the servers, what still fits in each, and this machine's GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvplan.catalog.spec import ModelSpec
from kvplan.top.gpus import GpuState
from kvplan.top.room import Room, known_model, room_for
from kvplan.top.watch import ServerState


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
