"""What a layer's mixers have in common: attention of every kind, and layers with a state."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import TypeVar

import torch

from kvplan_engine.checkpoints.weights import Weights
from kvplan_engine.description.norms import Norms
from kvplan_engine.layers.projection import Projection, StoredWeight, make_projection
from kvplan_engine.models.part_kernels import PartKernels
from kvplan_engine.models.step_batch import StepSpace

Mixer = TypeVar("Mixer", bound="MixerPart")


@dataclass(frozen=True, slots=True)
class MixerSource:
    """Where a mixer of layer ``index`` finds what it is made of, and the kernels that compute it.

    name: what its parameters in ``weights`` begin with. norms: of the layer. rope_table: the workspace's buffer of
    cosines and sines, None where the mixer does not rotate.
    """

    weights: Weights
    kernels: PartKernels
    index: int
    name: str
    norms: Norms
    rope_table: str | None = None

    def projection(self, part: str) -> Projection:
        """The product with the weight of ``part``."""
        return make_projection(self.kernels.projections, StoredWeight(self.weights, f"{self.name}.{part}"))


class MixerPart:
    """Moves information between the tokens of each sequence, and keeps in the pool what later tokens need of them.

    index: the layer whose KV or state it reads and writes.
    """

    index: int

    def at(self: Mixer, index: int) -> Mixer:
        """The same mixer, weights and all, over what layer ``index`` keeps."""
        twin = copy(self)
        twin.index = index
        return twin

    def __call__(self, normed: torch.Tensor, step: StepSpace, delta: torch.Tensor) -> None:
        """All tokens of the step, from ``normed`` [T, H] into ``delta`` [T, H]; the scratch buffer is its own."""
        raise NotImplementedError
