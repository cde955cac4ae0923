"""What a layer's mixers have in common: attention of every kind, and layers with a state."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch

from kvplan_engine.checkpoints.weights import Weights
from kvplan_engine.description.norms import Norms
from kvplan_engine.models.step_batch import StepSpace

Mixer = TypeVar("Mixer")
MixerOfLayer = TypeVar("MixerOfLayer", bound="OfLayer")


@dataclass(frozen=True, slots=True)
class MixerSource:
    """Where a mixer of layer ``index`` finds what it is made of.

    name: what its parameters in ``weights`` begin with. norms: of the layer. rope_table: the workspace's buffer of
    cosines and sines, None where the mixer does not rotate.
    """

    weights: Weights
    index: int
    name: str
    norms: Norms
    rope_table: str | None = None


class MixerPart(Protocol):
    """Moves information between the tokens of each sequence, and keeps in the pool what later tokens need of them."""

    @property
    def index(self) -> int:
        """The layer whose KV or state it reads and writes."""
        ...

    def at(self: Mixer, index: int) -> Mixer:
        """The same mixer, weights and all, over what layer ``index`` keeps."""
        ...

    def __call__(self, normed: torch.Tensor, step: StepSpace, delta: torch.Tensor) -> None:
        """All tokens of the step, from ``normed`` [T, H] into ``delta`` [T, H]; the scratch buffer is its own."""
        ...


class OfLayer:
    """A mixer of the layer ``index``, which may be taken over another one: what all kinds of them are."""

    index: int

    def at(self: MixerOfLayer, index: int) -> MixerOfLayer:
        """See MixerPart.at."""
        twin = copy(self)
        twin.index = index
        return twin
