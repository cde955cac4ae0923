"""A mixture of experts whose weights were packed once (csrc/cpu/mixtures/mixture.cpp)."""

from __future__ import annotations

import ctypes
from ctypes import byref, pointer

import torch

from kvplan_engine.description.feed_forward import Mixture, Mlp
from kvplan_engine.kernels.arguments import check_rows
from kvplan_engine.kernels.cpu.huge_pages import empty_for_weights
from kvplan_engine.kernels.cpu.library import STATUS_OK, STORAGE_CODES, CpuKernels
from kvplan_engine.kernels.cpu.quantised import PanelFormat, pack_in_panels
from kvplan_engine.kernels.cpu.structures import ExpertsArgs, MixtureArgs, RouterArgs, WeightFormatArgs
from kvplan_engine.kernels.mixture_weights import (
    ExpertMatrices,
    ExpertWeights,
    MixtureRoom,
    MixtureWeights,
    check_mixture_rows,
    check_weights,
)

SCORING_CODES = {"softmax": 0, "sigmoid": 1, "softmax_of_top": 2, "sparse_mixer": 3}
"""enum kvplan_scoring."""
GROUP_CODES = {"max": 0, "top2_sum": 1}
"""enum kvplan_group_scoring."""
EXPERT_ACTIVATION_CODES = {
    ("gelu_tanh", False): 1,
    ("gelu", False): 2,
    ("silu", True): 3,
    ("gelu_tanh", True): 4,
    ("swiglu_oai", True): 5,
    ("relu2", False): 6,
}
"""enum kvplan_activation, by an expert's activation and whether it is gated."""
_GATED_CODES = {code for (_, gated), code in EXPERT_ACTIVATION_CODES.items() if gated}
MOST_GROUPS = 64
"""KVPLAN_MOST_GROUPS."""


def packs_mixture(mixture: Mixture) -> bool:
    """Whether the kernels compute this mixture."""
    mlps = [mixture.expert] if mixture.shared is None else [mixture.expert, mixture.shared]
    known = mixture.scoring in SCORING_CODES
    known = known and all((mlp.activation, mlp.gated) in EXPERT_ACTIVATION_CODES for mlp in mlps)
    plain = mixture.latent_size is None and not mixture.num_idle
    return known and plain and mixture.num_groups <= MOST_GROUPS


def _pack(kernels: CpuKernels, weights: torch.Tensor, activation: int) -> torch.Tensor:
    """Weights [n, outputs, inputs] in panels, each by itself."""
    count, outputs, inputs = weights.shape
    storage = STORAGE_CODES[weights.dtype]
    elements = kernels.packed_expert_elements(inputs, outputs, activation, storage)
    packed = empty_for_weights((count, elements), weights.dtype)
    for source, target in zip(weights, packed, strict=True):
        kernels.pack_expert(
            *(source.data_ptr(), target.data_ptr(), inputs, outputs),
            *(activation, storage, torch.get_num_threads()),
        )
    return packed


class PackedExperts:
    """MLPs of one size in panels. The published weights may be freed."""

    def __init__(self, kernels: CpuKernels, mlp: Mlp, weights: ExpertWeights) -> None:
        code = EXPERT_ACTIVATION_CODES[mlp.activation, mlp.gated]
        self._kept = [_PackedMatrices(kernels, weights.up, code), _PackedMatrices(kernels, weights.down, 0)]
        self._biases = (weights.up_bias, weights.down_bias)
        up, down = (matrices.packed.data_ptr() for matrices in self._kept)
        up_bias, down_bias = (None if bias is None else bias.data_ptr() for bias in self._biases)
        limit = float("inf") if mlp.limit is None else mlp.limit
        formats = (matrices.format_pointer for matrices in self._kept)
        self.args = ExpertsArgs(up, up_bias, down, down_bias, weights.up.shape[0], mlp.size, limit, code, *formats)


class _PackedMatrices:
    """One matrix of every expert in panels. activation: what follows it, by its number."""

    def __init__(self, kernels: CpuKernels, weights: ExpertMatrices, activation: int) -> None:
        self._format = None
        if isinstance(weights, torch.Tensor):
            self.packed = _pack(kernels, weights, activation)
        else:
            self._format = PanelFormat(weights.rows)
            each = [weights.expert(index) for index in range(weights.count)]
            self.packed = pack_in_panels(kernels, self._format, each, gated=activation in _GATED_CODES)

    @property
    def format_pointer(self) -> ctypes._Pointer[WeightFormatArgs] | None:
        """To what says how quantised matrices lie; None for dense ones."""
        return None if self._format is None else pointer(self._format.args)


