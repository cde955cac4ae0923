"""torch's history of allocations on a GPU, as a file for https://docs.pytorch.org/memory_viz."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

_MOST_ENTRIES: Final = 100_000


@contextmanager
def allocations_recorded(path: str | None) -> Iterator[None]:
    """Record what the allocator does meanwhile and write it to ``path``; nothing if that is None."""
    if path is None:
        yield
        return
    memory = torch.cuda.memory
    memory._record_memory_history(max_entries=_MOST_ENTRIES)
    try:
        yield
    finally:
        memory._dump_snapshot(path)
        memory._record_memory_history(enabled=None)
