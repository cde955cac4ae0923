"""A layer's mixture of experts over its weights: what a device offers, and how one is chosen.

A ``MixtureKind`` is one way to keep the experts' weights and compute with them. A device lists its kinds, best first
(``models/device_kernels.py``); the last one takes every mixture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from kvplan_engine.checkpoints.quantised.reader import shape_of, take_parts
from kvplan_engine.checkpoints.weights import Weights
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.kernels import torch_mixture
from kvplan_engine.kernels.cpu.library import STORAGE_CODES, CpuKernels
from kvplan_engine.kernels.cpu.mixture import PackedMixture, packs_mixture
from kvplan_engine.kernels.cpu.structures import MixtureArgs
from kvplan_engine.kernels.cuda.launching.runtime import CudaRuntime
from kvplan_engine.kernels.cuda.mixtures import CudaMixture, MixtureMemory, computes_mixture
from kvplan_engine.kernels.mixture_weights import (
    ExpertMatrices,
    ExpertWeights,
    MixtureRoom,
    MixtureWeights,
    QuantisedExperts,
)


class MixtureRun(Protocol):
    """One layer's mixture.

    layer_args: as the CPU kernels' call for all layers takes it, without its rows; None where they do not have it.
    launches_each_expert: what it launches on a GPU grows with the experts.
    """

    @property
    def layer_args(self) -> MixtureArgs | None: ...

    @property
    def launches_each_expert(self) -> bool: ...

    def __call__(self, x: torch.Tensor, out: torch.Tensor, room: MixtureRoom) -> None:
        """out [T, H] = the mixture of x [T, H]; not the same memory."""
        ...


class MixtureKind(Protocol):
    """One way to keep a mixture's weights and compute with them."""

    def takes(self, mixture: Mixture, dtype: torch.dtype, *, is_quantised: bool) -> bool:
        """Whether this kind runs ``mixture`` with weights of ``dtype`` here; is_quantised: experts are in few bits."""
        ...

    def make(self, mixture: Mixture, weights: Weights, index: int) -> MixtureRun:
        """The mixture of layer ``index``; takes the weights out of the model's where it keeps another layout."""
        ...


def make_mixture(kinds: Sequence[MixtureKind], mixture: Mixture, weights: Weights, index: int) -> MixtureRun:
    """The mixture of layer ``index`` by the first of ``kinds`` that takes it."""
    dtype = weights[f"layers.{index}.router.weight"].dtype
    matrices = (f"layers.{index}.{part}.{matrix}" for part in ("experts", "shared") for matrix in ("up", "down"))
    is_quantised = any(shape_of(weights, name) is not None for name in matrices)
    kind = next(kind for kind in kinds if kind.takes(mixture, dtype, is_quantised=is_quantised))
    return kind.make(mixture, weights, index)


class TorchMixture:
    """Plain torch over the weights as they were published. Takes every mixture, on any device."""

    layer_args = None
    launches_each_expert = True

    def __init__(self, mixture: Mixture, weights: MixtureWeights) -> None:
        self._mixture, self._weights = mixture, weights

    @classmethod
    def takes(cls, mixture: Mixture, dtype: torch.dtype, *, is_quantised: bool) -> bool:
        """See MixtureKind.takes."""
        return True

    @classmethod
    def make(cls, mixture: Mixture, weights: Weights, index: int) -> TorchMixture:
        """See MixtureKind.make. The weights stay where they are."""
        return cls(mixture, mixture_weights(mixture, weights, index))

    def __call__(self, x: torch.Tensor, out: torch.Tensor, room: MixtureRoom) -> None:
        torch_mixture.run_mixture(x, self._mixture, self._weights, out)


@dataclass(frozen=True, slots=True)
class PanelMixtures:
    """The kind: float32, bfloat16 and few bits in panels, by ``kernels``."""

    kernels: CpuKernels

    def takes(self, mixture: Mixture, dtype: torch.dtype, *, is_quantised: bool) -> bool:
        """See MixtureKind.takes."""
        return dtype in STORAGE_CODES and packs_mixture(mixture)

    def make(self, mixture: Mixture, weights: Weights, index: int) -> PackedMixture:
        """See MixtureKind.make."""
        packed = PackedMixture(self.kernels, mixture, mixture_weights(mixture, weights, index))
        for part in ("router", "experts.up", "experts.down", "shared.up", "shared.down", "shared_gate"):
            weights.pop(f"layers.{index}.{part}.weight", None)
        return packed


def mixture_weights(mixture: Mixture, weights: Weights, index: int) -> MixtureWeights:
    """Views of layer ``index``'s weights, the experts one after the other. What is in few bits is taken out of them."""
    name = f"layers.{index}"
    return MixtureWeights(
        weights[f"{name}.router.weight"],
        _experts(len(mixture.held_experts), weights, f"{name}.experts"),
        weights.get(f"{name}.router.bias"),
        weights.get(f"{name}.correction"),
        None if mixture.shared is None else _experts(1, weights, f"{name}.shared"),
        *(weights.get(f"{name}.{part}.weight") for part in ("shared_gate", "latent_down", "latent_up")),
    )


def _experts(count: int, weights: Weights, name: str) -> ExpertWeights:
    up_bias, down_bias = (weights.get(f"{name}.{part}.bias") for part in ("up", "down"))
    return ExpertWeights(
        _matrices(weights, f"{name}.up", count),
        _matrices(weights, f"{name}.down", count),
        None if up_bias is None else up_bias.view(count, -1),
        None if down_bias is None else down_bias.view(count, -1),
    )


def _matrices(weights: Weights, name: str, count: int) -> ExpertMatrices:
    """One matrix of every expert, [count, outputs, inputs]."""
    parts = take_parts(weights, name)
    if parts:
        assert len(parts) == 1, "experts of several formats are not held in few bits"
        return QuantisedExperts(parts[0], count)
    dense = weights[f"{name}.weight"]
    return dense.view(count, -1, dense.shape[1])


class CudaMixtures:
    """The kind: float32, float16 and bfloat16 by csrc/cuda; all layers share the memory that their kernels need."""

    def __init__(self, runtime: CudaRuntime) -> None:
        self._runtime = runtime
        self._memory = MixtureMemory(runtime.device)

    def takes(self, mixture: Mixture, dtype: torch.dtype, *, is_quantised: bool) -> bool:
        """See MixtureKind.takes."""
        return not is_quantised and computes_mixture(mixture, dtype)

    def make(self, mixture: Mixture, weights: Weights, index: int) -> CudaMixture:
        """See MixtureKind.make. The weights stay where they are."""
        return CudaMixture(self._runtime, self._memory, mixture, mixture_weights(mixture, weights, index))
