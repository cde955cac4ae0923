"""The element-wise, norm, argmax and copy kernels' own source, run on the CPU, against their twins in plain torch."""

from __future__ import annotations

import pytest
import torch

from kvplan_engine.kernels import torch_ops
from kvplan_engine.kernels.arguments import InputRows
from kvplan_engine.kernels.cuda.launching.emulation import BACKWARD, EmulatedRuntime
from kvplan_engine.kernels.cuda.ops import CudaOps

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
ROUNDING = {F32: 2e-6, F16: 2e-3, BF16: 1.6e-2}
EPS = 1e-5


@pytest.fixture(params=[0, BACKWARD], ids=["forward", "backward"], scope="module")
def ops(request: pytest.FixtureRequest) -> CudaOps:
    return CudaOps(EmulatedRuntime(order=request.param))


def rows(count: int, width: int, dtype: torch.dtype, seed: int = 0, pad: int = 0) -> torch.Tensor:
    """[count, width], each row ``pad`` elements apart from the next."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, width + pad, generator=generator).to(dtype)[:, :width]


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    bound = ROUNDING[one.dtype]
    return torch.allclose(one.double(), other.double(), atol=bound, rtol=bound)


# Widths: one vector, whole vectors over several warps, more than one part per thread, and rows that start anywhere.
NORM_CASES = [(F32, 4, 0), (BF16, 8, 8), (BF16, 768, 16), (F16, 4096, 0), (F32, 2050, 2), (BF16, 67, 0), (F16, 5000, 0)]


@pytest.mark.parametrize(("dtype", "width", "pad"), NORM_CASES)
def test_norms(ops: CudaOps, dtype: torch.dtype, width: int, pad: int) -> None:
    x, weight, bias = rows(3, width, dtype, 1, pad), rows(1, width, dtype, 2)[0], rows(1, width, dtype, 3)[0]
    delta = rows(3, width, dtype, 4, pad)
    for name, parameters in (("rms_norm", (weight,)), ("layer_norm", (weight, bias))):
        out, expected = torch.zeros(3, width, dtype=dtype), torch.zeros(3, width, dtype=torch.float64)
        getattr(ops, name)(x, *parameters, EPS, out)
        getattr(torch_ops, name)(x.double(), *(p.double() for p in parameters), EPS, expected)
        assert close(out, expected)
        residual, expected_residual = x.clone(), x.clone()
        getattr(ops, f"add_{name}")(delta, residual, *parameters, EPS, out)
        getattr(torch_ops, f"add_{name}")(delta, expected_residual, *parameters, EPS, expected)
        assert torch.equal(residual, expected_residual)
        assert close(out, expected)


@pytest.mark.parametrize(("dtype", "head_size"), [(BF16, 64), (F32, 20)])
def test_a_norm_of_each_head_in_a_fused_view(ops: CudaOps, dtype: torch.dtype, head_size: int) -> None:
    fused = rows(5, 7 * head_size, dtype).view(5, 7, head_size)
    weight, expected = rows(1, head_size, dtype, 2)[0], fused.clone()
    torch_ops.rms_norm(expected[:, 1:4], weight, EPS, expected[:, 1:4])
    ops.rms_norm(fused[:, 1:4], weight, EPS, fused[:, 1:4])
    assert close(fused, expected)


def test_a_norm_may_write_over_its_input(ops: CudaOps) -> None:
    x, delta, weight = rows(3, 768, BF16, 1), rows(3, 768, BF16, 2), rows(1, 768, BF16, 3)[0]
    expected, residual = torch.zeros_like(x), x.clone()
    torch_ops.add_rms_norm(delta, x.clone(), weight, EPS, expected)
    ops.add_rms_norm(delta, residual, weight, EPS, delta)
    assert close(delta, expected)


@pytest.mark.parametrize(("dtype", "width", "pad"), [(F32, 12, 0), (BF16, 2056, 16), (F16, 33, 0)])
def test_activations(ops: CudaOps, dtype: torch.dtype, width: int, pad: int) -> None:
    gate_up = rows(3, 2 * width, dtype, 1, pad) * 4
    expected = torch.zeros(3, width, dtype=dtype)
    torch_ops.silu_and_mul(gate_up, expected)
    ops.silu_and_mul(gate_up, gate_up[:, :width])
    assert close(gate_up[:, :width], expected)
    for name in ("gelu_inplace", "gelu_new_inplace"):
        x = rows(3, width, dtype, 2, pad) * 4
        expected = x.clone()
        getattr(torch_ops, name)(expected)
        getattr(ops, name)(x)
        assert close(x, expected)


@pytest.mark.parametrize(("heads", "rotary"), [(1, 64), (5, 32)])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_rope_rotates_a_fused_view(ops: CudaOps, dtype: torch.dtype, heads: int, rotary: int) -> None:
    memory = rows(7, (heads + 2) * 64, dtype).view(7, heads + 2, 64)
    x, expected = memory[:, 1 : 1 + heads], memory.clone()
    positions = torch.tensor([0, 1, 9, 9, 3, 2, 8])
    angles = torch.rand(10, rotary // 2) * 6
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1)
    torch_ops.rope_inplace(expected[:, 1 : 1 + heads], positions, cos_sin)
    ops.rope_inplace(x, positions, cos_sin)
    assert close(memory, expected)


@pytest.mark.parametrize(("dtype", "width"), [(F32, 5), (BF16, 4096), (F16, 50257), (BF16, 8197)])
def test_argmax(ops: CudaOps, dtype: torch.dtype, width: int) -> None:
    logits = rows(5, width, dtype)  # bfloat16 has ties
    logits[1] = float("-inf")
    logits[2, width // 2] = float("nan")
    logits[3, -1] = float("inf")
    logits[4] = 0.0
    out = torch.full((5,), -1)
    ops.argmax_rows(logits, out)
    assert out.tolist() == logits.float().argmax(-1).tolist()


@pytest.mark.parametrize("shape", [(9, 2, 2, 1, 1, 8), (9, 3, 2, 3, 16, 80)])
def test_copy_blocks(ops: CudaOps, shape: tuple[int, ...]) -> None:
    source, target = torch.randn(shape).to(BF16), torch.randn(shape).to(BF16)
    pairs = torch.tensor([[0, 8], [3, 1], [0, 2]])
    expected, inside = target.clone(), source.clone()
    torch_ops.copy_blocks(source, expected, pairs)
    ops.copy_blocks(source, target, pairs)
    assert torch.equal(target, expected)
    torch_ops.copy_blocks(source, inside, pairs)
    ops.copy_blocks(source, source, pairs)
    assert torch.equal(source, inside)
    ops.copy_blocks(source, source, pairs[:0])


def test_wrong_arguments_are_refused(ops: CudaOps) -> None:
    x, weight = torch.zeros(2, 8), torch.zeros(8)
    with pytest.raises(ValueError, match="weight is"):
        ops.rms_norm(x, weight[:4], EPS, x)
    with pytest.raises(ValueError, match="a norm works on"):
        ops.rms_norm(weight, weight, EPS, weight)
    with pytest.raises(ValueError, match="side by side"):
        ops.rms_norm(torch.zeros(2, 2, 16)[:, :, :8], weight, EPS, torch.zeros(2, 2, 8))
    with pytest.raises(ValueError, match="gate_up"):
        ops.silu_and_mul(x, x)
    with pytest.raises(ValueError, match="without columns"):
        ops.argmax_rows(x[:, :0], torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="do not fit"):
        ops.copy_blocks(torch.zeros(1, 2), torch.zeros(1, 3), torch.zeros(1, 2, dtype=torch.int64))


def input_pair(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What the host wrote, and a place for it in which everything is 77."""
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(0, 2**31 - 1, shape, generator=generator).to(dtype)
    return source, torch.full(shape, 77, dtype=dtype)


