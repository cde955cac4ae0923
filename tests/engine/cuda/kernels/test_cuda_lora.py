"""What adapters add to a product, by the CUDA kernels' own source run on the CPU: as plain torch adds it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvplan_engine.adapters.step_rows import StepRows
from kvplan_engine.kernels import lora
from kvplan_engine.kernels.cuda.launching.emulation import BACKWARD, EmulatedRuntime
from kvplan_engine.kernels.cuda.launching.runtime import CudaRuntime
from kvplan_engine.kernels.cuda.products.lora import CudaLora
from kvplan_engine.kernels.cuda.step_memory import StepMemory
from kvplan_engine.kernels.lora import LoraRows, LoraWeights

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
BOUND = {F32: 2e-5, F16: 4e-3, BF16: 3e-2}
NUM_SLOTS, RANK = 3, 5
ROOM = 1 << 16


def weights_of(inputs: int, segments: tuple[int, ...], dtype: torch.dtype) -> LoraWeights:
    generator = torch.Generator().manual_seed(inputs)
    down = torch.randn(NUM_SLOTS, len(segments) * RANK, inputs, generator=generator) / inputs**0.5
    up = torch.randn(NUM_SLOTS, RANK, sum(segments), generator=generator)
    return LoraWeights(down.to(dtype), up.to(dtype), segments)


def groups_of(slots: list[int], counts: list[int]) -> LoraRows:
    step = StepRows(torch.device("cpu"))
    step.fill(slots, counts, [True] * len(slots))
    assert step.rows is not None
    return step.rows


def with_empty_groups(rows: LoraRows, number: int) -> LoraRows:
    """As a captured step has them: behind the groups some that are none, whose rows mean nothing."""
    nothing = torch.full((number, rows.rows.shape[1]), 12345, dtype=torch.int32)
    return LoraRows(torch.cat([rows.rows, nothing]), torch.cat([rows.slots, torch.full((number,), -1).int()]))


def check(
    weights: LoraWeights,
    rows: LoraRows,
    num_rows: int,
    *,
    room: int = ROOM,
    pad: int = 8,
    runtime: CudaRuntime | None = None,
) -> None:
    generator = torch.Generator().manual_seed(1)
    dtype, outputs = weights.down.dtype, weights.up.shape[2]
    x = torch.randn(num_rows, weights.down.shape[2] + pad, generator=generator).to(dtype)[:, : weights.down.shape[2]]
    before = torch.randn(num_rows, outputs + pad, generator=generator).to(dtype)
    found, want = before.clone(), before[:, :outputs].float()
    lora.correct(x.float(), want, LoraWeights(weights.down.float(), weights.up.float(), weights.segments), rows)
    runtime = runtime or EmulatedRuntime(order=BACKWARD)
    correct = CudaLora(runtime, StepMemory(torch.full((room,), 0x7F, dtype=torch.uint8, device=runtime.device)))
    x, found = x.to(runtime.device), found.to(runtime.device)
    there = LoraWeights(weights.down.to(runtime.device), weights.up.to(runtime.device), weights.segments)
    groups = with_empty_groups(rows, 3)
    correct(x, found[:, :outputs], there, LoraRows(groups.rows.to(runtime.device), groups.slots.to(runtime.device)))
    found = found.cpu()
    assert torch.equal(found[:, outputs:], before[:, outputs:]), "wrote beside the rows"
    assert ((found[:, :outputs].float() - want).abs() <= BOUND[dtype] * (1 + want.abs())).all()
    untouched = sorted(set(range(num_rows)) - set(rows.rows.flatten().tolist()))
    assert torch.equal(found[untouched], before[untouched])


@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
def test_several_adapters_in_a_batch(dtype: torch.dtype) -> None:
    check(weights_of(72, (40, 16, 24), dtype), groups_of([0, -1, 2, 0, 1, 2], [1, 4, 11, 3, 8, 2]), 29)


def test_sizes_that_are_no_vectors() -> None:
    check(weights_of(67, (9, 5), F32), groups_of([1, -1, 0], [3, 1, 1]), 5, pad=3)
    check(weights_of(64, (18, 6), F32), groups_of([2], [1]), 1)


def test_many_groups_in_pieces() -> None:
    """More rows of A for each block, and room for x A^T of four groups only."""
    weights = weights_of(40, (16,), F32)
    check(weights, groups_of([0, 1, 2, -1, 0], [60, 33, 40, 2, 5]), 140)
    check(weights, groups_of([0, 1], [30, 33]), 63, room=4 * 8 * RANK * 4)


def test_no_groups_at_all() -> None:
    nothing = LoraRows(torch.from_numpy(np.zeros((0, 8), np.int32)), torch.zeros(0, dtype=torch.int32))
    check(weights_of(8, (8,), F32), nothing, 2)


def test_tensors_that_do_not_fit_are_refused() -> None:
    rows = groups_of([0], [2])
    correct = CudaLora(EmulatedRuntime(), StepMemory(torch.zeros(ROOM, dtype=torch.uint8)))
    with pytest.raises(ValueError, match="x is"):
        correct(torch.zeros(2, 15), torch.zeros(2, 8), weights_of(16, (8,), F32), rows)
    with pytest.raises(ValueError, match="5 products are stacked"):
        correct(torch.zeros(2, 16), torch.zeros(2, 5), weights_of(16, (1,) * 5, F32), rows)
