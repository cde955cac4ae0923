"""Every CPU operation against its slow twin: shapes, storage types, strided rows, build variants, thread counts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from kernel_builds import BUILDS

from kvplan_engine.kernels import torch_ops
from kvplan_engine.kernels.build import NATIVE, build_library
from kvplan_engine.kernels.cpu import ops
from kvplan_engine.kernels.cpu.library import CpuKernels, load_kernels

pytestmark = pytest.mark.usefixtures("one_thread")

WIDTHS = [1, 7, 8, 64, 100, 576, 768, 5000]
ROWS = [1, 3, 64]
DTYPES = [torch.float32, torch.bfloat16]
EPS = 1e-5


@pytest.fixture(autouse=True, params=BUILDS, ids=lambda build: build.name)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CpuKernels:
    """Run each test with each build of the kernels."""
    library = load_kernels() if request.param is NATIVE else CpuKernels(build_library(request.param))
    monkeypatch.setattr(ops, "cpu_kernels", lambda: library)
    return library


def rows_of(rows: int, width: int, dtype: torch.dtype, seed: int = 0, spread: float = 2.0) -> torch.Tensor:
    """[rows, width] as a view into wider rows, whose other columns are NaN."""
    generator = torch.Generator().manual_seed(seed)
    wide = torch.full((rows, width + 5), float("nan"), dtype=dtype)
    wide[:, 2 : width + 2] = (torch.randn(rows, width, generator=generator) * spread + 0.3).to(dtype)
    return wide[:, 2 : width + 2]


def assert_close(result: torch.Tensor, exact: torch.Tensor, in_float32: torch.Tensor) -> None:
    """As near to the float64 twin as the float32 twin is, times five; bfloat16 adds the one rounding of the result."""
    allowed = 5.0 * (in_float32.double() - exact).abs().max() + 3e-7 * exact.abs() + 1e-7
    rounding = exact.abs() * 2.0**-8 if result.dtype is torch.bfloat16 else 0.0
    error = (result.double() - exact).abs()
    assert bool((error <= allowed + rounding).all()), f"worst error {float(error.max()):.2e}"


def assert_untouched_around(view: torch.Tensor) -> None:
    """The NaN columns beside a strided view are still NaN."""
    around = view.as_strided((view.shape[0], 2), (view.stride(0), 1), view.storage_offset() + view.shape[1])
    assert bool(around.isnan().all())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_norms(name: str, rows: int, width: int, dtype: torch.dtype) -> None:
    x = rows_of(rows, width, dtype)
    parameters = [rows_of(1, width, dtype, seed)[0].contiguous() for seed in (1, 2)[: 1 if name == "rms_norm" else 2]]
    out = rows_of(rows, width, dtype, 3)
    getattr(ops, name)(x, *parameters, EPS, out)
    exact, in_float32 = torch.empty(rows, width).double(), torch.empty(rows, width)
    getattr(torch_ops, name)(x.double(), *(p.double() for p in parameters), EPS, exact)
    getattr(torch_ops, name)(x.float(), *(p.float() for p in parameters), EPS, in_float32)
    assert_close(out, exact, in_float32)
    assert_untouched_around(out)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [7, 64])
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_norms_of_heads(name: str, width: int, dtype: torch.dtype) -> None:
    """Each of three heads, which lie side by side in a part of wider rows, and in place."""
    rows = rows_of(5, 3 * width, dtype)
    heads = rows.unflatten(1, (3, width))
    parameters = [rows_of(1, width, dtype, seed)[0].contiguous() for seed in (1, 2)[: 1 if name == "rms_norm" else 2]]
    exact, in_float32 = torch.empty(5, 3, width).double(), torch.empty(5, 3, width)
    getattr(torch_ops, name)(heads.double(), *(p.double() for p in parameters), EPS, exact)
    getattr(torch_ops, name)(heads.float(), *(p.float() for p in parameters), EPS, in_float32)
    getattr(ops, name)(heads, *parameters, EPS, heads)
    assert_close(heads, exact, in_float32)
    assert_untouched_around(rows)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [7, 576, 5000])
@pytest.mark.parametrize("name", ["add_rms_norm", "add_layer_norm"])
def test_norms_with_addition(name: str, width: int, dtype: torch.dtype) -> None:
    delta, residual = rows_of(9, width, dtype, 1), rows_of(9, width, dtype, 2)
    parameters = [rows_of(1, width, dtype, s)[0].contiguous() for s in (3, 4)[: 1 if name == "add_rms_norm" else 2]]
    sums = (residual.float() + delta.float()).to(dtype)
    plain = name.removeprefix("add_")
    exact, in_float32 = torch.empty(9, width).double(), torch.empty(9, width)
    getattr(torch_ops, plain)(sums.double(), *(p.double() for p in parameters), EPS, exact)
    getattr(torch_ops, plain)(sums.float(), *(p.float() for p in parameters), EPS, in_float32)
    getattr(ops, name)(delta, residual, *parameters, EPS, delta)
    assert torch.equal(residual, sums)
    assert_close(delta, exact, in_float32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("head_size", "rotary"), [(64, 64), (16, 16), (80, 32), (96, 96), (12, 6)])
@pytest.mark.parametrize("tokens", [1, 70])
def test_rope(tokens: int, head_size: int, rotary: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    fused = torch.randn(tokens, 9, head_size, generator=generator).to(dtype)
    positions = torch.randint(0, 300, (tokens,), generator=generator)
    angles = torch.arange(300)[:, None] * 10000.0 ** -(torch.arange(rotary // 2) * 2 / rotary)
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1)
    expected, exact = fused.float(), fused.double()
    torch_ops.rope_inplace(expected[:, :6], positions, cos_sin)
    torch_ops.rope_inplace(exact[:, :6], positions, cos_sin.double())
    ops.rope_inplace(fused[:, :6], positions, cos_sin)
    assert_close(fused, exact, expected)
    assert torch.equal(fused[:, 6:], expected[:, 6:].to(dtype))


def test_position_beyond_the_table_is_refused() -> None:
    x = torch.ones(2, 1, 8)
    with pytest.raises(IndexError, match="rotary table of 4 rows"):
        ops.rope_inplace(x, torch.tensor([0, 4]), torch.zeros(4, 8))
    assert bool((x == 1).all())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [1, 7, 96, 1536, 9000])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("in_place", [False, True])
def test_silu_and_mul(in_place: bool, rows: int, width: int, dtype: torch.dtype) -> None:
    gate_up = rows_of(rows, 2 * width, dtype, spread=6.0)
    exact, in_float32 = torch.empty(rows, width).double(), torch.empty(rows, width)
    torch_ops.silu_and_mul(gate_up.double(), exact)
    torch_ops.silu_and_mul(gate_up.float(), in_float32)
    out = gate_up[:, :width] if in_place else torch.empty(rows, width, dtype=dtype)
    up = gate_up[:, width:].clone()
    ops.silu_and_mul(gate_up, out)
    assert_close(out, exact, in_float32)
    assert torch.equal(gate_up[:, width:], up)
    assert_untouched_around(gate_up)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [1, 7, 96, 3072, 9000])
@pytest.mark.parametrize("name", ["gelu_inplace", "gelu_new_inplace"])
def test_gelu(name: str, width: int, dtype: torch.dtype) -> None:
    x = rows_of(5, width, dtype, spread=4.0)
    exact, in_float32 = x.double(), x.float()
    getattr(torch_ops, name)(exact)
    getattr(torch_ops, name)(in_float32)
    getattr(ops, name)(x)
    assert_close(x, exact, in_float32)
    assert_untouched_around(x)


@pytest.mark.parametrize("function", [ops.gelu_inplace, ops.gelu_new_inplace])
def test_gelu_at_the_ends(function: Callable[[torch.Tensor], None]) -> None:
    x = torch.tensor([[-1e30, -200.0, -0.0, 0.0, 200.0, 1e30, float("inf")]])
    expected = x.clamp(min=0.0)
    function(x)
    assert x.tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [1, 5, 16, 17, 1000, 50257])
@pytest.mark.parametrize("rows", ROWS)
def test_argmax(rows: int, width: int, dtype: torch.dtype) -> None:
    """Few distinct values, so that every row has ties; the lowest index wins."""
    generator = torch.Generator().manual_seed(rows * width)
    logits = torch.randint(-3, 3, (rows, width), generator=generator).to(dtype)
    out, expected = torch.full((rows,), -1), torch.empty(rows, dtype=torch.int64)
    ops.argmax_rows(logits, out)
    torch_ops.argmax_rows(logits, expected)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("width", [3, 40])
def test_argmax_of_odd_values(width: int) -> None:
    logits = torch.full((4, width), float("-inf"))
    logits[1, 2] = float("nan")
    logits[2, 1:] = float("inf")
    logits[3, width - 1] = -1e38
    out = torch.empty(4, dtype=torch.int64)
    ops.argmax_rows(logits, out)
    assert out.tolist() == torch.argmax(logits, dim=-1).tolist() == [0, 2, 1, width - 1]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_copy_blocks(dtype: torch.dtype) -> None:
    source = torch.randn(6, 2, 2, 3, 4, 8).to(dtype)
    target = torch.zeros(9, 2, 2, 3, 4, 8, dtype=dtype)
    pairs = torch.tensor([[5, 0], [0, 8], [3, 3]])
    expected = target.clone()
    torch_ops.copy_blocks(source, expected, pairs)
    ops.copy_blocks(source, target, pairs)
    assert torch.equal(target, expected)
    ops.copy_blocks(target, target, torch.tensor([[8, 1]]))
    assert torch.equal(target[1], source[0])
    ops.copy_blocks(target, target, torch.empty(0, 2, dtype=torch.int64))
    with pytest.raises(IndexError, match="lies outside its pool"):
        ops.copy_blocks(source, target, torch.tensor([[6, 0]]))


def test_vector_exp_and_tanh(kernels: CpuKernels) -> None:
    """exp within 2 units in the last place over its range, 0 and infinity beyond; tanh within 2 units."""
    x = torch.cat([torch.linspace(-87.3, 88.3, 400_001), torch.linspace(-1, 1, 100_001)])
    y = torch.empty_like(x)
    kernels.exp(x.data_ptr(), y.data_ptr(), len(x))
    exact = x.double().exp()
    assert float(((y.double() - exact).abs() / exact).max()) < 2 * 2.0**-23
    kernels.tanh(x.data_ptr(), y.data_ptr(), len(x))
    exact = x.double().tanh()
    assert bool(((y.double() - exact).abs() <= 2 * 2.0**-23 * exact.abs()).all())
    ends = torch.tensor([-float("inf"), -1e30, -88.0, 0.0, 90.0, float("inf"), float("nan")])
    y = torch.empty_like(ends)
    kernels.exp(ends.data_ptr(), y.data_ptr(), len(ends))
    assert y[:-1].tolist() == [0.0, 0.0, 0.0, 1.0, float("inf"), float("inf")]
    assert bool(y[-1].isnan())


@pytest.mark.parametrize("rows", [2, 7, 300])
def test_threads_give_the_same_numbers(rows: int) -> None:
    """Rows are independent: who computes them changes nothing."""
    x = rows_of(rows, 3000, torch.float32)
    weight, heads = torch.rand(3000), rows_of(rows, 3000, torch.float32, 1).contiguous().view(rows, 30, 100)
    cos_sin, positions = torch.randn(rows, 100), torch.arange(rows)
    results = []
    for num_threads in (1, 3):
        torch.set_num_threads(num_threads)
        normed, gated, winners = torch.empty(rows, 3000), torch.empty(rows, 1500), torch.empty(rows, dtype=torch.int64)
        rotated, curved = heads.clone(), x.clone()
        ops.rms_norm(x, weight, EPS, normed)
        ops.silu_and_mul(x, gated)
        ops.argmax_rows(x, winners)
        ops.rope_inplace(rotated, positions, cos_sin)
        ops.gelu_new_inplace(curved)
        results.append((normed, gated, winners, rotated, curved))
    for alone, shared in zip(*results, strict=True):
        assert torch.equal(alone, shared)


def test_no_rows_at_all() -> None:
    empty = torch.empty(0, 16)
    ops.rms_norm(empty, torch.ones(16), EPS, torch.empty(0, 16))
    ops.gelu_new_inplace(empty)
    ops.argmax_rows(empty, torch.empty(0, dtype=torch.int64))
    ops.rope_inplace(torch.empty(0, 2, 8), torch.empty(0, dtype=torch.int64), torch.zeros(4, 8))


def test_wrong_arguments_are_named() -> None:
    x = torch.ones(4, 8)
    with pytest.raises(ValueError, match="weight is"):
        ops.rms_norm(x, torch.ones(7), EPS, x)
    with pytest.raises(ValueError, match=r"out is torch\.bfloat16"):
        ops.rms_norm(x, torch.ones(8), EPS, x.bfloat16())
    with pytest.raises(ValueError, match="contiguous last dimension"):
        ops.gelu_inplace(torch.ones(8, 4).t())
    with pytest.raises(ValueError, match="gate_up is"):
        ops.silu_and_mul(x, x)
    with pytest.raises(ValueError, match="out is"):
        ops.argmax_rows(x, torch.empty(4, dtype=torch.int32))


def test_other_dtypes_and_devices_take_the_twin() -> None:
    """float16 and float64 are not the kernels' business, but the call still works."""
    for dtype in (torch.float16, torch.float64):
        x = torch.randn(3, 8).to(dtype)
        out, expected = torch.empty_like(x), torch.empty_like(x)
        ops.rms_norm(x, torch.ones(8, dtype=dtype), EPS, out)
        torch_ops.rms_norm(x, torch.ones(8, dtype=dtype), EPS, expected)
        assert torch.equal(out, expected)
