"""Products with packed and with quantised weights, in every build: against float64, and the same whatever the batch."""

from __future__ import annotations

from ctypes import byref
from dataclasses import replace

import pytest
import torch
from quantised_cases import KINDS, Kind, random_weight
from torch.nn import functional

from kvplan_engine.kernels.cpu.library import STORAGE_CODES, CpuKernels
from kvplan_engine.kernels.cpu.packed import PackedWeight, packs_gated
from kvplan_engine.kernels.cpu.quantised import PackedQuantised, stacked_args
from kvplan_engine.kernels.quantised_weight import QuantisedWeight

# inputs x outputs: less than a panel, odd, whole panels, rows whose addresses agree in their lower bits, several steps
SHAPES = [(1, 1), (7, 5), (40, 48), (96, 130), (1024, 33), (1500, 64)]


def _operands(rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(rows * 1000 + inputs)
    x = torch.randn(rows, inputs + 3, generator=generator)[:, :inputs].to(dtype)
    weight = torch.randn(outputs, inputs, generator=generator).mul_(inputs**-0.5).to(dtype)
    return x, weight, torch.randn(outputs, generator=generator).to(dtype)


def _definition(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, activation: str | None) -> torch.Tensor:
    result = x.double() @ weight.double().t() + bias.double()
    if activation is not None and activation.endswith("_and_mul"):
        gate, up = result.chunk(2, dim=-1)
        return (functional.silu(gate) if activation[0] == "s" else functional.gelu(gate, approximate="tanh")) * up
    if activation is None:
        return result
    if activation == "relu2":
        return functional.relu(result).square()
    return functional.gelu(result, approximate="tanh" if activation == "gelu_new" else "none")


def _result(packed: PackedWeight | PackedQuantised, x: torch.Tensor) -> torch.Tensor:
    """The product, into strided rows with something behind each that must stay."""
    columns = packed.num_result_columns
    room = torch.full((x.shape[0], columns + 3), 7.0, dtype=x.dtype)
    packed(x, room[:, :columns])
    assert (room[:, columns:] == 7.0).all()
    return room[:, :columns]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("activation", [None, "gelu_new", "gelu", "relu2"])
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_equals_the_definition(
    kernels: CpuKernels, inputs: int, outputs: int, activation: str | None, dtype: torch.dtype
) -> None:
    for rows in (1, 2, 3, 4, 5, 6, 7, 10, 13, 70):
        x, weight, bias = _operands(rows, inputs, outputs, dtype)
        result = _result(PackedWeight(kernels, weight, bias, activation), x)
        want = _definition(x, weight, bias, activation)
        error = (result.double() - want).abs()
        assert (error <= (2e-5 if dtype == torch.float32 else 2**-8) * (1 + want.abs())).all(), rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("activation", ["silu_and_mul", "gelu_tanh_and_mul"])
def test_gate_and_up(kernels: CpuKernels, activation: str, dtype: torch.dtype) -> None:
    half = 3 * kernels.packed_outputs(1)
    for rows in (1, 2, 3, 4, 50):
        x, weight, bias = _operands(rows, 72, 2 * half, dtype)
        result = _result(PackedWeight(kernels, weight, bias, activation), x)
        want = _definition(x, weight, bias, activation)
        error = (result.double() - want).abs()
        assert (error <= (2e-5 if dtype == torch.float32 else 2**-7) * (1 + want.abs())).all(), rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_heads_columns_are_the_same_in_whole_lines_and_across_them(kernels: CpuKernels, dtype: torch.dtype) -> None:
    """Where every row begins with a cache line, many columns are written past the caches."""
    x, weight, bias = _operands(9, 40, 16384 + 64, dtype)
    packed = PackedWeight(kernels, weight, bias)
    memory = torch.empty(10 * 16448 + 64, dtype=dtype)
    first = -memory.data_ptr() % 64 // memory.itemsize
    lines = memory[first : first + 10 * 16448].view(10, 16448).fill_(7.0)
    packed(x, lines[:9])
    assert torch.equal(lines[:9], _result(packed, x))
    assert (lines[9] == 7.0).all()


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_threads_share_panels_that_do_not_come_out_even(kernels: CpuKernels, dtype: torch.dtype) -> None:
    """What is left over is cut into pieces of its rows, which are those of one thread."""
    x, weight, bias = _operands(70, 96, 9 * kernels.packed_outputs(1) - 3, dtype)
    packed = PackedWeight(kernels, weight, bias, "gelu_new")
    for rows in (11, 12, 18, 70):
        torch.set_num_threads(1)
        want = _result(packed, x[:rows]).clone()
        for threads in (2, 4, 5, 7):
            torch.set_num_threads(threads)
            assert torch.equal(_result(packed, x[:rows]), want), (rows, threads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("inputs", "outputs"), [(1500, 200), (40, 48)])
def test_a_row_does_not_depend_on_its_batch(kernels: CpuKernels, inputs: int, outputs: int, dtype: torch.dtype) -> None:
    x, weight, bias = _operands(401, inputs, outputs, dtype)
    packed = PackedWeight(kernels, weight, bias, "gelu_new")
    all_rows = _result(packed, x)
    for count in (1, 2, 3, 5, 7, 8, 10, 11, 64, 200):
        assert torch.equal(_result(packed, x[401 - count :]), all_rows[401 - count :]), count


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_rows_come_back_unchanged(kernels: CpuKernels, inputs: int, outputs: int, dtype: torch.dtype) -> None:
    _, weight, _ = _operands(1, inputs, outputs, dtype)
    indices = torch.randint(0, outputs, (37,))
    out = torch.empty(37, inputs, dtype=dtype)
    PackedWeight(kernels, weight).rows(indices, out)
    assert torch.equal(out, weight[indices])


def test_wrong_operands_are_named(kernels: CpuKernels) -> None:
    x, weight, bias = _operands(2, 8, 4, torch.float32)
    packed = PackedWeight(kernels, weight, bias)
    with pytest.raises(ValueError, match="out is"):
        packed(x, torch.empty(2, 5))
    with pytest.raises(ValueError, match="x is"):
        packed(x[:, :7], torch.empty(2, 4))
    with pytest.raises(IndexError, match="weight's 4"):
        packed.rows(torch.tensor([0, 4]), torch.empty(2, 8))
    with pytest.raises(ValueError, match="bias is"):
        PackedWeight(kernels, weight, bias[:3])
    assert not packs_gated(kernels, 4)
    with pytest.raises(ValueError, match="whole panels"):
        PackedWeight(kernels, weight, None, "silu_and_mul")


_KIND = {kind.name: kind for kind in KINDS}


def _rows_of(number: int, weight: QuantisedWeight, dtype: torch.dtype) -> torch.Tensor:
    """Strided, with something behind each row."""
    generator = torch.Generator().manual_seed(number)
    return torch.randn(number, weight.num_inputs + 3, generator=generator)[:, : weight.num_inputs].to(dtype)


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
def test_quantised_gate_and_up(kernels: CpuKernels, kind: Kind, dtype: torch.dtype) -> None:
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
def test_a_row_of_a_quantised_product_does_not_depend_on_its_batch(
    kernels: CpuKernels, kind: Kind, dtype: torch.dtype
) -> None:
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


def test_wrong_operands_of_quantised_products_are_named(kernels: CpuKernels) -> None:
    weight = random_weight(KINDS[0], 20, 2)
    packed = PackedQuantised(kernels, weight, torch.zeros(20))
    x = torch.zeros(2, 64)
    with pytest.raises(ValueError, match="out is"):
        packed(x, torch.empty(2, 5))
    with pytest.raises(ValueError, match="x is"):
        packed(x[:, :7], torch.empty(2, 20))
    with pytest.raises(ValueError, match="bias is"):
        packed(x.bfloat16(), torch.empty(2, 20, dtype=torch.bfloat16))
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
