"""The first rank's runner, mover and carver: what they do, they let the other ranks do too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from kvplan_engine.blocks.layout import KvLayout
from kvplan_engine.blocks.transfers import Transfer
from kvplan_engine.config import EngineConfig
from kvplan_engine.device.collectives import Collectives
from kvplan_engine.device.device import Device
from kvplan_engine.execution.carving import MemoryCarver
from kvplan_engine.execution.graphs import StepGraphs
from kvplan_engine.execution.model_runner import ModelRunner
from kvplan_engine.execution.ranks.group import RankGroup
from kvplan_engine.execution.ranks.messages import (
    CaptureGraphs,
    Carve,
    DropPool,
    HeadOfRows,
    MakeMover,
    MakePool,
    Measured,
    Move,
    Touch,
)
from kvplan_engine.memory.breakdown import MemoryBreakdown
from kvplan_engine.memory.plan import Needs, Reserve, plan_ranks
from kvplan_engine.models.loaded_model import LoadedModel
from kvplan_engine.models.step_batch import StepBatch
from kvplan_engine.offload.disk_tier import DiskTier
from kvplan_engine.offload.mover import Mover


class LeadingRunner(ModelRunner):
    """A ModelRunner whose pool, transfers and steps the other ranks have as well."""

    def __init__(
        self,
        model: LoadedModel,
        config: EngineConfig,
        device: Device,
        layout: KvLayout,
        max_model_len: int,
        group: RankGroup,
        collectives: Collectives,
    ) -> None:
        super().__init__(model, config, device, layout, max_model_len)
        self._group, self._collectives = group, collectives

    def touch(self, num_blocks: int) -> None:
        """See ModelRunner.touch."""
        self._group.tell(Touch(num_blocks))
        super().touch(num_blocks)

    def carve_pool(self, num_blocks: int, kv_dtype: str) -> None:
        """See ModelRunner.carve_pool."""
        own = partial(super().carve_pool, num_blocks, kv_dtype)
        self._group.together(MakePool(num_blocks, kv_dtype), own)

    def capture_graphs(self) -> StepGraphs:
        """See ModelRunner.capture_graphs. Each graph holds its rank's part of the collectives.

        num_bytes is that of the rank whose graphs take most. RankDied, or its OutOfDeviceMemory, where one cannot.
        """
        own = partial(self._watched, super().capture_graphs)
        graphs, others = self._group.together(CaptureGraphs(self.graph_sizes), own)
        graphs.num_bytes = max(graphs.num_bytes, *others)
        return graphs

    def _watched(self, capture: Callable[[], StepGraphs]) -> StepGraphs:
        with self._group.watching():
            return capture()

    def drop_pool(self) -> None:
        """See ModelRunner.drop_pool."""
        self._group.tell(DropPool())
        super().drop_pool()

    def make_mover(self, num_host_slots: int, disk: DiskTier | None) -> Mover:
        """See StepRunner.make_mover."""
        own, _ = self._group.together(MakeMover(num_host_slots), partial(super().make_mover, num_host_slots, disk))
        return LeadingMover(own, self._group)

    def forward(self, batch: StepBatch) -> torch.Tensor:
        """See ModelRunner.forward. RankDied where a rank is lost meanwhile."""
        self._group.tell(self.indices_of(batch))
        with self._group.watching():
            if self.device.is_asynchronous:  # tokens that the host has not seen yet are on the first rank's device
                self._collectives.send_to_all(batch.token_ids)
            return super().forward(batch)

    def logits_of_rows(self, first: int, last: int) -> torch.Tensor:
        """See ModelRunner.logits_of_rows."""
        self._group.tell(HeadOfRows(first, last))
        with self._group.watching():
            return super().logits_of_rows(first, last)


class LeadingMover:
    """``own`` transfers, and the other ranks' between the same blocks and slots of their memory."""

    def __init__(self, own: Mover, group: RankGroup) -> None:
        self._own, self._group = own, group

    def run(self, transfers: list[Transfer]) -> None:
        """See Mover.run. Nothing is moved where the other ranks have ended: no step can follow."""
        if not transfers or self._group.has_ended:
            return
        self._group.tell(Move(transfers))
        self._own.run(transfers)

    def close(self) -> None:
        """See Mover.close. The other ranks give theirs back when they make another one, or end."""
        self._own.close()


class LeadingCarver(MemoryCarver):
    """Divides the memory of all ranks alike: each has as many blocks as the one with the least room.

    needs: what the other ranks take for the settings that were carved last, from rank 1 on.
    """

    def __init__(self, model: LoadedModel, device: Device, group: RankGroup, collectives: Collectives) -> None:
        super().__init__(model, device)
        self._ranks, self._group, self._collectives = model, group, collectives
        self.needs: list[Needs] = []

    def _make_runner(self, config: EngineConfig, layout: KvLayout, max_model_len: int) -> ModelRunner:
        place = (self._device, layout, max_model_len)
        own = partial(LeadingRunner, self._ranks, config, *place, self._group, self._collectives)
        runner, self.needs = self._group.together(Carve(config), own)
        return runner

    def _plan(self, runner: ModelRunner, config: EngineConfig, layout: KvLayout, max_model_len: int) -> MemoryBreakdown:
        """Plan with the smallest device and the most that one rank keeps free: what is told of all is true of each."""
        overhead = max(self._overhead_bytes(config), *(each.overhead_bytes for each in self.needs))
        others = [replace(each, overhead_bytes=overhead) for each in self.needs]
        own = Needs(self._model.weight_bytes, runner.workspace.num_bytes, overhead, layout.block_bytes)
        totals = [each.total_bytes for each in self.needs if each.total_bytes is not None]
        total = min(self._device.total_bytes, *totals)
        graph_bytes = self._graph_bytes.get(runner.graph_sizes, 0)
        self._planned = Reserve(total, overhead, graph_bytes)
        needs = [own, *others]
        return plan_ranks(config, layout, max_model_len, needs, device_total_bytes=total, graph_bytes=graph_bytes)

    def _measure(
        self, runner: ModelRunner, config: EngineConfig, memory: MemoryBreakdown, layout: KvLayout, max_model_len: int
    ) -> None:
        super()._measure(runner, config, memory, layout, max_model_len)
        tensor_bytes = memory.weight_bytes + memory.activation_bytes + memory.kv_pool_bytes
        _, others = self._group.together(Measured(tensor_bytes), lambda: None)
        last = self._measured[-1]
        self._measured[-1] = replace(last, overhead_bytes=max(last.overhead_bytes, *others))
