"""What a worker imports, torch and the engine, in four fifths of the time."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quick_imports() -> Iterator[None]:
    """Speed up a block of imports: importing torch sets off a thousand garbage collections, which find nothing."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
