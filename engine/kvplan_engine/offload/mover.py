"""Carries out the transfers of a step with the engine's block-copy kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from kvplan_engine.block_table import BlockCopy
from kvplan_engine.layers.ops import Ops
from kvplan_engine.offload.transfers import FromHost, ToHost, Transfer


class BlockMover:
    """Moves blocks between the device pool and a host pool of the same layout.

    device_kv, host_kv: [num_blocks, num_layers, 2, num_kv_heads, block_size, head_size]; host_kv None without slots.
    """

    def __init__(self, ops: Ops, device_kv: torch.Tensor, host_kv: torch.Tensor | None) -> None:
        self._ops = ops
        self._device_kv = device_kv
        self._host_kv = host_kv

    def run(self, transfers: list[Transfer]) -> None:
        """Do all of them, as if one after another."""
        for group in group_transfers(transfers):
            self._copy(group)

    def _copy(self, group: list[Transfer]) -> None:
        pairs = torch.tensor([_ends(transfer) for transfer in group], dtype=torch.int64, device=self._device_kv.device)
        kind = type(group[0])
        source = self._host_kv if kind is FromHost else self._device_kv
        target = self._host_kv if kind is ToHost else self._device_kv
        assert source is not None and target is not None, "a transfer to or from a host pool that there is not"
        self._ops.copy_blocks(source, target, pairs)


def group_transfers(transfers: Iterable[Transfer]) -> Iterator[list[Transfer]]:
    """Neighbours of one kind that may be copied at once: none writes what another one of the group reads or writes."""
    group: list[Transfer] = []
    sources: set[int] = set()
    targets: set[int] = set()
    for transfer in transfers:
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
    """Source and target."""
    if isinstance(transfer, BlockCopy):
        return transfer.source, transfer.target
    if isinstance(transfer, ToHost):
        return transfer.block, transfer.slot
    assert isinstance(transfer, FromHost)
    return transfer.slot, transfer.block
