"""Which rows adapters correct, where a device reads it that runs behind the host and replays graphs."""

from __future__ import annotations

import numpy as np
import torch

from kvplan_engine.adapters.library import AdapterLibrary
from kvplan_engine.device.device import Device
from kvplan_engine.execution.inputs.staging import Extent, InputStage
from kvplan_engine.kernels.interface import Ops
from kvplan_engine.kernels.lora import LoraRows
from kvplan_engine.kernels.workspace_sizes import most_groups
from kvplan_engine.memory.step_buffers import LORA_ROWS, LORA_SLOTS
from kvplan_engine.memory.workspace import Workspace
from kvplan_engine.requests.step_plan import StepPlan


def begin_step(library: AdapterLibrary, plan: StepPlan) -> None:
    """Let the products of ``plan`` be corrected as its sequences want it."""
    if not plan.has_adapters:
        library.step.clear()
        return
    keys = [sequence.request.adapter for sequence in plan.decodes]
    keys += [item.sequence.request.adapter for item in plan.chunks]
    counts = [1] * len(plan.decodes) + [item.num_new_tokens for item in plan.chunks]
    is_sampled = [True] * len(plan.decodes) + [item.needs_sampling for item in plan.chunks]
    library.begin_step(keys, counts, is_sampled)


_NO_GROUP = -1


class StagedRows:
    """The groups of a step in the workspace; those behind its last one are in slot -1, so a graph may look at them."""

    def __init__(self, device: Device, ops: Ops, workspace: Workspace, max_loras: int) -> None:
        self._on_device = LoraRows(workspace[LORA_ROWS], workspace[LORA_SLOTS])
        self._max_loras = max_loras
        targets = {name: workspace[name] for name in (LORA_ROWS, LORA_SLOTS)}
        self._host = {name: torch.zeros_like(each, device="cpu").numpy() for name, each in targets.items()}
        self._stage = InputStage(device, ops, targets)
        self._num_groups = 0
        self.reset()

    def reset(self) -> None:
        """No group, whatever the workspace holds."""
        self._on_device.slots.fill_(_NO_GROUP)
        self._num_groups = 0

    def send(self, rows: np.ndarray, slots: np.ndarray) -> LoraRows:
        """rows int32 [groups, rows of a group], slots int32 [groups], on their way to the device."""
        number = self._num_groups = len(slots)
        self._host[LORA_ROWS][:number] = rows
        of_groups = self._host[LORA_SLOTS]
        of_groups[:number] = slots
        of_groups[number:] = _NO_GROUP
        extents = {LORA_ROWS: Extent(number, rows.shape[1]), LORA_SLOTS: Extent(len(of_groups))}
        self._stage.upload(self._host, extents)
        return self._first(number)

    def clear(self) -> None:
        """A step without adapters."""
        if self._num_groups:
            self.reset()

    def of_graph(self, num_rows: int) -> LoraRows:
        """The most groups that so many rows make, for a step that is captured."""
        return self._first(most_groups(num_rows, self._max_loras))

    def _first(self, number: int) -> LoraRows:
        return LoraRows(self._on_device.rows[:number], self._on_device.slots[:number])
