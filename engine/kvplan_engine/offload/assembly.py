"""Creates the parts of an engine's offloading: host memory, swap space, tiers, and the mover of blocks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from kvplan_engine.blocks.block_pool import BlockPool
from kvplan_engine.blocks.layout import KvLayout
from kvplan_engine.blocks.transfers import TransferLog
from kvplan_engine.config import EngineConfig
from kvplan_engine.memory.breakdown import MemoryBreakdown
from kvplan_engine.models.counted_model import EngineModel
from kvplan_engine.offload.disk_tier import DiskTier
from kvplan_engine.offload.host_tier import HostTier
from kvplan_engine.offload.mover import Mover
from kvplan_engine.offload.preemption import CostModel, PreemptionPolicy
from kvplan_engine.offload.swap import SwapSpace
from kvplan_engine.offload.tiers import KvTiers


@dataclass(frozen=True, slots=True)
class Offload:
    """One engine's offloading.

    log: transfers before the next step. mover: carries them out. preemption: owns the swap space. tiers: what the pool
    evicted. Swap space and host tier share a host pool: the first slots are swap space.
    """

    log: TransferLog
    mover: Mover
    preemption: PreemptionPolicy
    tiers: KvTiers

    def store_all(self) -> None:
        """Write what is cached in pool and host memory to disk, if there is a disk tier."""
        self.tiers.store_all()
        self.mover.run(self.log.take())

    def close(self) -> None:
        """Store what there is a place for, and give the host memory back."""
        self.store_all()
        self.mover.close()

    def get_stats(self) -> dict[str, int]:
        """Counts since the pool was made."""
        swap, tiers = self.preemption.swap, self.tiers
        return {
            "swapped_out_blocks": swap.num_blocks_out,
            "swapped_in_blocks": swap.num_blocks_in,
            "kv_host_cache_blocks": tiers.host.num_used_slots,
            "kv_host_cache_hits": tiers.num_host_hit_tokens,
            "kv_disk_cache_blocks": len(tiers.disk) if tiers.disk is not None else 0,
            "kv_disk_cache_hits": tiers.num_disk_hit_tokens,
        }


def make_offload(
    config: EngineConfig,
    memory: MemoryBreakdown,
    pool: BlockPool,
    model: EngineModel,
    make_mover: Callable[[int, DiskTier | None], Mover],
    seconds_per_token: float,
) -> Offload:
    """Has the host memory allocated, which does not count towards the device's.

    make_mover: see StepRunner.make_mover. seconds_per_token: of a large prefill step.
    OutOfDeviceMemory(phase="kv_host") when there is not enough, EngineError when the directory of the disk tier cannot
    be used.
    """
    log = TransferLog()
    cost = CostModel(memory.block_bytes, memory.block_size, seconds_per_token)
    num_swap_slots = config.swap_space // memory.block_bytes
    num_tier_slots = config.kv_host_cache_bytes // memory.block_bytes
    disk = None
    if config.kv_disk_cache_dir is not None:
        key, layout = kv_identity(model, config.kv_dtype(model.dtype), pool.layout), pool.layout
        disk = DiskTier(config.kv_disk_cache_dir, config.kv_disk_cache_bytes, layout.block_bytes, key, layout.widths)
    swap = SwapSpace(pool, num_swap_slots, log)
    return Offload(
        log=log,
        mover=make_mover(num_swap_slots + num_tier_slots, disk),
        preemption=PreemptionPolicy(config.preemption_mode, swap, cost),
        tiers=KvTiers(pool, HostTier(num_swap_slots, num_tier_slots), disk, cost, log, config.kv_load_policy),
    )


def kv_identity(model: EngineModel, kv_dtype: str, layout: KvLayout) -> bytes:
    """16 bytes that differ if KV blocks do: a hash of config, dtypes, layout and a sample of every weight."""
    digest = hashlib.blake2b(repr((model.config, model.dtype, kv_dtype, layout)).encode(), digest_size=16)
    digest.update(model.weight_fingerprint)
    return digest.digest()
