"""Layers that share one copy of dummy weights (``dummy_layers="shared"``). No torch.

A large shape can then step on a small machine: equal layers read the same bytes again. Reading a small layer again and
again would be reading caches instead of memory, and faster than the model is. So equal layers take turns over as many
copies as are larger than any cache.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace

from kvplan_engine.description.model import Layer, ModelDescription
from kvplan_engine.description.parameters import num_parameters

LARGER_THAN_CACHES_BYTES = 512 * 1024**2
"""Twice the last-level cache of the larger servers of today."""


def weight_owners(model: ModelDescription, element_bytes: int) -> list[int]:
    """Return for each layer the one whose weights it uses: itself, or an equal layer before it."""
    seen: dict[Layer, list[int]] = defaultdict(list)
    turns: dict[Layer, int] = defaultdict(int)
    owners = []
    for index, layer in enumerate(model.layers):
        copies = seen[layer]
        if len(copies) < _num_copies(model, layer, element_bytes):
            copies.append(index)
            owners.append(index)
        else:
            owners.append(copies[turns[layer] % len(copies)])
            turns[layer] += 1
    return owners


def _num_copies(model: ModelDescription, layer: Layer, element_bytes: int) -> int:
    without = num_parameters(replace(model, layers=()))
    layer_bytes = (num_parameters(replace(model, layers=(layer,))) - without) * element_bytes
    return math.ceil(LARGER_THAN_CACHES_BYTES / max(layer_bytes, 1))
