"""One layer's mixture of experts."""

from __future__ import annotations

from dataclasses import replace

import torch

from kvplan_engine.checkpoints.weights import Weights
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.kernels.cpu.mixture_args import MixtureArgs
from kvplan_engine.layers.mixture import MixtureRoom, make_mixture
from kvplan_engine.memory.workspace import Workspace
from kvplan_engine.models.part_kernels import PartKernels
from kvplan_engine.models.step_space import StepSpace

_ALIGNMENT_BYTES = 64
_CHOICE_BYTES = 8
"""Of one chosen expert: its number and its weight."""


class MixturePart:
    """The router and the experts of layer ``index``, the shared one among them."""

    def __init__(self, mixture: Mixture, weights: Weights, index: int, kernels: PartKernels) -> None:
        self._mixture = mixture
        self._run = make_mixture(kernels.mixtures, mixture, weights, index)
        self.launches_each_expert = self._run.launches_each_expert

    @property
    def layer_args(self) -> MixtureArgs | None:
        """See MixtureRun.layer_args."""
        return self._run.layer_args

    def __call__(self, normed: torch.Tensor, step: StepSpace, delta: torch.Tensor) -> None:
        """From ``normed`` [T, H] into ``delta`` [T, H], by way of the scratch buffer."""
        room = self.room(normed.shape[0], step.workspace)
        self._run(normed, delta, replace(room, num_filled=step.batch.num_filled))

    def room(self, rows: int, workspace: Workspace) -> MixtureRoom:
        """The scratch buffer cut up for so many rows.

        Behind the activation an expert's inner columns are half of those that the buffer is made for.
        """
        mixture, scratch = self._mixture, workspace["scratch"].view(-1)
        shape = (rows, mixture.top_k)
        choices = rows * mixture.top_k
        raw = scratch.view(torch.uint8)
        ids, shares = (raw[4 * choices * i : 4 * choices * (i + 1)] for i in range(2))
        start = -(-choices * _CHOICE_BYTES // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        columns = mixture.top_k * mixture.expert.size + (0 if mixture.shared is None else mixture.shared.size)
        inner = raw[start : start + rows * columns * scratch.itemsize].view(scratch.dtype)
        return MixtureRoom(ids.view(torch.int32).view(shape), shares.view(torch.float32).view(shape), inner)
