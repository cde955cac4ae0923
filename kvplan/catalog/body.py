"""What the reader of an architecture makes of a config: a model that has no name yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.spec import ExtraModule, LayerSpec, RopeSpec
from kvplan.catalog.tensors import Tensor


@dataclass(frozen=True, slots=True)
class Body:
    """A model without its name: the part of a ``ModelSpec`` that only the family's reader can know."""

    layers: tuple[LayerSpec, ...]
    tensors: tuple[Tensor, ...]
    hidden_size: int
    vocab_size: int
    tied: bool
    max_position_embeddings: int | None
    rope: RopeSpec | None = None
    extras: tuple[ExtraModule, ...] = ()
    further_ropes: tuple[RopeSpec, ...] = ()
    residual_streams: int = 1


Reader = Callable[[ConfigView], Body]
