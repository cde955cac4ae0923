"""How a mixture's products are compiled and launched for its sizes on a device: pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvplan_engine.description.feed_forward import Mixture, Mlp
from kvplan_engine.kernels.cuda.checks import VECTOR_BYTES
from kvplan_engine.kernels.cuda.launching.families import MIXTURE_MMA
from kvplan_engine.kernels.cuda.launching.runtime import DeviceProperties
from kvplan_engine.kernels.cuda.launching.variants import SCALAR_NAMES, KernelVariant, variant

FEW_ROWS = 4
"""Up to so many rows, each pair of a row and an expert is a work item of its own, and nothing is sorted."""
SUM_BYTES = 64 * 1024**2
"""Of the experts' outputs before they are added: what bounds the outputs of one launch."""
MOST_CHOICES = 32
"""mixture_route.cu: a lane for each choice and for each group."""

_SIMPLE_ROWS = 8
_ROUTER_ROWS = 64  # up to so many, the router's few outputs keep more blocks busy without tensor cores
_TILE_ROWS = (16, 64)  # mixture_mma.cu: ROWS
_STAGES = {16: 4, 64: 3}
_PITCH = 64 * 2 + 16  # mixture_mma.cu: PITCH
_WEIGHT_ROWS = 128  # mixture_mma.cu: WEIGHT_ROWS
_SIMPLE_OUTPUTS = 8  # mixture_simple.cu: WARPS * OUTPUTS
_SCORINGS = {"softmax", "sigmoid", "softmax_of_top", "sqrt_softplus", "sparse_mixer"}
_ACTIVATIONS = {"silu", "gelu", "gelu_tanh", "relu", "relu2"}
_MOST_EXPERTS = 1024  # whose scores fit a block's static shared memory

_THREADS = 128
_OUTPUT_MULTIPLE = 128


@dataclass(frozen=True, slots=True)
class ProductLaunch:
    """One product's kernel. rows: pairs of a work item at most; outputs: of a block."""

    variant: KernelVariant
    rows: int
    outputs: int
    shared_bytes: int
    threads: int = _THREADS


@dataclass(frozen=True, slots=True)
class ProductShape:
    """What a product's kernel is compiled for. activation: the Mlp's, or "none"; out: the type that it stores."""

    scalar: torch.dtype
    out: torch.dtype
    activation: str = "none"
    is_gated: bool = False

    @classmethod
    def up(cls, mlp: Mlp, scalar: torch.dtype) -> ProductShape:
        """The first product of an expert, with its activation."""
        return cls(scalar, scalar, mlp.activation, mlp.gated)


def computes_mixture(mixture: Mixture, dtype: torch.dtype) -> bool:
    """Whether the kernels compute this mixture; the hidden size is looked at where the weights are."""
    mlps = [mixture.expert] if mixture.shared is None else [mixture.expert, mixture.shared]
    known = mixture.scoring in _SCORINGS and all(map(_computes_mlp, mlps))
    plain = mixture.latent_size is None and not mixture.num_idle
    small = mixture.num_experts <= _MOST_EXPERTS and max(mixture.top_k, mixture.num_groups) <= MOST_CHOICES
    whole = all(mlp.size * dtype.itemsize % VECTOR_BYTES == 0 for mlp in mlps)
    return dtype in SCALAR_NAMES and dtype.itemsize > 1 and known and plain and small and whole


def _computes_mlp(mlp: Mlp) -> bool:
    return mlp.activation in _ACTIVATIONS or (mlp.activation == "swiglu_oai" and mlp.gated)


def product_rows(num_rows: int, pairs_per_expert: float, scalar: torch.dtype, properties: DeviceProperties) -> int:
    """Pairs of a work item: 1 for few rows, else what the pairs of an expert fill."""
    if num_rows <= FEW_ROWS:
        return 1
    if not properties.has_tensor_kernels or scalar is torch.float32 or MIXTURE_MMA in properties.avoided:
        return _SIMPLE_ROWS
    return _TILE_ROWS[pairs_per_expert >= _TILE_ROWS[1] / 2]


def router_rows(num_rows: int, scalar: torch.dtype, properties: DeviceProperties) -> int:
    """The same for the router's product."""
    rows = product_rows(num_rows, num_rows, scalar, properties)
    return rows if rows <= _SIMPLE_ROWS or num_rows > _ROUTER_ROWS else _SIMPLE_ROWS


def max_sorted_items(num_pairs: int, num_experts: int, rows: int) -> int:
    """An upper bound on the items of ``rows`` pairs that so many sorted pairs make, whatever they chose."""
    return num_pairs // rows + min(num_pairs, num_experts)


def product_launch(shape: ProductShape, rows: int) -> ProductLaunch:
    """The kernel of a product over items of ``rows`` pairs: tensor cores for as many as fill their tiles."""
    defines: dict[str, str | int | torch.dtype] = {
        "scalar": shape.scalar,
        "out": shape.out,
        "activation": shape.activation,
        "gated": int(shape.is_gated),
        "rows": rows,
    }
    if rows not in _TILE_ROWS:
        return ProductLaunch(
            variant("mixtures/mixture_simple.cu", "expert_product", **defines), rows, _SIMPLE_OUTPUTS, 0
        )
    stages = _STAGES[rows]
    chosen = variant("mixtures/mixture_mma.cu", "expert_product", **defines, stages=stages)
    outputs = _WEIGHT_ROWS // 2 if shape.is_gated else _WEIGHT_ROWS
    return ProductLaunch(chosen, rows, outputs, stages * (rows + _WEIGHT_ROWS) * _PITCH)


def route_variant(mixture: Mixture, scalar: torch.dtype) -> KernelVariant:
    """The kernel that chooses the experts."""
    return variant(
        "mixtures/mixture_route.cu",
        "choose_experts",
        scalar=scalar,
        experts=mixture.num_experts,
        top_k=mixture.top_k,
        scoring=mixture.scoring,
        groups=mixture.num_groups,
        top_groups=mixture.top_groups,
        adds_two=int(mixture.group_scoring == "top2_sum"),
        normalised=int(mixture.normalised),
    )


def sort_variant(mixture: Mixture, rows: int) -> KernelVariant:
    """The kernel that sorts the choices into items of ``rows`` pairs."""
    return variant("mixtures/mixture_sort.cu", "sort_pairs", experts=len(mixture.held_experts), rows=rows)


def sum_variant(scalar: torch.dtype) -> KernelVariant:
    """The kernel that adds what the experts gave."""
    return variant("mixtures/mixture_sum.cu", "sum_experts", scalar=scalar)


def slice_outputs(num_sums: int, hidden: int) -> int:
    """Outputs of the second product that are computed at a time, so that ``num_sums`` rows of them fit SUM_BYTES."""
    fitting = SUM_BYTES // (4 * num_sums) // _OUTPUT_MULTIPLE * _OUTPUT_MULTIPLE
    return min(hidden, max(_OUTPUT_MULTIPLE, fitting))
