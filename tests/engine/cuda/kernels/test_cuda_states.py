"""The kernels of layers with a state, their own source run on the CPU, against their definitions in plain torch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from state_cases import LENGTHS, StateCase, assert_only_rows_changed, random_rows, rows_of_sequences, state_case

from kvplan_engine.kernels.cuda.launching.emulation import BACKWARD, EmulatedRuntime
from kvplan_engine.kernels.cuda.launching.variants import CudaKernelError
from kvplan_engine.kernels.cuda.states import CudaStates
from kvplan_engine.kernels.states.operations import (
    DeltaRule,
    DeltaTokens,
    Gating,
    Mamba1,
    Mamba2,
    ScanInputs,
    TorchStates,
    make_convolution,
)

F32, BF16 = torch.float32, torch.bfloat16
ROUNDING = {F32: 3e-5, BF16: 2**-6}
MINE = rows_of_sequences()
WANTED = TorchStates()


@pytest.fixture(params=[0, BACKWARD], ids=["forward", "backward"], scope="module")
def states(request: pytest.FixtureRequest) -> CudaStates:
    return CudaStates(EmulatedRuntime(order=request.param))


def check(out: torch.Tensor, want: torch.Tensor, case: StateCase, other: StateCase) -> None:
    """What came out and what the pool holds afterwards, to the rounding of each; nothing else was written."""
    bound = ROUNDING[out.dtype]
    assert ((out - want).abs()[MINE] <= bound * (1 + want.abs()[MINE])).all()
    bound = max(ROUNDING[case.rows.dtype], bound if out.dtype != case.rows.dtype else 0)
    for found, expected in zip(case.states(), other.states(), strict=True):
        assert (((found - expected).abs() <= bound * (1 + expected.abs())) | expected.isnan()).all()
    assert_only_rows_changed(case)


@pytest.mark.parametrize(("channels", "taps", "state"), [(24, 4, F32), (150, 3, BF16), (5, 2, BF16)])
def test_convolution(states: CudaStates, channels: int, taps: int, state: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(taps)
    bias = torch.randn(channels, generator=generator) if taps == 3 else None
    convolution = make_convolution(torch.randn(channels, taps, generator=generator), bias, silu=taps != 2)
    x, case = random_rows(channels, BF16, seed=1), state_case(taps - 1, channels, state)
    other, want = case.again(), torch.zeros(x.shape)
    WANTED.convolve(x.float(), want, convolution, other.rows, other.step)
    states.convolve(x, x, convolution, case.rows, case.step)
    check(x, want, case, other)


RULES = {
    "qwen": ((4, 2, 72, 40), "heads", True),
    "kimi": ((2, 2, 20, 37), "elements", True),
    "lightning": ((2, 2, 136, 8), "fixed", False),
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_delta_rule(states: CudaStates, name: str, dtype: torch.dtype) -> None:
    (heads, key_heads, key_size, value_size), decays, has_strength = RULES[name]
    generator = torch.Generator().manual_seed(heads)
    columns = {"heads": heads, "elements": heads * key_size, "fixed": 0}[decays]
    bias = torch.randn(columns, generator=generator) if columns else None
    rate = torch.rand(heads, generator=generator)
    rule = DeltaRule(heads, key_heads, key_size, value_size, rate, bias, key_size**-0.5, 1.5)
    widths = [key_heads * key_size, key_heads * key_size, heads * value_size]
    query, key, value = (random_rows(width, dtype, seed=seed) for seed, width in enumerate(widths))
    decay = random_rows(columns, dtype, seed=5) if columns else None
    strength = random_rows(heads, dtype, seed=6) if has_strength else None
    case = state_case(heads * value_size, key_size, F32, rows_per_block=7)
    other, want = case.again(), torch.zeros(value.shape)
    tokens = [query, key, value.clone(), want, decay, strength]
    WANTED.delta_rule(rule, DeltaTokens(*(None if t is None else t.float() for t in tokens)), other.rows, other.step)
    states.delta_rule(rule, DeltaTokens(query, key, value, value, decay, strength), case.rows, case.step)
    check(value, want, case, other)


def weights_of(*sizes: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Decays of ``sizes``, and a skip and a bias for each of the first."""
    generator = torch.Generator().manual_seed(sizes[0])
    skip, bias = torch.randn(2, sizes[0], generator=generator)
    return -torch.rand(sizes, generator=generator).mul(4).exp(), skip, bias


@pytest.mark.parametrize(("kind", "dtype"), [(1, F32), (1, BF16), (2, F32), (2, BF16)])
def test_mamba(states: CudaStates, kind: int, dtype: torch.dtype) -> None:
    heads, num_rows, size, groups = (131, 1, 16, 1) if kind == 1 else (4, 33, 40, 2)
    width = heads * num_rows
    mamba = Mamba1(*weights_of(heads, size)) if kind == 1 else Mamba2(*weights_of(heads), num_rows, groups, 0.01, 2.0)
    widths = (width, heads, groups * size, groups * size)
    inputs = ScanInputs(*(random_rows(each, dtype, seed=seed) for seed, each in enumerate(widths)))
    wide = ScanInputs(inputs.x.float(), inputs.steps.float(), inputs.b.float(), inputs.c.float())
    case = state_case(width, size, F32)
    other, want = case.again(), torch.zeros(inputs.x.shape)
    if isinstance(mamba, Mamba1):
        WANTED.scan_mamba1(wide, want, mamba, other.rows, other.step)
        states.scan_mamba1(inputs, inputs.x, mamba, case.rows, case.step)
    else:
        WANTED.scan_mamba2(wide, want, mamba, other.rows, other.step)
        states.scan_mamba2(inputs, inputs.x, mamba, case.rows, case.step)
    check(inputs.x, want, case, other)


@pytest.mark.parametrize(
    ("width", "gating"),
    [
        (333, Gating()),
        (96, Gating(torch.rand(96) + 0.5, 1e-5, 2)),
        (96, Gating((torch.rand(32) + 0.5).to(BF16), 1e-5, 3, norm_first=True, activation="sigmoid")),
    ],
    ids=["no norm", "behind", "first and shared"],
)
def test_gates(states: CudaStates, width: int, gating: Gating) -> None:
    x, gate = (random_rows(width, BF16, seed=seed) for seed in (1, 2))
    want = x.float()
    WANTED.gate_rows(want, gate.float(), gating)
    states.gate_rows(x, gate, gating)
    assert len(x) == sum(LENGTHS)
    assert ((x - want).abs() <= ROUNDING[BF16] * (1 + want.abs())).all()


def test_what_does_not_fit_is_refused(states: CudaStates) -> None:
    case = state_case(3, 24, F32)
    x = random_rows(24, F32, seed=1)
    convolution = make_convolution(torch.randn(24, 4))
    with pytest.raises(ValueError, match="a state of 3 x 24, wanted 3 x 25"):
        states.convolve(
            random_rows(25, F32, seed=1),
            random_rows(25, F32, seed=1),
            make_convolution(torch.randn(25, 4)),
            case.rows,
            case.step,
        )
    with pytest.raises(ValueError, match="out is"):
        states.convolve(x, x[:, :20], convolution, case.rows, case.step)
    with pytest.raises(CudaKernelError, match="convolutions of 9 inputs"):
        long = replace(case, rows=replace(case.rows, num_rows=8))
        states.convolve(x, x, make_convolution(torch.randn(24, 9)), long.rows, long.step)
    with pytest.raises(ValueError, match="no 5 equal groups"):
        states.gate_rows(x, x, Gating(num_groups=5))
