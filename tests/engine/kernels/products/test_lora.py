"""The compiled correction by adapters is the one that torch computes, in either dtype and for sizes of any kind."""

from __future__ import annotations

from ctypes import pointer
from functools import partial

import pytest
import torch
from quantised_cases import KINDS, random_weight

from kvplan_engine.adapters.step_rows import StepRows
from kvplan_engine.kernels import lora
from kvplan_engine.kernels.cpu import lora as cpu_lora
from kvplan_engine.kernels.cpu.library import load_kernels
from kvplan_engine.kernels.cpu.quantised import PackedQuantised
from kvplan_engine.kernels.lora import LoraWeights

NUM_SLOTS, RANK = 3, 5


def weights_of(inputs: int, segments: tuple[int, ...], dtype: torch.dtype) -> LoraWeights:
    generator = torch.Generator().manual_seed(inputs)
    down = torch.randn(NUM_SLOTS, len(segments) * RANK, inputs, generator=generator)
    up = torch.randn(NUM_SLOTS, RANK, sum(segments), generator=generator)
    return LoraWeights(down.to(dtype), up.to(dtype), segments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("inputs", [1, 7, 16, 67, 576])
@pytest.mark.parametrize("segments", [(3,), (32, 16, 16), (40, 23)])
def test_the_kernel_is_its_definition(dtype: torch.dtype, inputs: int, segments: tuple[int, ...]) -> None:
    weights = weights_of(inputs, segments, dtype)
    step = StepRows(torch.device("cpu"))
    step.fill([0, -1, 2, 0, 1, 2], [1, 4, 11, 3, 8, 2], [True] * 6)
    assert step.rows is not None
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(30, inputs + 3, generator=generator).to(dtype)[:29, :inputs]
    before = torch.randn(30, sum(segments) + 5, generator=generator).to(dtype)[:29, : sum(segments)]
    want, found = before.float(), before.clone()
    wide = LoraWeights(weights.down.float(), weights.up.float(), segments)
    lora.correct(x.float(), want, wide, step.rows)
    partial(cpu_lora.correct, load_kernels())(x, found, weights, step.rows)
    scale = want.abs().max()
    bound = 1e-5 if dtype is torch.float32 else 1e-2
    assert (found.float() - want).abs().max() <= bound * scale
    assert torch.equal(found[1:5], before[1:5])  # rows without an adapter


def test_rows_are_grouped_by_slot() -> None:
    step = StepRows(torch.device("cpu"))
    step.fill([1, -1, 1, 0], [2, 3, 8, 1], [True, True, False, True])
    rows, sampled = step.among(14), step.among(3)
    assert rows is not None and sampled is not None
    assert rows.slots.tolist() == [0, 1, 1]
    assert rows.rows[0].tolist() == [13, *[-1] * 7]
    assert rows.rows[1:].flatten().tolist() == [0, 1, *range(5, 13), *[-1] * 6]
    assert sampled.slots.tolist() == [0, 1]
    assert sampled.rows[:, :2].tolist() == [[2, -1], [0, -1]]
    assert {rows.rows.dtype, rows.slots.dtype} == {torch.int32}


def test_nothing_is_sampled_with_an_adapter() -> None:
    step = StepRows(torch.device("cpu"))
    step.fill([1, -1], [4, 1], [False, True])
    assert step.among(5) is not None and step.among(1) is None
    step.clear()
    assert step.among(5) is None


def test_tensors_that_do_not_fit_are_refused() -> None:
    weights = weights_of(16, (8,), torch.float32)
    step = StepRows(torch.device("cpu"))
    step.fill([0], [2], [True])
    assert step.rows is not None
    with pytest.raises(ValueError, match="x is"):
        cpu_lora.correct(load_kernels(), torch.zeros(2, 15), torch.zeros(2, 8), weights, step.rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_quantised_product_is_corrected(dtype: torch.dtype) -> None:
    """x in an order of its own, sums of groups, several rows of an adapter: as of the product and ``correct`` apart."""
    kind = next(kind for kind in KINDS if kind.has_order)
    packed = PackedQuantised(load_kernels(), random_weight(kind, 96, 1))
    step = StepRows(torch.device("cpu"))
    step.fill([0, -1, 2], [9, 2, 3], [True] * 3)
    rows = step.among(14)
    assert rows is not None
    weights = weights_of(kind.group, (64, 32), dtype)
    x = torch.randn(14, kind.group, generator=torch.Generator().manual_seed(2)).to(dtype)
    apart, found = torch.empty(14, 96, dtype=dtype), torch.empty(14, 96, dtype=dtype)
    packed.multiply(x, apart)
    uncorrected = apart.clone()
    cpu_lora.correct(load_kernels(), x, apart, weights, rows)
    slots, corrected = cpu_lora.slots_args(weights), cpu_lora.rows_args(rows)
    packed.args.slots, packed.args.corrected = pointer(slots), pointer(corrected)
    packed.multiply(x, found)
    bound = 1e-5 if dtype is torch.float32 else 1e-2
    assert (found.float() - apart.float()).abs().max() <= bound * apart.float().abs().max()
    assert (found.float() - uncorrected.float()).abs().max() > 1
    assert torch.equal(found[9:11], uncorrected[9:11])
