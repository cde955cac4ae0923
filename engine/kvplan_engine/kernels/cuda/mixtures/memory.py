"""The memory of the mixtures' kernels."""

from __future__ import annotations

import torch


class MixtureMemory:
    """Memory that only the kernels of mixtures read and write, the same for all layers; grows, never shrinks.

    What is outgrown is kept: a captured graph may still use it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: dict[str, torch.Tensor] = {}
        self._outgrown: list[torch.Tensor] = []

    def take(self, name: str, count: int, dtype: torch.dtype) -> int:
        """The address of at least ``count`` elements."""
        known = self._buffers.get(name)
        if known is None or known.numel() < count:
            if known is not None:
                self._outgrown.append(known)
            known = self._buffers[name] = torch.empty(count, dtype=dtype, device=self._device)
        return known.data_ptr()
