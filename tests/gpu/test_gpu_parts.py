"""Mixtures of experts, and what layers with a state compute, on a real device: against their definitions."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engine" / "cuda" / "kernels"))  # the emulated tests

from state_cases import StateCase, random_rows, rows_of_sequences, state_case
from test_cuda_mixture import GPT_OSS, PLAIN, SHARED, UNGATED, check

from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.kernels.cuda.launching.driver import current_runtime
from kvplan_engine.kernels.cuda.states import CudaStates
from kvplan_engine.kernels.states.operations import (
    DeltaRule,
    DeltaTokens,
    Mamba2,
    ScanInputs,
    TorchStates,
    make_convolution,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
MINE = rows_of_sequences()
BOUND = 2**-6


@pytest.mark.parametrize("mixture", [PLAIN, SHARED, GPT_OSS, UNGATED], ids=["plain", "shared", "gpt-oss", "no gate"])
@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize("num_rows", [1, 4, 23, 150, 2000])
def test_mixtures(mixture: Mixture, dtype: torch.dtype, num_rows: int) -> None:
    """More rows than one block sorts, and every size of tiles."""
    check(mixture, dtype, num_rows, current_runtime())


def on_gpu(case: StateCase) -> StateCase:
    step = case.step
    moved = replace(
        step, tables=step.tables.cuda(), query_starts=step.query_starts.cuda(), positions=step.positions.cuda()
    )
    return replace(case, rows=replace(case.rows, blocks=case.rows.blocks.cuda()), step=moved)


def check_states(found: torch.Tensor, want: torch.Tensor, moved: StateCase, case: StateCase) -> None:
    assert ((found.cpu() - want).abs()[MINE] <= BOUND * (1 + want.abs()[MINE])).all()
    for one, other in zip(moved.states(), case.states(), strict=True):
        assert (((one.cpu() - other).abs() <= BOUND * (1 + other.abs())) | other.isnan()).all()


def test_a_convolution() -> None:
    convolution = make_convolution(torch.randn(300, 4))
    on_device = replace(convolution, weight=convolution.weight.cuda())
    x, case = random_rows(300, BF16, seed=1), state_case(3, 300, F32)
    moved, want = on_gpu(case), torch.zeros(x.shape)
    TorchStates().convolve(x.float(), want, convolution, case.rows, case.step)
    found = x.cuda()
    CudaStates(current_runtime()).convolve(found, found, on_device, moved.rows, moved.step)
    check_states(found, want, moved, case)


def test_a_delta_rule() -> None:
    rule = DeltaRule(4, 2, 128, 128, torch.rand(4), torch.randn(4), 128**-0.5)
    widths = (256, 256, 512, 512, 4, 4)
    tokens = [random_rows(width, BF16, seed=seed) for seed, width in enumerate(widths)]
    case = state_case(512, 128, F32, rows_per_block=64)
    moved, want = on_gpu(case), torch.zeros(tokens[2].shape)
    wide = [each.float() for each in tokens]
    TorchStates().delta_rule(rule, DeltaTokens(*wide[:3], want, *wide[4:]), case.rows, case.step)
    there = [each.cuda() for each in tokens]
    on_device = replace(rule, rate=rule.rate.cuda(), decay_bias=torch.as_tensor(rule.decay_bias).cuda())
    states = CudaStates(current_runtime())
    states.delta_rule(on_device, DeltaTokens(*there[:3], there[2], *there[4:]), moved.rows, moved.step)
    check_states(there[2], want, moved, case)


def test_mamba_2() -> None:
    mamba = Mamba2(-torch.rand(4).exp(), torch.randn(4), torch.randn(4), num_rows=64, num_groups=2)
    inputs = [random_rows(width, BF16, seed=seed) for seed, width in enumerate((256, 4, 256, 256))]
    case = state_case(256, 128, F32, rows_per_block=64)
    moved, want = on_gpu(case), torch.zeros(inputs[0].shape)
    TorchStates().scan_mamba2(ScanInputs(*(each.float() for each in inputs)), want, mamba, case.rows, case.step)
    there = [each.cuda() for each in inputs]
    weights = {name: getattr(mamba, name).cuda() for name in ("decay", "skip", "step_bias")}
    states = CudaStates(current_runtime())
    states.scan_mamba2(ScanInputs(*there), there[0], replace(mamba, **weights), moved.rows, moved.step)
    check_states(there[0], want, moved, case)
