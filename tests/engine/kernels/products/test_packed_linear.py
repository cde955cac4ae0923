"""Products with packed weights, in every build of the kernels: against float64, and the same whatever the batch."""

from __future__ import annotations

import pytest
import torch
from kernel_builds import BUILDS
from torch.nn import functional

from kvplan_engine.kernels.cpu.library import CpuKernels, load_kernels
from kvplan_engine.kernels.cpu.packed import PackedWeight, packs_gated

# inputs x outputs: less than a panel, odd, whole panels, rows whose addresses agree in their lower bits, several steps
SHAPES = [(1, 1), (7, 5), (40, 48), (96, 130), (1024, 33), (1500, 64)]


@pytest.fixture(scope="module", params=BUILDS, ids=lambda variant: variant.name)
def kernels(request: pytest.FixtureRequest) -> CpuKernels:
    return load_kernels(request.param)


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


def _result(packed: PackedWeight, x: torch.Tensor) -> torch.Tensor:
    """The product, into strided rows with something behind each that must stay."""
    columns = packed.num_result_columns
    room = torch.full((x.shape[0], columns + 3), 7.0, dtype=x.dtype)
    packed.multiply(x, room[:, :columns])
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
    packed.multiply(x, lines[:9])
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
        packed.multiply(x, torch.empty(2, 5))
    with pytest.raises(ValueError, match="x is"):
        packed.multiply(x[:, :7], torch.empty(2, 4))
    with pytest.raises(IndexError, match="weight's 4"):
        packed.rows(torch.tensor([0, 4]), torch.empty(2, 8))
    with pytest.raises(ValueError, match="bias is"):
        PackedWeight(kernels, weight, bias[:3])
    assert not packs_gated(kernels, 4)
    with pytest.raises(ValueError, match="whole panels"):
        PackedWeight(kernels, weight, None, "silu_and_mul")
