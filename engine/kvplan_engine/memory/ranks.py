"""From what each of several ranks needs to one number of blocks for all of them. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvplan_engine.blocks.layout import KvLayout
from kvplan_engine.config import EngineConfig
from kvplan_engine.memory.breakdown import MemoryBreakdown
from kvplan_engine.memory.plan import plan_memory


@dataclass(frozen=True, slots=True)
class Needs:
    """What a rank takes of its device, and of that each block, in bytes. total_bytes: of a device of its own."""

    weight_bytes: int
    workspace_bytes: int
    overhead_bytes: int
    block_bytes: int
    total_bytes: int | None = None

    def num_blocks(self, budget_bytes: int) -> int:
        """How many it has room for."""
        taken = self.weight_bytes + self.workspace_bytes + self.overhead_bytes
        return max(budget_bytes - taken, 0) // self.block_bytes


def plan_ranks(
    config: EngineConfig,
    layout: KvLayout,
    max_model_len: int,
    needs: Sequence[Needs],
    *,
    device_total_bytes: int,
    graph_bytes: int = 0,
) -> MemoryBreakdown:
    """Plan as ``plan_memory`` does for the first of the ranks with ``needs``: all have the blocks of the one with the
    least room.

    graph_bytes: of each rank. layout: of the first rank; in stages of unlike depth those of the others have blocks of
    other sizes.
    """
    own, budget = needs[0], int(device_total_bytes * config.gpu_memory_utilization)
    room = budget - graph_bytes
    lacking = max(own.num_blocks(room) - each.num_blocks(room) for each in needs)
    memory = plan_memory(
        config,
        layout,
        max_model_len,
        device_total_bytes=device_total_bytes,
        weight_bytes=own.weight_bytes,
        workspace_bytes=own.workspace_bytes,
        # as if this rank had no room for the blocks that another one has none for
        overhead_bytes=own.overhead_bytes + lacking * own.block_bytes,
        graph_bytes=graph_bytes,
    )
    return replace(memory, overhead_bytes=own.overhead_bytes)
