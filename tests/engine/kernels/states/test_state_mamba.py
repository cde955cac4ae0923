"""Mamba's recurrences and what follows them, in every build: against their definitions in float64, and over pieces."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from state_cases import LENGTHS, StateCase, assert_only_rows_changed, random_rows, rows_of_sequences, state_case

from kvplan_engine.kernels.build import NATIVE
from kvplan_engine.kernels.cpu.library import load_kernels
from kvplan_engine.kernels.cpu.states import CpuStates
from kvplan_engine.kernels.states.operations import Gating, Mamba1, Mamba2, ScanInputs, StateOps, TorchStates
from kvplan_engine.kernels.states.rows import StateStep

ROUNDING = {torch.float32: 2e-5, torch.bfloat16: 2**-7}
MINE = rows_of_sequences()


def weights_of(*sizes: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Decays of ``sizes``, and a skip and a bias for each of the first; some steps are nearly 0 and some large."""
    generator = torch.Generator().manual_seed(seed)
    skip, bias = torch.randn(2, sizes[0], generator=generator)
    return -torch.rand(sizes, generator=generator).mul(4).exp(), skip, bias.mul(4).clamp(max=3)


def inputs_of(x: int, steps: int, shared: int, dtype: torch.dtype) -> ScanInputs:
    return ScanInputs(*(random_rows(width, dtype, seed=seed) for seed, width in enumerate((x, steps, shared, shared))))


def wide(inputs: ScanInputs) -> ScanInputs:
    return ScanInputs(inputs.x.double(), inputs.steps.double(), inputs.b.double(), inputs.c.double())


def wide_case(case: StateCase) -> StateCase:
    """The same states in float64, in a pool of its own."""
    size = case.rows.row_elements
    other = state_case(case.rows.num_rows, size, torch.float64)
    for table, mine in zip(other.step.tables, case.step.tables, strict=True):
        if mine[0] >= 0:
            other.rows.store(table, case.rows.load(mine))
    return replace(other, before=other.rows.blocks.clone())


def scan(ops: StateOps, inputs: ScanInputs, out: torch.Tensor, mamba: Mamba1 | Mamba2, case: StateCase) -> None:
    if isinstance(mamba, Mamba1):
        ops.scan_mamba1(inputs, out, mamba, case.rows, case.step)
    else:
        ops.scan_mamba2(inputs, out, mamba, case.rows, case.step)


def check(kernels: CpuStates, inputs: ScanInputs, mamba: Mamba1 | Mamba2, case: StateCase) -> None:
    """The kernels against the definition; once more with the output in the place of the input."""
    other = wide_case(case)
    want = torch.zeros(inputs.x.shape, dtype=torch.float64)
    scan(TorchStates(), wide(inputs), want, mamba, other)
    out, in_place = torch.zeros(inputs.x.shape, dtype=inputs.x.dtype), case.again()
    scan(kernels, inputs, out, mamba, case)
    error = ROUNDING[inputs.x.dtype]
    assert ((out - want).abs()[MINE] <= error * (1 + want.abs()[MINE])).all()
    error = max(ROUNDING[case.rows.dtype], 2e-5)
    for table, theirs in zip(case.step.tables, other.step.tables, strict=True):
        if table[0] >= 0:
            found, expected = case.rows.load(table), other.rows.load(theirs)
            close = (found - expected).abs() <= error * (1 + expected.abs())
            assert (close | expected.isnan()).all()
    assert_only_rows_changed(case)
    scan(kernels, inputs, inputs.x, mamba, in_place)
    assert torch.equal(inputs.x[MINE], out[MINE])
    assert torch.equal(in_place.rows.blocks, case.rows.blocks)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("channels", "columns"), [(1, 16), (70, 16), (131, 5), (64, 33)])
