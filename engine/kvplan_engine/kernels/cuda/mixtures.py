"""A mixture of experts on a CUDA device (csrc/cuda/mixtures): nothing waits, nothing is read back.

logits      the router's product, float32
choose      each row's experts and their weights; rows that pad a captured step choose none
sort        pairs of (row, expert) by expert, in items of some rows; few rows need none
up          the first product of each pair, with its activation
down        the second one, for as many outputs at a time as there is room for, then their weighted sum
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from kvplan_engine.description.feed_forward import Mixture, Mlp
from kvplan_engine.kernels.cuda.checks import VECTOR_BYTES, rows_are_aligned
from kvplan_engine.kernels.cuda.launching.families import MIXTURE_LARGE, MIXTURE_MMA
from kvplan_engine.kernels.cuda.launching.runtime import CudaRuntime, DeviceProperties
from kvplan_engine.kernels.cuda.launching.variants import SCALAR_NAMES, KernelVariant, variant
from kvplan_engine.kernels.cuda.params import ProductParams, RouteParams, SortParams, SumParams
from kvplan_engine.kernels.mixture_weights import (
    MixtureRoom,
    MixtureWeights,
    check_mixture_rows,
    check_weights,
    dense_matrices,
)

# How a mixture's products are compiled and launched for its sizes on a device: pure arithmetic.


FEW_ROWS = 4
"""Up to so many rows, each pair of a row and an expert is a work item of its own, and nothing is sorted."""
SUM_BYTES = 64 * 1024**2
"""Most bytes of the experts' outputs before they are added: the bound on the outputs of one launch."""
MOST_CHOICES = 32
"""mixture_route.cu: a lane for each choice and for each group."""

_SIMPLE_ROWS = 8
_ROUTER_ROWS = 64  # up to so many, the router's few outputs keep more blocks busy without tensor cores
_TILE_ROWS = (16, 64, 128)  # mixture_mma.cu: ROWS
_STAGES = {16: 4, 64: 3, 128: 3}
LARGE_ROWS = 128
"""Rows of a tile of prompts: where an expert has so many pairs that few tiles are not full, and the step so many rows
that one expert alone has blocks enough."""
_LARGE_PAIRS, _LARGE_STEP = 256, 1024
_ITEM_SIBLINGS = 1 << 15  # mixture_sort.cu: SIBLINGS
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
    is_large = pairs_per_expert >= _LARGE_PAIRS and num_rows >= _LARGE_STEP
    if is_large and MIXTURE_LARGE not in properties.avoided:
        return LARGE_ROWS
    return _TILE_ROWS[pairs_per_expert >= _TILE_ROWS[1] / 2]


def router_rows(num_rows: int, scalar: torch.dtype, properties: DeviceProperties) -> int:
    """The same for the router's product."""
    rows = product_rows(num_rows, min(num_rows, _TILE_ROWS[1]), scalar, properties)
    return rows if rows <= _SIMPLE_ROWS or num_rows > _ROUTER_ROWS else _SIMPLE_ROWS


def max_sorted_items(num_pairs: int, num_experts: int, rows: int) -> int:
    """An upper bound on the items of ``rows`` pairs that so many sorted pairs make, whatever they chose."""
    return num_pairs // rows + min(num_pairs, num_experts)


