"""What adapters add to a product, against its definition in float32."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from kvplan_engine.kernel_checks.case import TOLERANCE, Case, Comparison
from kvplan_engine.kernels import lora
from kvplan_engine.kernels.cuda.launching import families
from kvplan_engine.kernels.cuda.launching.runtime import CudaRuntime
from kvplan_engine.kernels.cuda.products.lora import CudaLora
from kvplan_engine.kernels.cuda.step_memory import StepMemory
from kvplan_engine.kernels.lora import LoraRows, LoraWeights
from kvplan_engine.kernels.lora_groups import ROWS_OF_A_GROUP

_SEGMENTS = (48, 24)
_SLOTS = 2
_ROWS = 11
_GROUPS = ((0, range(8)), (1, range(8, 9)), (-1, range(0)), (0, range(10, 11)))
"""The slot of each group of rows, and the rows; one is no group, and row 9 has no adapter."""
_ROOM = 1 << 16


def lora_cases(scalar: torch.dtype, inputs: int, rank: int | None) -> Iterator[Case]:
    """One for adapters of ``rank``; none where it is None."""
    if rank is not None:
        yield Case((families.LORA,), partial(_compare, scalar, inputs, rank))


def correct_in_torch(x: torch.Tensor, out: torch.Tensor, weights: LoraWeights, rows: LoraRows) -> None:
    """The definition, for groups of which some are none (slot -1). It waits for the device."""
    is_group = rows.slots >= 0
    lora.correct(x, out, weights, LoraRows(rows.rows[is_group], rows.slots[is_group]))


def _compare(scalar: torch.dtype, inputs: int, rank: int, runtime: CudaRuntime) -> Comparison:
    generator, device = torch.Generator().manual_seed(1), runtime.device
    down = (torch.randn(_SLOTS, len(_SEGMENTS) * rank, inputs, generator=generator) * inputs**-0.5).to(scalar)
    up = (torch.randn(_SLOTS, rank, sum(_SEGMENTS), generator=generator) * rank**-0.5).to(scalar)
    x = torch.randn(_ROWS, inputs, generator=generator).to(scalar)
    before = torch.randn(_ROWS, sum(_SEGMENTS), generator=generator).to(scalar)
    numbers = torch.full((len(_GROUPS), ROWS_OF_A_GROUP), -1, dtype=torch.int32)
    for group, (_, members) in enumerate(_GROUPS):
        numbers[group, : len(members)] = torch.tensor(list(members), dtype=torch.int32)
    slots = torch.tensor([slot for slot, _ in _GROUPS], dtype=torch.int32)
    found = before.to(device)
    kernels = CudaLora(runtime, StepMemory(torch.zeros(_ROOM, dtype=torch.uint8, device=device)))
    there = LoraWeights(down.to(device), up.to(device), _SEGMENTS)
    kernels(x.to(device), found, there, LoraRows(numbers.to(device), slots.to(device)))
    wanted = before.float()
    correct_in_torch(x.float(), wanted, LoraWeights(down.float(), up.float(), _SEGMENTS), LoraRows(numbers, slots))
    return Comparison([found], [wanted], TOLERANCE[scalar])