def test_mamba_equals_its_definition(kernels: CpuStates, channels: int, columns: int, dtype: torch.dtype) -> None:
    mamba = Mamba1(*weights_of(channels, columns))
    check(kernels, inputs_of(channels, channels, columns, dtype), mamba, state_case(channels, columns, dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("heads", "rows", "columns", "groups"), [(1, 1, 1, 1), (4, 6, 16, 2), (3, 5, 40, 1), (2, 3, 272, 2)]
)
def test_mamba_2_equals_its_definition(
    kernels: CpuStates, heads: int, rows: int, columns: int, groups: int, dtype: torch.dtype
) -> None:
    mamba = Mamba2(*weights_of(heads), rows, groups, least_step=0.01, most_step=2.0)
    case = state_case(heads * rows, columns, dtype)
    check(kernels, inputs_of(heads * rows, heads, groups * columns, dtype), mamba, case)


def test_states_of_another_dtype(kernels: CpuStates) -> None:
    mamba = Mamba2(*weights_of(4), num_rows=6, num_groups=2)
    check(kernels, inputs_of(24, 4, 32, torch.bfloat16), mamba, state_case(24, 16, torch.float32))
    mamba1 = Mamba1(*weights_of(24, 16))
    check(kernels, inputs_of(24, 24, 16, torch.bfloat16), mamba1, state_case(24, 16, torch.float32))


@pytest.mark.parametrize("ops", ["cpu", "torch"])
@pytest.mark.parametrize("kind", [1, 2])
def test_pieces_of_a_text_give_what_all_of_it_gives(ops: str, kind: int) -> None:
    states: StateOps = CpuStates(load_kernels(NATIVE)) if ops == "cpu" else TorchStates()
    mamba = Mamba1(*weights_of(24, 16)) if kind == 1 else Mamba2(*weights_of(4), num_rows=6, num_groups=1)
    generator = torch.Generator().manual_seed(7)
    inputs = ScanInputs(
        *(torch.randn(60, width, generator=generator) for width in (24, 24 if kind == 1 else 4, 16, 16))
    )
    results = []
    for lengths in ((60,), (1, 1, 20, 2, 1, 17, 18)):
        case, begin = state_case(24, 16, torch.float32), 0
        out = torch.zeros(60, 24)
        for length in lengths:
            piece = slice(begin, begin + length)
            positions = torch.arange(begin, begin + length)
            step = StateStep(case.step.tables[1:2], torch.tensor([0, length], dtype=torch.int32), positions)
            some = ScanInputs(inputs.x[piece], inputs.steps[piece], inputs.b[piece], inputs.c[piece])
            scan(states, some, out[piece], mamba, replace(case, step=step))
            begin += length
        results.append(out)
    assert torch.allclose(*results, rtol=0, atol=1e-5)
    assert results[0].abs().max() > 1


def test_threads_give_the_same_numbers(kernels: CpuStates) -> None:
    before, results = torch.get_num_threads(), []
    mamba = Mamba2(*weights_of(8), num_rows=4, num_groups=2)
    inputs = inputs_of(32, 8, 64, torch.float32)
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            case, out = state_case(32, 32, torch.float32), torch.zeros(inputs.x.shape)
            scan(kernels, inputs, out, mamba, case)
            results.append((out, case.rows.blocks))
    finally:
        torch.set_num_threads(before)
    for out, blocks in results[1:]:
        assert torch.equal(out, results[0][0])
        assert torch.equal(blocks, results[0][1])


def test_what_lies_outside_of_the_pool_is_an_error(kernels: CpuStates) -> None:
    case = state_case(24, 16, torch.float32)
    case.step.tables[1, 1] = len(case.rows.blocks)
    for mamba in (Mamba1(*weights_of(24, 16)), Mamba2(*weights_of(4), num_rows=6, num_groups=1)):
        inputs = inputs_of(24, mamba.decay.shape[0], 16, torch.float32)
        with pytest.raises(IndexError, match="outside of its pool"):
            scan(kernels, inputs, torch.empty(inputs.x.shape), mamba, case)
    assert torch.equal(case.rows.blocks, case.before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("width", "groups"), [(1, 1), (96, 2), (111, 3), (40, 8)])
@pytest.mark.parametrize("norm", ["none", "behind", "first", "shared"])
def test_gates_equal_their_definition(
    kernels: CpuStates, width: int, groups: int, norm: str, dtype: torch.dtype
) -> None:
    weight = random_rows(width, dtype, seed=3)[0].contiguous()
    named = {"none": None, "shared": weight[: width // groups]}
    gating = Gating(named.get(norm, weight), 1e-5, groups, norm_first=norm == "first")
    x, gate = (random_rows(width, dtype, seed=seed) for seed in (1, 2))
    want = x.double()
    TorchStates().gate_rows(want, gate.double(), gating)
    kernels.gate_rows(x, gate, gating)
    assert len(x) == sum(LENGTHS)
    assert ((x - want).abs() <= ROUNDING[dtype] * (1 + want.abs())).all()
