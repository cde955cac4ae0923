"""The compiled CPU kernels against plain torch, for a report. Nothing is replaced by itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import torch

from kvplan_engine.attention.cpu import CpuBackend
from kvplan_engine.errors import EngineError
from kvplan_engine.kernel_checks.attention_cases import DECODE, PROMPTS, compare_attending, compare_writing
from kvplan_engine.kernel_checks.case import TOLERANCE, Comparison
from kvplan_engine.kernel_checks.operation_cases import compare_operation, operations_of
from kvplan_engine.kernel_checks.product_cases import MatrixCase
from kvplan_engine.kernel_checks.use import KernelUse
from kvplan_engine.kernel_checks.verdicts import Verdict, Verdicts
from kvplan_engine.kernels.cpu import ops as cpu_ops
from kvplan_engine.kernels.cpu.library import CpuKernels
from kvplan_engine.layers.linear import Panels
from kvplan_engine.layers.projection import StoredWeight

_CPU = torch.device("cpu")
_ROWS = (1, 7, 40)
_MOST_OUTPUTS = 256


def check_cpu_kernels(kernels: CpuKernels, use: KernelUse) -> Verdicts:
    """The verdicts on what ``use`` needs of them. A family is what its worst case is."""
    started, found = time.perf_counter(), dict[str, Verdict]()
    for family, compare in _cases(kernels, use):
        verdict = _verdict(family, compare)
        known = found.get(family)
        if known is None or not verdict.passed or (verdict.error or 0.0) > (known.error or 0.0):
            found[family] = verdict
    return Verdicts(tuple(found.values()), time.perf_counter() - started)


def _cases(kernels: CpuKernels, use: KernelUse) -> Iterator[tuple[str, Callable[[], Comparison]]]:
    scalar, backend = use.storage.scalar, CpuBackend(kernels)
    for name, arguments in operations_of(use.operations):
        yield name, partial(compare_operation, cpu_ops, _CPU, name, arguments, scalar)
    for heads in use.heads:
        yield "cpu_decode", partial(compare_attending, backend, _CPU, heads, use.storage, DECODE)
        yield "cpu_prompts", partial(compare_attending, backend, _CPU, heads, use.storage, PROMPTS)
        yield "cpu_write", partial(compare_writing, backend, _CPU, heads, use.storage)
    for matrix in use.matrices:
        yield "cpu_products", partial(_compare_product, kernels, scalar, matrix)


def _compare_product(kernels: CpuKernels, scalar: torch.dtype, matrix: MatrixCase) -> Comparison:
    generator = torch.Generator().manual_seed(1)
    outputs = min(matrix.outputs, _MOST_OUTPUTS)
    weight = (torch.randn(outputs, matrix.inputs, generator=generator) * matrix.inputs**-0.5).to(scalar)
    product = Panels(kernels).make(StoredWeight({"w.weight": weight.clone()}, "w"))
    found, wanted = [], []
    for rows in _ROWS:
        x = torch.randn(rows, matrix.inputs, generator=generator).to(scalar)
        out = torch.zeros(rows, outputs, dtype=scalar)
        product(x, out)
        found.append(out)
        wanted.append(x.float() @ weight.float().t())
    return Comparison(found, wanted, TOLERANCE[scalar])


def _verdict(family: str, compare: Callable[[], Comparison]) -> Verdict:
    try:
        comparison = compare()
    except (EngineError, RuntimeError, ValueError) as failure:
        return Verdict(family, passed=False, is_used=True, why=str(failure))
    error, tolerance = comparison.largest_error(), comparison.tolerance
    passed = error <= tolerance
    why = "" if passed else f"an error of {error:.2g}, and {tolerance:.2g} is allowed"
    return Verdict(family, passed, is_used=True, why=why, error=error, tolerance=tolerance)