def product_launch(shape: ProductShape, rows: int, properties: DeviceProperties) -> ProductLaunch:
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
    stages = min(_STAGES[rows], properties.shared_bytes_per_block // ((rows + _WEIGHT_ROWS) * _PITCH))
    chosen = variant("mixtures/mixture_mma.cu", "expert_product", **defines, stages=stages)
    outputs = _WEIGHT_ROWS // 2 if shape.is_gated else _WEIGHT_ROWS
    threads = 2 * _THREADS if rows == LARGE_ROWS else _THREADS
    return ProductLaunch(chosen, rows, outputs, stages * (rows + _WEIGHT_ROWS) * _PITCH, threads)


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


class MixtureMemory:
    """Memory that only the kernels of mixtures read and write, the same for all layers; grows, never shrinks.

    What is outgrown is kept: a captured graph may still use it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: dict[str, torch.Tensor] = {}
        self._outgrown: list[torch.Tensor] = []

    def take(self, name: str, count: int, dtype: torch.dtype) -> int:
        """The address of at least ``count`` elements."""
        known = self._buffers.get(name)
        if known is None or known.numel() < count:
            if known is not None:
                self._outgrown.append(known)
            known = self._buffers[name] = torch.empty(count, dtype=dtype, device=self._device)
        return known.data_ptr()


# One product of a mixture of experts, launched: which rows, which weights, where to.


@dataclass(frozen=True, slots=True)
class Work:
    """The items of a product. rows: pairs of one, at most; items, pairs: what was sorted; experts: of each pair.

    Without items the pairs are taken in order, and without experts all of them belong to expert 0.
    """

    num_items: int
    num_pairs: int
    rows: int
    items: int | None = None
    pairs: int | None = None
    experts: int | None = None

    @classmethod
    def of_all(cls, num_rows: int, rows: int) -> Work:
        """Every row is a pair of its own."""
        return cls(-(-num_rows // rows), num_rows, rows)


def even_items(num_experts: int, pairs: int, rows: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Items [I, 4] and pairs [P], int32, as sort_pairs writes them, where every expert has so many pairs, in order."""
    of_expert = -(-pairs // rows)
    items = [
        (e, e * pairs + i * rows, min(rows, pairs - i * rows), i * _ITEM_SIBLINGS + of_expert)
        for e in range(num_experts)
        for i in range(of_expert)
    ]
    order = torch.arange(num_experts * pairs, dtype=torch.int32, device=device)
    return torch.tensor(items, dtype=torch.int32, device=device), order


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows in memory: the address of the first, and the elements between two. pairs_per_row: how many read each."""

    address: int
    stride: int
    pairs_per_row: int = 1


@dataclass(frozen=True, slots=True)
class Matrix:
    """The weights [experts, (2x) outputs, inputs] of a product, and what follows it."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    outputs: int
    shape: ProductShape
    limit: float | None = None


def run_product(
    runtime: CudaRuntime, matrix: Matrix, work: Work, rows: Rows, out: Rows, columns: range | None = None
) -> None:
    """``columns`` of the outputs (None: all) of each pair's row."""
    launch = product_launch(matrix.shape, work.rows, runtime.properties)
    columns = range(matrix.outputs) if columns is None else columns
    params = ProductParams(
        x=rows.address,
        weight=matrix.weight.data_ptr(),
        bias=None if matrix.bias is None else matrix.bias.data_ptr(),
        items=work.items,
        pairs=work.pairs,
        experts=work.experts,
        out=out.address,
        x_stride=rows.stride,
        out_stride=out.stride,
        inputs=matrix.weight.shape[-1],
        outputs=matrix.outputs,
        first_output=columns.start,
        num_outputs=len(columns),
        num_pairs=work.num_pairs,
        pairs_per_row=rows.pairs_per_row,
        limit=float("inf") if matrix.limit is None else matrix.limit,
    )
    grid = (-(-len(columns) // launch.outputs), work.num_items)
    runtime.kernel(launch.variant)(grid, launch.threads, launch.shared_bytes, params)


_SORT_THREADS = 256
_SUM_THREADS = 128
_SUM_OUTPUTS = 4 * _SUM_THREADS
_ROUTE_ROWS = 4


@dataclass(frozen=True, slots=True)
class _ExpertChoice:
    """Where one step's choices lie. ids, shares: contiguous [T, top_k]; shared_shares: the address of [T].

    ids: counted from the first expert here, -1 for one that is another rank's.
    """

    ids: torch.Tensor
    shares: torch.Tensor
    shared_shares: int


@dataclass(slots=True)
class CudaMixture:
    """One layer's mixture, a ``MixtureRun`` of ``layers``. ``runtime`` is the device, or the emulation in tests."""

    runtime: CudaRuntime
    memory: MixtureMemory
    mixture: Mixture
    weights: MixtureWeights
    layer_args: ClassVar[None] = None
    launches_each_expert: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_weights(self.mixture, self.weights)
        correction = self.weights.correction
        if correction is not None and correction.dtype is not self._scalar:
            raise ValueError(f"a correction in {correction.dtype} beside a router in {self._scalar}")
        if self._hidden * self._scalar.itemsize % VECTOR_BYTES:
            raise ValueError(f"a hidden size of {self._hidden} is not made of whole vectors")

    def __call__(self, x: torch.Tensor, out: torch.Tensor, room: MixtureRoom) -> None:
        """out [T, H] = the mixture of x [T, H]; not the same memory."""
        check_mixture_rows(x, out, self._hidden, self._scalar)
        if not rows_are_aligned(x):
            raise ValueError("x's rows do not start at multiples of 16 bytes")
        num_rows = x.shape[0]
        if num_rows == 0:
            return
        choice = _ExpertChoice(room.ids, room.shares, self.memory.take("shared_shares", num_rows, torch.float32))
        self._route(x, choice, room.num_filled)
        work = self._sort(choice, num_rows)
        self._first_products(x, room.inner, work)
        self._second_products(out, room.inner, work, choice)

    @property
    def _hidden(self) -> int:
        return self.weights.router.shape[1]

    @property
    def _scalar(self) -> torch.dtype:
        return self.weights.router.dtype

    @property
    def _sums(self) -> ProductShape:
        """A product that is kept in float32, without an activation."""
        return ProductShape(self._scalar, torch.float32)

    # ---- routing

    def _route(self, x: torch.Tensor, choice: _ExpertChoice, num_filled: torch.Tensor | None) -> None:
        num_rows, experts = x.shape[0], self.mixture.num_experts
        logits = self.memory.take("logits", num_rows * experts, torch.float32)
        router = Matrix(self.weights.router, self.weights.router_bias, experts, self._sums)
        work = Work.of_all(num_rows, router_rows(num_rows, self._scalar, self.runtime.properties))
        run_product(self.runtime, router, work, Rows(x.data_ptr(), x.stride(0)), Rows(logits, experts))
        correction, gate = self.weights.correction, self.weights.shared_gate
        params = RouteParams(
            logits=logits,
            correction=None if correction is None else correction.data_ptr(),
            x=x.data_ptr(),
            shared_gate=None if gate is None else gate.data_ptr(),
            ids=choice.ids.data_ptr(),
            shares=choice.shares.data_ptr(),
            shared_shares=choice.shared_shares,
            num_filled=None if num_filled is None else num_filled.data_ptr(),
            x_stride=x.stride(0),
            rows=num_rows,
            hidden=self._hidden,
            first_expert=self.mixture.held_experts.start,
            held_experts=len(self.mixture.held_experts),
            scale=self.mixture.scale,
            jitter=self.mixture.jitter,
        )
        kernel = self.runtime.kernel(route_variant(self.mixture, self._scalar))
        kernel((-(-num_rows // _ROUTE_ROWS), 1), 32 * _ROUTE_ROWS, 0, params)

    def _sort(self, choice: _ExpertChoice, num_rows: int) -> Work:
        """The experts' work items."""
        experts, num_pairs = len(self.mixture.held_experts), num_rows * self.mixture.top_k
        pairs_per_expert = num_pairs / self.mixture.num_experts
        rows = product_rows(num_rows, pairs_per_expert, self._scalar, self.runtime.properties)
        if rows == 1:
            return Work(num_pairs, num_pairs, 1, experts=choice.ids.data_ptr())
        max_items = max_sorted_items(num_pairs, experts, rows)
        pairs = self.memory.take("pairs", num_pairs, torch.int32)
        items = self.memory.take("items", 4 * max_items, torch.int32)
        params = SortParams(choice.ids.data_ptr(), pairs, items, num_pairs, max_items)
        self.runtime.kernel(sort_variant(self.mixture, rows))((experts, 1), _SORT_THREADS, 0, params)
        return Work(max_items, num_pairs, rows, items, pairs)

    # ---- products

    def _shared_work(self, num_rows: int) -> Work:
        return Work.of_all(num_rows, product_rows(num_rows, num_rows, self._scalar, self.runtime.properties))

    def _shared_inner(self, inner: torch.Tensor, work: Work) -> int:
        """Behind that of the experts' pairs."""
        return inner.data_ptr() + work.num_pairs * self.mixture.expert.size * self._scalar.itemsize

    def _first_products(self, x: torch.Tensor, inner: torch.Tensor, work: Work) -> None:
        """inner: [T x top_k, F] of the experts, then [T, shared F]."""
        mlp, up = self.mixture.expert, self.weights.experts
        matrix = Matrix(dense_matrices(up.up), up.up_bias, mlp.size, ProductShape.up(mlp, self._scalar), mlp.limit)
        rows = Rows(x.data_ptr(), x.stride(0), self.mixture.top_k)
        run_product(self.runtime, matrix, work, rows, Rows(inner.data_ptr(), mlp.size))
        if self.mixture.shared is not None and self.weights.shared is not None:
            mlp, up = self.mixture.shared, self.weights.shared
            matrix = Matrix(dense_matrices(up.up), up.up_bias, mlp.size, ProductShape.up(mlp, self._scalar), mlp.limit)
            rows = Rows(x.data_ptr(), x.stride(0))
            out = Rows(self._shared_inner(inner, work), mlp.size)
            run_product(self.runtime, matrix, self._shared_work(x.shape[0]), rows, out)

    def _second_products(self, out: torch.Tensor, inner: torch.Tensor, work: Work, choice: _ExpertChoice) -> None:
        num_rows, mixture, experts, shared = out.shape[0], self.mixture, self.weights.experts, self.weights.shared
        down = Matrix(dense_matrices(experts.down), experts.down_bias, self._hidden, self._sums)
        rows = Rows(inner.data_ptr(), mixture.expert.size)
        num_sums = work.num_pairs + (0 if shared is None else num_rows)
        step = slice_outputs(num_sums, self._hidden)
        sums = self.memory.take("sums", num_sums * step, torch.float32)
        for first in range(0, self._hidden, step):
            columns = range(first, min(first + step, self._hidden))
            run_product(self.runtime, down, work, rows, Rows(sums, len(columns)), columns)
            shared_sums = None
            if mixture.shared is not None and shared is not None:
                shared_sums = sums + work.num_pairs * len(columns) * torch.float32.itemsize
                matrix = Matrix(dense_matrices(shared.down), shared.down_bias, self._hidden, self._sums)
                shared_rows = Rows(self._shared_inner(inner, work), mixture.shared.size)
                run_product(
                    self.runtime,
                    matrix,
                    self._shared_work(num_rows),
                    shared_rows,
                    Rows(shared_sums, len(columns)),
                    columns,
                )
            self._add(out, sums, shared_sums, choice, columns)

    def _add(
        self, out: torch.Tensor, sums: int, shared_sums: int | None, choice: _ExpertChoice, columns: range
    ) -> None:
        """``columns`` of out = the weighted sum of what the experts gave."""
        params = SumParams(
            experts=choice.ids.data_ptr(),
            products=sums,
            shared=shared_sums,
            shares=choice.shares.data_ptr(),
            shared_shares=choice.shared_shares,
            out=out.data_ptr() + columns.start * self._scalar.itemsize,
            out_stride=out.stride(0),
            top_k=self.mixture.top_k,
            num_outputs=len(columns),
        )
        grid = (out.shape[0], -(-len(columns) // _SUM_OUTPUTS))
        self.runtime.kernel(sum_variant(self._scalar))(grid, _SUM_THREADS, 0, params)
