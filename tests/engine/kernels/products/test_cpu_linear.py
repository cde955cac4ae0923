"""The product for few rows, and the packed one, against torch's own."""

from __future__ import annotations

import pytest
import torch

from kvplan_engine.kernels import torch_ops
from kvplan_engine.kernels.cpu import ops
from kvplan_engine.kernels.cpu.library import cpu_kernels
from kvplan_engine.kernels.cpu.packed import PackedWeight
from kvplan_engine.layers.linear import FewRowsLinear, Linear, OneDnnLinear
from kvplan_engine.layers.projection import StoredWeight, make_projection
from kvplan_engine.models.device_kernels import compiled_cpu_kernels

SHAPES = [(1, 1), (8, 4), (64, 65), (131, 67), (768, 200)]


def _operands(rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(rows * 1000 + inputs)
    x = torch.randn(rows, 2 * inputs, generator=generator)[:, :inputs].to(dtype)  # rows may be strided
    weight = torch.randn(outputs, inputs, generator=generator).to(dtype)
    return x, weight, torch.randn(outputs, generator=generator).to(dtype)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 49])
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_few_rows_in_float32(rows: int, inputs: int, outputs: int, with_bias: bool) -> None:
    x, weight, bias = _operands(rows, inputs, outputs, torch.float32)
    used = bias if with_bias else None
    out = torch.full((rows, outputs + 3), torch.nan)[:, :outputs]
    ops.linear(x, weight, used, out)
    exact = x.double() @ weight.double().t() + (bias.double() if with_bias else 0.0)
    torch_error = (torch.nn.functional.linear(x, weight, used).double() - exact).abs().max()
    assert (out.double() - exact).abs().max() <= 4 * torch_error + 1e-6 * inputs**0.5


@pytest.mark.parametrize("rows", [1, 4, 49])
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_few_rows_in_bfloat16_round_once(rows: int, inputs: int, outputs: int) -> None:
    x, weight, bias = _operands(rows, inputs, outputs, torch.bfloat16)
    out, want = torch.empty(rows, outputs, dtype=torch.bfloat16), torch.empty(rows, outputs, dtype=torch.bfloat16)
    ops.linear(x, weight, bias, out)
    torch_ops.linear(x, weight, bias, want)
    # a float32 sum in another order may round to the neighbouring bfloat16, never further
    neighbour = want.float().abs() * 2.0**-7 + 1e-5 * inputs**0.5
    assert ((out.float() - want.float()).abs() <= neighbour).all()


def test_wrong_operands_are_named() -> None:
    x, weight, bias = _operands(2, 8, 4, torch.float32)
    with pytest.raises(ValueError, match="out is"):
        ops.linear(x, weight, bias, torch.empty(2, 5))
    with pytest.raises(ValueError, match="weight is"):
        ops.linear(x, weight[:, :7], bias, torch.empty(2, 4))


@pytest.mark.parametrize("rows", [1, 7, 300])
def test_every_way_to_multiply_agrees(rows: int) -> None:
    x, weight, bias = _operands(rows, 96, 40, torch.float32)
    kernels = cpu_kernels()
    assert kernels is not None
    packed = OneDnnLinear(weight, bias)  # fails where this torch has lost its packed product
    packed._most_rows = 128  # so that 300 rows are cut
    x = torch.cat([x, torch.full((80, 96), torch.nan)])[:rows]  # what lies behind the rows must not matter
    results = []
    for projection in (
        Linear(weight, bias),
        FewRowsLinear(weight, bias),
        packed,
        PackedWeight(kernels, weight, bias),
    ):
        out = torch.empty(rows, 40)
        projection(x, out)
        results.append(out)
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_packed_weight_is_not_held_twice(dtype: torch.dtype) -> None:
    weights = {"up.weight": torch.randn(8, 8, dtype=dtype), "up.bias": torch.randn(8, dtype=dtype)}
    weights["embedding"] = torch.randn(16, 8, dtype=dtype)
    kernels = cpu_kernels()
    assert kernels is not None
    kinds = compiled_cpu_kernels(kernels).projections
    for name in ("up", "embedding"):
        stored = StoredWeight(weights, name, activation="silu_and_mul", is_embedding=name == "embedding")
        made = make_projection(kinds, stored)
        assert isinstance(made, PackedWeight if dtype == torch.float32 else Linear)
        assert made.activation is None  # 4 gates and 4 ups fill no panel: somebody else multiplies them
    assert set(weights) == ({"up.bias"} if dtype == torch.float32 else {"up.weight", "up.bias", "embedding"})
