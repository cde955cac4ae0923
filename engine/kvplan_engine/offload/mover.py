"""Carries out the block transfers of a step with the engine's block-copy kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from kvplan_engine.blocks.block_table import BlockCopy
from kvplan_engine.blocks.transfers import FromDisk, FromHost, ToDisk, ToHost, Transfer
from kvplan_engine.device.device import Device
from kvplan_engine.kernels.interface import Ops
from kvplan_engine.memory.workspace import HostPool
from kvplan_engine.offload.disk_tier import DiskTier


class Mover(Protocol):
    """Carries out transfers."""

    def run(self, transfers: list[Transfer]) -> None:
        """Carry out all of them, with the same result as one after another."""
        ...

    def close(self) -> None:
        """Give back what belongs to no pool of the device: nothing is moved any more."""
        ...


class CountedMover:
    """A mover of blocks without content: there is nothing to copy."""

    def run(self, transfers: list[Transfer]) -> None:
        """See Mover.run."""

    def close(self) -> None:
        """There is no memory."""


class BlockMover:
    """Moves blocks between the device pool, a host pool of the same layout, and files.

    device: the pool's. device_kv [num_planes, num_blocks, plane_bytes] uint8: a block is its part of each plane, one
    behind the other. host_pool: whole blocks; None without slots.
    """

    def __init__(
        self,
        ops: Ops,
        device: Device,
        device_kv: torch.Tensor,
        host_pool: HostPool | None,
        disk: DiskTier | None = None,
    ) -> None:
        self._ops = ops
        self._device = device
        self._device_kv = device_kv
        self._host_pool = host_pool
        num_planes, num_blocks, plane_bytes = device_kv.shape
        self._device_parts = _Parts(device_kv.view(-1, plane_bytes), 1, num_blocks, num_planes)
        self._host_parts: _Parts | None = None
        if host_pool is not None:
            self._host_parts = _Parts(host_pool.blocks.view(-1, plane_bytes), num_planes, 1, num_planes)
        self._disk = disk

    def run(self, transfers: list[Transfer]) -> None:
        """Carry out all of them, with the same result as one after another."""
        for group in group_transfers(transfers):
            first = group[0]
            if isinstance(first, ToDisk):
                self._store(first)
            elif isinstance(first, FromDisk):
                self._load(first)
            else:
                self._copy(group)

    def close(self) -> None:
        """Give the host pool back."""
        if self._host_pool is not None:
            self._host_pool.close()
        self._host_pool = self._host_parts = None

    def _copy(self, group: list[Transfer]) -> None:
        ends = np.array([_ends(transfer) for transfer in group], dtype=np.int64)
        kind = type(group[0])
        source = self._host_parts if kind is FromHost else self._device_parts
        target = self._host_parts if kind is ToHost else self._device_parts
        assert source is not None and target is not None, "a transfer to or from host memory, but there is no host pool"
        pairs = np.stack([source.rows_of(ends[:, 0]), target.rows_of(ends[:, 1])], axis=1)
        self._ops.copy_blocks(source.rows, target.rows, self._device.upload(pairs))

    def _store(self, transfer: ToDisk) -> None:
        parts = self._host_parts if transfer.from_host else self._device_parts
        assert parts is not None and self._disk is not None, "a transfer to disk, but there is no disk tier"
        if self._device_kv.is_cuda:  # copies to host memory may still be running
            torch.cuda.synchronize()
        rows = torch.from_numpy(parts.rows_of(np.array(transfer.indices, dtype=np.int64)))
        content = parts.rows.view(torch.uint8)[rows.to(parts.rows.device)].cpu()
        self._disk.write(transfer.block_hash, content.view(-1).numpy().data)

    def _load(self, transfer: FromDisk) -> None:
        content = torch.frombuffer(transfer.payload, dtype=torch.uint8)
        parts = self._device_kv[:, transfer.block].view(torch.uint8)
        parts.copy_(content.view(parts.shape))


@dataclass(frozen=True, slots=True)
class _Parts:
    """A pool as rows [num_blocks x num_planes, plane_bytes]: part p of block b is row b block_step + p plane_step."""

    rows: torch.Tensor
    block_step: int
    plane_step: int
    num_planes: int

    def rows_of(self, blocks: np.ndarray) -> np.ndarray:
        """All parts of ``blocks`` [n], block by block: [n x num_planes] int64."""
        return (blocks[:, None] * self.block_step + np.arange(self.num_planes) * self.plane_step).reshape(-1)


def group_transfers(transfers: Iterable[Transfer]) -> Iterator[list[Transfer]]:
    """Neighbours of one kind that may be copied at once: none writes what another in the group reads or writes."""
    group: list[Transfer] = []
    sources: set[int] = set()
    targets: set[int] = set()
    for transfer in transfers:
        if isinstance(transfer, (ToDisk, FromDisk)):
            if group:
                yield group
                group, sources, targets = [], set(), set()
            yield [transfer]
            continue
        source, target = _ends(transfer)
        in_one_pool = type(transfer) is BlockCopy
        clashes = target in targets or (in_one_pool and (source in targets or target in sources))
        if group and (clashes or type(transfer) is not type(group[0])):
            yield group
            group, sources, targets = [], set(), set()
        group.append(transfer)
        sources.add(source)
        targets.add(target)
    if group:
        yield group


def _ends(transfer: Transfer) -> tuple[int, int]:
    """Source and target block (or slot) of a copy within or between pools."""
    if isinstance(transfer, BlockCopy):
        return transfer.source, transfer.target
    if isinstance(transfer, ToHost):
        return transfer.block, transfer.slot
    assert isinstance(transfer, FromHost)
    return transfer.slot, transfer.block