class PackedMixture:
    """A mixture in panels, float32 or bfloat16: what chooses the experts, these, the shared one. A ``MixtureRun``."""

    launches_each_expert = False

    def __init__(self, kernels: CpuKernels, mixture: Mixture, weights: MixtureWeights) -> None:
        check_weights(mixture, weights)
        if not packs_mixture(mixture) or weights.router.dtype not in STORAGE_CODES:
            raise ValueError(f"the kernels do not compute {mixture} in {weights.router.dtype}")
        self._kernels, self.mixture = kernels, mixture
        self.dtype, self._hidden = weights.router.dtype, weights.router.shape[1]
        self._experts = PackedExperts(kernels, mixture.expert, weights.experts)
        self._shared = None
        if mixture.shared is not None and weights.shared is not None:
            self._shared = PackedExperts(kernels, mixture.shared, weights.shared)
        rows = weights.router if weights.shared_gate is None else torch.cat([weights.router, weights.shared_gate])
        self._router = _pack(kernels, rows.unsqueeze(0), 0)
        self._router_bias = _with_gate(weights.router_bias, weights.shared_gate)
        self._correction = None if weights.correction is None else weights.correction.float()
        self.layer_args = MixtureArgs(
            router=self._router_args(),
            experts=self._experts.args,
            shared=ExpertsArgs() if self._shared is None else self._shared.args,
            first_expert=mixture.held_experts.start,
            hidden=self._hidden,
            storage=STORAGE_CODES[self.dtype],
        )

    def _router_args(self) -> RouterArgs:
        mixture, correction = self.mixture, self._correction
        return RouterArgs(
            packed=self._router.data_ptr(),
            bias=None if self._router_bias is None else self._router_bias.data_ptr(),
            correction=None if correction is None else correction.data_ptr(),
            num_experts=mixture.num_experts,
            top_k=mixture.top_k,
            num_groups=mixture.num_groups,
            top_groups=mixture.top_groups,
            scale=mixture.scale,
            jitter=mixture.jitter,
            scoring=SCORING_CODES[mixture.scoring],
            group_scoring=GROUP_CODES[mixture.group_scoring],
            normalised=mixture.normalised,
            shared_gate=mixture.shared_gate,
        )

    @property
    def num_inner_columns(self) -> int:
        """Elements per row of the memory between the two products."""
        shared = 0 if self.mixture.shared is None else self.mixture.shared.size
        return self.mixture.top_k * self.mixture.expert.size + shared

    def choose(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> None:
        """ids [T, top_k] int32, best first, and weights [T, top_k] float32 of x [T, H]: the choice alone."""
        args = self._with_rows(x, ids, weights)
        self._raise_for(self._kernels.route(byref(args), torch.get_num_threads()))

    def __call__(self, x: torch.Tensor, out: torch.Tensor, room: MixtureRoom) -> None:
        """out [T, H] of x [T, H]. The room's ``inner`` is contiguous, T * num_inner_columns elements."""
        inner = room.inner
        check_mixture_rows(x, out, self._hidden, self.dtype)
        if inner.numel() < x.shape[0] * self.num_inner_columns or not inner.is_contiguous():
            raise ValueError(
                f"inner is {tuple(inner.shape)}, wanted {self.num_inner_columns} for each of {len(x)} rows"
            )
        args = self._with_rows(x, room.ids, room.shares)
        args.out, args.out_stride, args.inner = out.data_ptr(), out.stride(0), inner.data_ptr()
        self._raise_for(self._kernels.run_mixture(byref(args), torch.get_num_threads()))

    def _with_rows(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> MixtureArgs:
        shape = (x.shape[0], self.mixture.top_k)
        for name, tensor, dtype in (("ids", ids, torch.int32), ("weights", weights, torch.float32)):
            check_rows(name, tensor, shape, dtype)
            if not tensor.is_contiguous():
                raise ValueError(f"{name} is not contiguous")
        args = self.layer_args
        args.x, args.x_stride, args.rows = x.data_ptr(), x.stride(0), x.shape[0]
        args.expert_ids, args.expert_weights = ids.data_ptr(), weights.data_ptr()
        return args

    def _raise_for(self, status: int) -> None:
        if status != STATUS_OK:
            raise ValueError(f"no {self.mixture.top_k} experts can be chosen: {self.mixture}")


def _with_gate(bias: torch.Tensor | None, gate: torch.Tensor | None) -> torch.Tensor | None:
    """The router's bias, with 0 for the shared expert's gate."""
    return bias if bias is None or gate is None else torch.cat([bias, bias.new_zeros(1)])
