"""The device that a worker opened, as it says itself: what the driver lists is not always what torch can use.

Where the driver lists a GPU, a worker is asked before anything is planned. It knows which of several GPUs CUDA takes
first, what a slice of one has, and what its context and other processes leave.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OpenedGpu:
    """overhead_bytes: what the engine reserves for what is not a tensor, as measured when the GPU was opened.

    uuid: as CUDA has it, without the driver's prefix; empty where it is not told. compute_capability: None as well.
    """

    name: str
    memory_bytes: int
    overhead_bytes: int
    uuid: str = ""
    compute_capability: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class NoGpu:
    """Why no GPU can be used, a sentence without a full stop. hint: what would help. is_present: one is there."""

    sentence: str
    hint: str | None = None
    is_present: bool = False


@dataclass(frozen=True, slots=True)
class Reserve:
    """What an engine that has loaded its weights keeps free of the GPU it opened, as it says before it makes a pool.

    total_bytes: of the GPU. overhead_bytes: kept for what is no tensor; graph_bytes: for captured steps. Of several
    ranks: of the smallest GPU, and the most that one of them needs.
    """

    total_bytes: int
    overhead_bytes: int
    graph_bytes: int


AskDevice = Callable[[], OpenedGpu | NoGpu]
"""Asks a worker for the GPU that it opens. KvplanError if the worker dies of it."""
