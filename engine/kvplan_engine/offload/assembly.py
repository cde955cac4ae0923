"""Puts an engine's offloading together: host memory, who keeps what in it, and who moves it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvplan_engine.block_pool import BlockPool
from kvplan_engine.config import EngineConfig
from kvplan_engine.kv_cache import allocate_host_pool
from kvplan_engine.layers.ops import Ops
from kvplan_engine.memory import MemoryBreakdown
from kvplan_engine.offload.cost import CostModel
from kvplan_engine.offload.mover import BlockMover
from kvplan_engine.offload.preemption import PreemptionPolicy
from kvplan_engine.offload.swap import SwapSpace
from kvplan_engine.offload.transfers import TransferLog


@dataclass(frozen=True, slots=True)
class Offload:
    """log: what moves before the next step. mover: moves it. preemption: with the swap space."""

    log: TransferLog
    mover: BlockMover
    preemption: PreemptionPolicy


def make_offload(
    config: EngineConfig, memory: MemoryBreakdown, pool: BlockPool, ops: Ops, kv: torch.Tensor, seconds_per_token: float
) -> Offload:
    """Host memory is taken here, beside the device's account. OutOfDeviceMemory when there is not enough."""
    log = TransferLog()
    num_swap_slots = config.swap_space // memory.block_bytes
    host_kv = allocate_host_pool(kv, num_swap_slots)
    cost = CostModel(memory.block_bytes, memory.block_size, seconds_per_token)
    swap = SwapSpace(pool, num_swap_slots, log)
    return Offload(log, BlockMover(ops, kv, host_kv), PreemptionPolicy(config.preemption_mode, swap, cost))
