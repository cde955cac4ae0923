"""One product of a mixture of experts, launched: which rows, which weights, where to."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvplan_engine.kernels.cuda.launching.runtime import CudaRuntime
from kvplan_engine.kernels.cuda.mixtures.launch import ProductShape, product_launch
from kvplan_engine.kernels.cuda.params.parts import ProductParams


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
    launch = product_launch(matrix.shape, work.rows)
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
