"""Blocks that the pool evicted, kept in host memory and then on disk, found again by their hash. No torch.

    pool --evicted--> host memory --evicted--> disk --evicted--> gone
      ^---- loaded when cheaper than computing ---'

A block that is loaded also stays where it was, so evicting it again costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvplan_engine.blocks.block_pool import BlockHash, BlockPool
from kvplan_engine.blocks.transfers import FromDisk, FromHost, ToDisk, ToHost, TransferLog
from kvplan_engine.offload.cost import CostModel
from kvplan_engine.offload.disk_tier import DiskTier
from kvplan_engine.offload.host_tier import HostTier

_FEW_READS = 8  # after this many reads the disk's speed is taken from them


@dataclass(frozen=True, slots=True)
class FetchedBlock:
    """Content on its way back: in host slot ``slot``, or ``payload`` read from disk."""

    slot: int | None = None
    payload: bytearray | None = None


class KvTiers:
    """Keeps what ``pool`` evicts. policy: "always" load blocks, or "auto": if that is cheaper than computing."""

    def __init__(
        self, pool: BlockPool, host: HostTier, disk: DiskTier | None, cost: CostModel, log: TransferLog, policy: str
    ) -> None:
        self.host = host
        self.disk = disk
        self._pool = pool
        self._cost = cost
        self._log = log
        self._policy = policy
        self.num_host_hit_tokens = 0
        self.num_disk_hit_tokens = 0
        if host.num_slots or disk is not None:
            pool.on_evict = self._keep

    # ---- out of the pool

    def _keep(self, block: int, block_hash: BlockHash) -> None:
        """The pool is about to reuse ``block``: keep its content, unless recomputing it costs less."""
        if not self.host.num_slots:
            self._keep_on_disk(block, block_hash, from_host=False)
        elif self._pays_from_host and not self.host.touch(block_hash):
            room = self.host.put(block_hash)
            if room is None:
                return
            if room.evicted is not None:
                self._keep_on_disk(room.slot, room.evicted, from_host=True)
            self._log.add(ToHost(block, room.slot))

    def _keep_on_disk(self, index: int, block_hash: BlockHash, *, from_host: bool) -> None:
        if self._pays_from_disk and self.disk is not None and not self.disk.touch(block_hash):
            self._log.add(ToDisk(index, from_host, block_hash))

    @property
    def _pays_from_host(self) -> bool:
        cost = self._cost
        return self._policy == "always" or cost.copy_seconds(1) < cost.recompute_seconds(cost.block_size)

    @property
    def _pays_from_disk(self) -> bool:
        if self.disk is None or not self.disk.is_on:
            return False
        return self._policy == "always" or self._disk_seconds < self._cost.recompute_seconds(self._cost.block_size)

    @property
    def _disk_seconds(self) -> float:
        """Of one block: measured once enough have been read, estimated before."""
        assert self.disk is not None
        num_read = self.disk.num_read
        return self.disk.read_seconds / num_read if num_read >= _FEW_READS else self._cost.disk_seconds(1)

    # ---- back into the pool

    def find_run(self, hashes: Sequence[BlockHash]) -> int:
        """How many of ``hashes``, from the first on, can be loaded and are worth loading."""
        pays_from_host, pays_from_disk = self._pays_from_host, self._pays_from_disk
        for number, block_hash in enumerate(hashes):
            if pays_from_host and self.host.find(block_hash) is not None:
                continue
            if not (pays_from_disk and self.disk is not None and block_hash in self.disk):
                return number
        return len(hashes)

    def fetch(self, hashes: Sequence[BlockHash]) -> list[FetchedBlock] | None:
        """The content of ``hashes``; ``place`` must follow. None when a file turns out to be bad.

        After None, ``find_run`` returns a shorter run for the same hashes.
        """
        fetched: list[FetchedBlock] = []
        for block_hash in hashes:
            slot = self.host.find(block_hash)
            if slot is not None:
                self.host.pin(block_hash)
                fetched.append(FetchedBlock(slot=slot))
                continue
            payload = self.disk.read(block_hash) if self.disk is not None else None
            if payload is None:
                self.host.unpin_all()
                return None
            fetched.append(FetchedBlock(payload=payload))
        return fetched

    def place(self, fetched: Sequence[FetchedBlock], blocks: Sequence[int]) -> None:
        """Queue transfers of the content to ``blocks`` before the next step."""
        size = self._pool.block_size
        for content, block in zip(fetched, blocks, strict=True):
            if content.slot is not None:
                self._log.add(FromHost(content.slot, block))
                self.num_host_hit_tokens += size
            elif content.payload is not None:
                self._log.add(FromDisk(content.payload, block))
                self.num_disk_hit_tokens += size
        self.host.unpin_all()

    # ---- the end

    def store_all(self) -> None:
        """Queue writes to disk of all that pool and host memory have cached, so that the next engine finds it."""
        if self.disk is None or not self.disk.is_on:
            return
        for block_hash, slot in self.host.items():
            self._log.add(ToDisk(slot, True, block_hash))
        for block, block_hash in self._pool.cached_blocks():
            self._log.add(ToDisk(block, False, block_hash))
