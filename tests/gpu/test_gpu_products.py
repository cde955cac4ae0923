"""Products with quantised weights, what adapters add to one, and those of few rows, on a real device."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engine" / "cuda" / "kernels"))  # the emulated tests

import test_cuda_lora
import test_cuda_quantised
import test_cuda_skinny
from quantised_cases import KINDS, Kind

from kvplan_engine.kernels.cuda.launching.driver import current_runtime
from kvplan_engine.kernels.cuda.products.float8 import multiplies_float8

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize("num_rows", [1, 2, 4, 7, 16, 100])
def test_quantised_products(kind: Kind, dtype: torch.dtype, num_rows: int) -> None:
    for outputs, groups in ((21, 3), (4096, 8)):
        test_cuda_quantised.check(kind, dtype, num_rows, outputs=outputs, groups=groups, runtime=current_runtime())


def test_a_product_in_float8() -> None:
    runtime = current_runtime()
    if not multiplies_float8(test_cuda_quantised.float8_weight(), BF16, runtime.properties):
        pytest.skip("needs compute capability 8.9")
    test_cuda_quantised.check_float8(runtime)


@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize(("rows", "outputs"), [(17, 144), (70, 80), (600, 7168)])
def test_blocks_in_float8(dtype: torch.dtype, rows: int, outputs: int) -> None:
    runtime = current_runtime()
    if runtime.properties.capability < (8, 9):
        pytest.skip("needs compute capability 8.9")
    test_cuda_quantised.check_blocks(rows, outputs, dtype, runtime)


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize("counts", [[1, 1, 1], [300, 20, 7]])
def test_adapters(dtype: torch.dtype, counts: list[int]) -> None:
    weights = test_cuda_lora.weights_of(4096, (4096, 1024, 1024), dtype)
    rows = test_cuda_lora.groups_of([0, -1, 2], counts)
    test_cuda_lora.check(weights, rows, sum(counts), runtime=current_runtime())


@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize("num_rows", [1, 8, 9, 16])
@pytest.mark.parametrize("follows", [{}, {"activation": "silu_and_mul"}, {"has_residual": True}], ids=str)
def test_products_of_few_rows(dtype: torch.dtype, num_rows: int, follows: dict[str, Any]) -> None:
    """One whose inputs blocks share, and one of Llama's size. Tensor cores add without rounding to nearest."""
    runtime = current_runtime()
    if not runtime.properties.has_tensor_kernels:
        pytest.skip("needs compute capability 8.0")
    for outputs, inputs in ((1001, 8192), (4096, 4096)):
        case = test_cuda_skinny.Case(num_rows, outputs, inputs, dtype, has_bias=True, **follows)
        test_cuda_skinny.check(case, runtime, slack=2e-3)
