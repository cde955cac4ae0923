"""Mixtures of experts by the CUDA kernels, over the weights as they were published."""

from __future__ import annotations

import torch

from kvplan_engine.checkpoints.weights import Weights
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.kernels.cuda.launching.runtime import CudaRuntime
from kvplan_engine.kernels.cuda.mixtures.launch import computes_mixture
from kvplan_engine.kernels.cuda.mixtures.memory import MixtureMemory
from kvplan_engine.kernels.cuda.mixtures.mixture import CudaMixture
from kvplan_engine.layers.mixture import MixtureRoom, mixture_weights


class CudaMixtureRun:
    """A MixtureRun: one layer's mixture on a CUDA device."""

    layer_args = None
    launches_each_expert = False

    def __init__(self, kernels: CudaMixture) -> None:
        self._kernels = kernels

    def __call__(self, x: torch.Tensor, out: torch.Tensor, room: MixtureRoom) -> None:
        self._kernels.run(x, out, room.ids, room.shares, room.inner, room.num_filled)


class CudaMixtures:
    """The kind: float32, float16 and bfloat16 by csrc/cuda; all layers share the memory that their kernels need."""

    def __init__(self, runtime: CudaRuntime) -> None:
        self._runtime = runtime
        self._memory = MixtureMemory(runtime.device)

    def takes(self, mixture: Mixture, dtype: torch.dtype, *, is_quantised: bool) -> bool:
        """See MixtureKind.takes."""
        return not is_quantised and computes_mixture(mixture, dtype)

    def make(self, mixture: Mixture, weights: Weights, index: int) -> CudaMixtureRun:
        """See MixtureKind.make. The weights stay where they are."""
        return CudaMixtureRun(
            CudaMixture(self._runtime, self._memory, mixture, mixture_weights(mixture, weights, index))
        )
