"""A mixture of experts on a CUDA device (csrc/cuda/mixtures): nothing waits, nothing is read back.

logits      the router's product, float32
choose      each row's experts and their weights; rows that pad a captured step choose none
sort        pairs of (row, expert) by expert, in items of some rows; few rows need none
up          the first product of each pair, with its activation
down        the second one, for as many outputs at a time as there is room for, then their weighted sum
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.kernels.cuda.checks import VECTOR_BYTES, rows_are_aligned
from kvplan_engine.kernels.cuda.launching.runtime import CudaRuntime
from kvplan_engine.kernels.cuda.mixtures.launch import (
    ProductShape,
    max_sorted_items,
    product_rows,
    route_variant,
    router_rows,
    slice_outputs,
    sort_variant,
    sum_variant,
)
from kvplan_engine.kernels.cuda.mixtures.memory import MixtureMemory
from kvplan_engine.kernels.cuda.mixtures.product import Matrix, Rows, Work, run_product
from kvplan_engine.kernels.cuda.params.parts import RouteParams, SortParams, SumParams
from kvplan_engine.kernels.mixture_weights import MixtureWeights, check_mixture_rows, check_weights, dense_matrices

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
    """One layer's mixture. ``runtime`` is the device, or the emulation in tests."""

    runtime: CudaRuntime
    memory: MixtureMemory
    mixture: Mixture
    weights: MixtureWeights

    def __post_init__(self) -> None:
        check_weights(self.mixture, self.weights)
        if self._hidden * self._scalar.itemsize % VECTOR_BYTES:
            raise ValueError(f"a hidden size of {self._hidden} is not made of whole vectors")

    def run(
        self,
        x: torch.Tensor,
        out: torch.Tensor,
        ids: torch.Tensor,
        shares: torch.Tensor,
        inner: torch.Tensor,
        num_filled: torch.Tensor | None = None,
    ) -> None:
        """out [T, H] = the mixture of x [T, H]; ids, shares [T, top_k], inner and num_filled as in MixtureRoom."""
        check_mixture_rows(x, out, self._hidden, self._scalar)
        if not rows_are_aligned(x):
            raise ValueError("x's rows do not start at multiples of 16 bytes")
        num_rows = x.shape[0]
        if num_rows == 0:
            return
        choice = _ExpertChoice(ids, shares, self.memory.take("shared_shares", num_rows, torch.float32))
        self._route(x, choice, num_filled)
        work = self._sort(choice, num_rows)
        self._first_products(x, inner, work)
        self._second_products(out, inner, work, choice)

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
