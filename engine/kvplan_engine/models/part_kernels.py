"""The kernels that one part of a layer is made with."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvplan_engine.attention.backend import AttentionBackend
from kvplan_engine.kernels import lora
from kvplan_engine.kernels.interface import Ops
from kvplan_engine.kernels.lora import Correct
from kvplan_engine.kernels.states.operations import StateOps, TorchStates
from kvplan_engine.layers.head_products import HeadProductsKind, TorchHeads
from kvplan_engine.layers.mixture import MixtureKind, TorchMixture
from kvplan_engine.layers.projection import ProjectionKind


@dataclass(frozen=True, slots=True)
class PartKernels:
    """projections: the ways to store a weight and multiply with it, best first; the last one takes every weight.

    mixtures: the same for mixtures of experts. states: what layers with a state compute.
    head_products: as ``projections``, of a weight for each head. correct: what adapters add to a product.
    """

    attention: AttentionBackend
    ops: Ops
    projections: tuple[ProjectionKind, ...]
    mixtures: tuple[MixtureKind, ...] = (TorchMixture,)
    states: StateOps = field(default_factory=TorchStates)
    head_products: tuple[HeadProductsKind, ...] = (TorchHeads,)
    correct: Correct = lora.correct
