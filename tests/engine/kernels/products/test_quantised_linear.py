"""Products with quantised weights, in every build of the kernels: those of the dequantised weights in float64."""

from __future__ import annotations

from ctypes import byref
from dataclasses import replace

import pytest
import torch
from kernel_builds import BUILDS
from quantised_cases import KINDS, Kind, random_weight
from torch.nn import functional

from kvplan_engine.kernels.cpu.library import STORAGE_CODES, CpuKernels, load_kernels
from kvplan_engine.kernels.cpu.quantised import PackedQuantised, stacked_args
from kvplan_engine.kernels.quantised_weight import QuantisedWeight

_KIND = {kind.name: kind for kind in KINDS}


@pytest.fixture(scope="module", params=BUILDS, ids=lambda variant: variant.name)
def kernels(request: pytest.FixtureRequest) -> CpuKernels:
    return load_kernels(request.param)


def _rows_of(number: int, weight: QuantisedWeight, dtype: torch.dtype) -> torch.Tensor:
    """Strided, with something behind each row."""
    generator = torch.Generator().manual_seed(number)
    return torch.randn(number, weight.num_inputs + 3, generator=generator)[:, : weight.num_inputs].to(dtype)


def _result(packed: PackedQuantised, x: torch.Tensor) -> torch.Tensor:
    columns = packed.num_result_columns
    room = torch.full((x.shape[0], columns + 3), 7.0, dtype=x.dtype)
    packed.multiply(x, room[:, :columns])
    assert (room[:, columns:] == 7.0).all()
    return room[:, :columns]


def _assert_close(result: torch.Tensor, want: torch.Tensor) -> None:
    tolerance = 2e-5 if result.dtype == torch.float32 else 2**-8
    assert ((result.double() - want).abs() <= tolerance * (1 + want.abs())).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_equals_the_product_with_the_dequantised_weight(kernels: CpuKernels, kind: Kind, dtype: torch.dtype) -> None:
    weight = random_weight(kind, 130, 3)
    bias = torch.randn(130).to(dtype)
    packed = PackedQuantised(kernels, weight, bias, "gelu_new")
    wide = weight.dequantised().double()
    for rows in (1, 2, 3, 4, 5, 6, 7, 13, 200):
        x = _rows_of(rows, weight, dtype)
        want = functional.gelu(x.double() @ wide.t() + bias.double(), approximate="tanh")
        _assert_close(_result(packed, x), want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS[:5], ids=str)
def test_gate_and_up(kernels: CpuKernels, kind: Kind, dtype: torch.dtype) -> None:
    half = 3 * kernels.packed_outputs(1)
    weight = random_weight(kind, 2 * half, 2)
    packed = PackedQuantised(kernels, weight, None, "silu_and_mul")
    for rows in (1, 3, 9):
        x = _rows_of(rows, weight, dtype)
        gate, up = (x.double() @ weight.dequantised().double().t()).chunk(2, dim=1)
        _assert_close(_result(packed, x), functional.silu(gate) * up)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_in_several_formats_are_one_product(kernels: CpuKernels, dtype: torch.dtype) -> None:
    sizes = {"q4_0": (130, 4), "q6_k": (70, 8), "q4_1": (33, 4)}
    weights = [random_weight(_KIND[name], *size) for name, size in sizes.items()]
    biases = [torch.randn(weight.num_outputs).to(dtype) for weight in weights]
    parts = [PackedQuantised(kernels, weight, bias) for weight, bias in zip(weights, biases, strict=True)]
    x, out = _rows_of(7, weights[0], dtype), torch.full((7, 236), 7.0, dtype=dtype)
    args = stacked_args(parts)
    args.x, args.out, args.storage = x.data_ptr(), out.data_ptr(), STORAGE_CODES[dtype]
    args.x_stride, args.out_stride, args.rows = x.stride(0), out.stride(0), 7
    kernels.multiply_packed(byref(args), 2)
    assert torch.equal(out[:, :233], torch.cat([_result(part, x) for part in parts], dim=1))
    assert (out[:, 233:] == 7.0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_row_does_not_depend_on_its_batch(kernels: CpuKernels, kind: Kind, dtype: torch.dtype) -> None:
    weight = random_weight(kind, 100, 4)
    packed = PackedQuantised(kernels, weight)
    x = _rows_of(210, weight, dtype)
    all_rows = _result(packed, x)
    for count in (1, 2, 5, 6, 7, 64):
        assert torch.equal(_result(packed, x[210 - count :]), all_rows[210 - count :]), count


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_rows_come_back(kernels: CpuKernels, kind: Kind) -> None:
    weight = random_weight(kind, 77, 2)
    indices = torch.randint(0, 77, (37,))
    for dtype in (torch.float32, torch.bfloat16):
        out = torch.empty(37, weight.num_inputs, dtype=dtype)
        PackedQuantised(kernels, weight).rows(indices, out)
        torch.testing.assert_close(
            out, weight.dequantised()[indices].to(dtype), rtol=1e-6 if dtype.itemsize == 4 else 1e-2, atol=1e-6
        )


def test_wrong_operands_are_named(kernels: CpuKernels) -> None:
    weight = random_weight(KINDS[0], 20, 2)
    packed = PackedQuantised(kernels, weight, torch.zeros(20))
    x = torch.zeros(2, 64)
    with pytest.raises(ValueError, match="out is"):
        packed.multiply(x, torch.empty(2, 5))
    with pytest.raises(ValueError, match="x is"):
        packed.multiply(x[:, :7], torch.empty(2, 20))
    with pytest.raises(ValueError, match="bias is"):
        packed.multiply(x.bfloat16(), torch.empty(2, 20, dtype=torch.bfloat16))
    with pytest.raises(IndexError, match="weight's 20"):
        packed.rows(torch.tensor([0, 20]), torch.empty(2, 64))
    with pytest.raises(ValueError, match="whole panels"):
        PackedQuantised(kernels, random_weight(KINDS[0], 4, 1), None, "silu_and_mul")
    with pytest.raises(ValueError, match="groups of 512"):
        PackedQuantised(
            kernels,
            QuantisedWeight(weight.codes.view(1, -1).repeat(1, 4)[:, :256], weight.scales[:1, :1], None, weight.book),
        )
    with pytest.raises(ValueError, match="6 bits"):
        PackedQuantised(kernels, random_weight(replace(_KIND["q6_k"], group=8), 4, 2))
    with pytest.raises(ValueError, match="block scales belong to int8"):
        PackedQuantised(kernels, replace(random_weight(_KIND["q6_k"], 4, 2), block_scales=None))
    uneven = torch.linspace(-1, 1, 256)
    with pytest.raises(ValueError, match="a book of 8 bits"):
        PackedQuantised(kernels, QuantisedWeight(weight.codes.repeat(1, 2), weight.scales, None, uneven))