# shape, rows, columns: vectors short and longer than a grid, tables cut in both directions, a row of one word, none
INPUT_CASES = [
    ((9,), 5, None),
    ((70_000,), 69_999, None),
    ((6, 1000), 5, 600),
    ((7, 3), 7, 3),
    ((4, 5), 4, 1),
    ((3,), 0, None),
]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_inputs_are_copied_row_by_row(ops: CudaOps, dtype: torch.dtype) -> None:
    cases = INPUT_CASES * 6  # more than one launch takes
    pairs = [input_pair(shape, dtype, seed) for seed, (shape, _, _) in enumerate(cases)]
    inputs = [InputRows(*pair, rows, columns) for pair, (_, rows, columns) in zip(pairs, cases, strict=True)]
    ops.copy_inputs(inputs, None)
    for each in inputs:
        source, target = each.cut()
        assert torch.equal(source, target)
        target.fill_(77)
        assert bool((each.target == 77).all()), "written beyond its rows or columns"


def test_tokens_that_the_step_before_chooses_are_taken_from_it(ops: CudaOps) -> None:
    chosen = torch.tensor([500, 501, 502])
    source, tokens = torch.tensor([7, -1, -3, 0, -3]), torch.full((5,), 77)
    other, lengths = torch.tensor([-1, -2], dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    inputs = [InputRows(source, tokens, 4), InputRows(other, lengths, 2)]
    ops.copy_inputs(inputs, chosen)
    assert tokens.tolist() == [7, 500, 502, 0, 77]
    assert lengths.tolist() == [-1, -2], "only the first input's values stand for tokens"
    tokens.fill_(77)
    torch_ops.copy_inputs(inputs, chosen)
    assert tokens.tolist() == [7, 500, 502, 0, 77]


def test_inputs_that_do_not_fit_are_refused(ops: CudaOps) -> None:
    wide, narrow = torch.zeros(4, 6, dtype=torch.int32), torch.zeros(4, 5, dtype=torch.int32)
    vector = torch.zeros(4, dtype=torch.int64)
    wrong = [
        ([InputRows(wide, narrow, 4, 5)], None),
        ([InputRows(vector, vector.to(torch.int32), 4)], None),
        ([InputRows(vector.float(), vector.float(), 4)], None),
        ([InputRows(wide, wide, 4)], None),
        ([InputRows(vector, vector, 5)], None),
        ([InputRows(wide, wide, 4, 7)], None),
        ([InputRows(wide, wide, 4, 6)], vector),
    ]
    for inputs, chosen in wrong:
        with pytest.raises(ValueError, match=r"input|token"):
            ops.copy_inputs(inputs, chosen)
