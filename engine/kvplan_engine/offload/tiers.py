"""Bundles that the pool evicted, kept in host memory and then on disk, found again by their names. No torch.

    pool --evicted--> host memory --evicted--> disk --evicted--> gone
      ^---- loaded when cheaper than computing ---'

A bundle that is loaded also stays where it was, so evicting it again costs nothing. Its blocks lie in slots of their
own in host memory, and in one file on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvplan_engine.blocks.block_pool import BlockHash, BlockPool
from kvplan_engine.blocks.transfers import FromDisk, FromHost, ToDisk, ToHost, TransferLog
from kvplan_engine.offload.disk_tier import DiskTier
from kvplan_engine.offload.host_tier import HostTier
from kvplan_engine.offload.preemption import CostModel

_FEW_READS = 8  # after this many reads the disk's speed is taken from them


@dataclass(frozen=True, slots=True)
class FetchedBundle:
    """The content of ``name`` on its way back: in host ``slots``, or ``payload`` read from disk."""

    name: BlockHash
    slots: tuple[int, ...] = ()
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

    def _keep(self, bundle: int, block_hash: BlockHash) -> None:
        """The pool is about to reuse ``bundle``: keep its content, unless recomputing it costs less."""
        blocks = self._pool.blocks_of(bundle)
        if not self.host.num_slots:
            self._keep_on_disk(blocks, block_hash, from_host=False)
        elif self._pays_from_host and not self.host.touch(block_hash):
            room = self.host.put(block_hash, len(blocks))
            if room is None:
                return
            for name, slots in room.evicted:
                self._keep_on_disk(slots, name, from_host=True)
            for block, slot in zip(blocks, room.slots, strict=True):
                self._log.add(ToHost(block, slot))

    def _keep_on_disk(self, indices: tuple[int, ...], block_hash: BlockHash, *, from_host: bool) -> None:
        if self._pays_from_disk and self.disk is not None and not self.disk.touch(block_hash):
            self._log.add(ToDisk(indices, from_host, block_hash))

    @property
    def _pays_from_host(self) -> bool:
        cost = self._cost
        return self._policy == "always" or cost.copy_seconds(self._num_copies) < cost.recompute_seconds(cost.block_size)

    @property
    def _pays_from_disk(self) -> bool:
        if self.disk is None or not self.disk.is_on:
            return False
        return self._policy == "always" or self._disk_seconds < self._cost.recompute_seconds(self._cost.block_size)

    @property
    def _num_copies(self) -> int:
        """Blocks to copy so that one logical block need not be computed."""
        return max(self._pool.layout.token_blocks, 1)

    @property
    def _disk_seconds(self) -> float:
        """Seconds of one logical block: measured once enough have been read, estimated before."""
        assert self.disk is not None
        num_read = self.disk.num_read
        if num_read >= _FEW_READS:
            return self.disk.read_seconds / num_read * self._num_copies
        return self._cost.disk_seconds(self._num_copies)

    # ---- back into the pool

    def finder(self) -> Callable[[BlockHash], bool]:
        """Whether the bundle of a name can be loaded and is worth loading: a function, for one moment."""
        host = self.host if len(self.host) and self._pays_from_host else None
        disk = self.disk if self.disk is not None and self._pays_from_disk else None
        return lambda name: (host is not None and host.find(name) is not None) or (disk is not None and name in disk)

    def fetch(self, names: Sequence[BlockHash]) -> list[FetchedBundle] | None:
        """The content of ``names``; ``place`` must follow. None when a file turns out to be bad.

        After None, ``finder`` no longer finds it.
        """
        fetched: list[FetchedBundle] = []
        for name in names:
            slots = self.host.find(name)
            if slots is not None:
                self.host.pin(name)
                fetched.append(FetchedBundle(name, slots=slots))
                continue
            payload = self.disk.read(name) if self.disk is not None else None
            if payload is None:
                self.host.unpin_all()
                return None
            fetched.append(FetchedBundle(name, payload=payload))
        return fetched

    def place(self, fetched: Sequence[FetchedBundle], bundles: Sequence[int]) -> None:
        """Queue transfers of the content to ``bundles`` before the next step."""
        for content, bundle in zip(fetched, bundles, strict=True):
            blocks = self._pool.blocks_of(bundle)
            for slot, block in zip(content.slots, blocks, strict=False):
                self._log.add(FromHost(slot, block))
            if content.payload is not None:
                for part, block in zip(_split(content.payload, len(blocks)), blocks, strict=True):
                    self._log.add(FromDisk(part, block))
        if fetched:
            self._count_hits(fetched)
            self.host.unpin_all()

    def _count_hits(self, fetched: Sequence[FetchedBundle]) -> None:
        """Count each logical block once, however many groups have a bundle of it."""
        end = None if len(self._pool.layout.groups) == 1 else -1
        from_disk = {content.name[:end] for content in fetched if content.payload is not None}
        from_host = {content.name[:end] for content in fetched} - from_disk
        self.num_host_hit_tokens += len(from_host) * self._pool.block_size
        self.num_disk_hit_tokens += len(from_disk) * self._pool.block_size

    def forget_host(self) -> None:
        """Drop what is in host memory: transfers to it were lost."""
        self.host.clear()

    # ---- the end

    def store_all(self) -> None:
        """Queue writes to disk of all that pool and host memory have cached, so that the next engine finds it."""
        if self.disk is None or not self.disk.is_on:
            return
        for block_hash, slots in self.host.items():
            self._log.add(ToDisk(slots, True, block_hash))
        for bundle, block_hash in self._pool.cached_blocks():
            self._log.add(ToDisk(self._pool.blocks_of(bundle), False, block_hash))


def _split(payload: bytearray, number: int) -> Sequence[bytearray | memoryview]:
    """``payload`` in ``number`` equal parts."""
    if number == 1:
        return [payload]
    size, whole = len(payload) // number, memoryview(payload)
    return [whole[first : first + size] for first in range(0, len(payload), size)]
