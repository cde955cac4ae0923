"""How a checkpoint's weights are stored: sums of tensors by kind and storage type, apart for each part of a model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

StoredKind = Literal["embedding", "head", "attention", "state mixer", "feed-forward", "experts", "other", "stored"]


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """All tensors of one kind and one storage type in one part of a checkpoint.

    ``type_name`` is the file's own word (BF16, Q4_K); ``num_elements`` are numbers as stored, of which a packed one
    holds several weights. ``is_float``: plain weights, which an engine converts to the dtype it serves in; scales,
    packed weights and GGUF's types stay as they are.
    """

    type_name: str
    num_elements: int
    num_bytes: int
    kind: StoredKind = "stored"
    is_float: bool = False


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor by the file's own name, and the type that it is stored in."""

    name: str
    type_name: str
    num_elements: int


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """The tensors of a checkpoint, sorted. Towers, projectors and multi-token-prediction layers are apart.

    ``layers``: those of the language model, by number; ``outside``: embedding, norm, head (once where it is tied).
    ``tensors``: each of these by its name, where every one has a type of its own (GGUF).
    """

    source: str
    num_files: int
    num_tensors: int
    layers: tuple[tuple[StoredWeights, ...], ...]
    outside: tuple[StoredWeights, ...]
    multi_token: tuple[StoredWeights, ...] = ()
    towers: tuple[StoredWeights, ...] = ()
    tensors: tuple[StoredTensor, ...] = ()

    @property
    def language_model(self) -> tuple[StoredWeights, ...]:
        """The layers and what stands around them."""
        return merged((*self.outside, *(weights for layer in self.layers for weights in layer)))


def merged(parts: Iterable[StoredWeights]) -> tuple[StoredWeights, ...]:
    """One entry for each kind and type, in the order of their first appearance."""
    sums: dict[tuple[StoredKind, str, bool], tuple[int, int]] = {}
    for each in parts:
        key = (each.kind, each.type_name, each.is_float)
        elements, num_bytes = sums.get(key, (0, 0))
        sums[key] = (elements + each.num_elements, num_bytes + each.num_bytes)
    return tuple(StoredWeights(key[1], *sums[key], key[0], key[2]) for key in sums)


def count_stored(parts: Iterable[StoredWeights]) -> int:
    """Numbers as stored."""
    return sum(each.num_elements for each in parts)
