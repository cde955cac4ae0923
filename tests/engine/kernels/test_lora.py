"""The compiled correction by adapters is the one that torch computes, in either dtype and for sizes of any kind."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from kvplan_engine.adapters.step_rows import StepRows
from kvplan_engine.kernels import lora
from kvplan_engine.kernels.cpu import lora as cpu_lora
from kvplan_engine.kernels.cpu.library import load_kernels
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
    step.fill([0, -1, 2, 0, 1, 2], [1, 4, 11, 3, 8, 2])
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
    step.fill([1, -1, 1, 0], [2, 3, 8, 1])
    assert step.rows is not None
    assert step.rows.slots.tolist() == [0, 1, 1]
    assert step.rows.rows[0].tolist() == [13, *[-1] * 7]
    assert step.rows.rows[1:].flatten().tolist() == [0, 1, *range(5, 13), *[-1] * 6]
    assert step.rows.rows.dtype is torch.int32 and step.rows.rows.numpy().dtype == np.int32


def test_tensors_that_do_not_fit_are_refused() -> None:
    weights = weights_of(16, (8,), torch.float32)
    step = StepRows(torch.device("cpu"))
    step.fill([0], [2])
    assert step.rows is not None
    with pytest.raises(ValueError, match="x is"):
        cpu_lora.correct(load_kernels(), torch.zeros(2, 15), torch.zeros(2, 8), weights, step.rows)
