"""Swap space and KV tiers over groups of layers: bundles of several blocks, windows, states."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engine_answers import in_planes

from kvplan_engine.blocks.block_pool import BlockPool, check_pool
from kvplan_engine.blocks.block_table import BlockTable
from kvplan_engine.blocks.layout import KvGroup, KvLayout
from kvplan_engine.blocks.transfers import FromDisk, FromHost, SwappedGroup, ToDisk, ToHost, TransferLog
from kvplan_engine.description.mixers import FULL, STATE, Kept
from kvplan_engine.device.device import CpuDevice
from kvplan_engine.kernels.cpu import ops
from kvplan_engine.offload.disk_tier import DiskTier
from kvplan_engine.offload.host_tier import HostTier
from kvplan_engine.offload.mover import BlockMover
from kvplan_engine.offload.preemption import CostModel
from kvplan_engine.offload.swap import SwapSpace
from kvplan_engine.offload.tiers import KvTiers

LAYOUT = KvLayout(64, 4, (KvGroup(FULL, 1, 1, {}), KvGroup(Kept("window", 6), 2, 1, {}), KvGroup(STATE, 3, 1, {})))


def table_of(pool: BlockPool, num_tokens: int) -> BlockTable:
    table = BlockTable(pool)
    table.reserve(0, num_tokens)
    return table


def test_a_swapped_sequence_takes_what_its_next_token_sees() -> None:
    pool, log = BlockPool(40, LAYOUT), TransferLog()
    swap = SwapSpace(pool, 40, log)
    table = table_of(pool, 14)  # 4 blocks, 4 bundles of 2, a state of 3
    swapped = swap.swap_out(table, 14)
    assert swapped is not None
    # token 14 sees 9 to 14: blocks 2 and 3 of the window
    assert [(each.first, len(each.slots)) for each in swapped] == [(0, 4), (2, 2), (0, 1)]
    out = log.take()
    assert len(out) == swap.num_blocks_out == 4 + 2 * 2 + 3 == swap.num_blocks_back(14)
    assert pool.num_used_blocks == 0
    swap.check([swapped])
    table_of(pool, 20).release()  # everything is overwritten
    swap.swap_in(table, swapped, 14)
    back = [transfer for transfer in log.take() if isinstance(transfer, FromHost)]
    slots = {transfer.slot: transfer.block for transfer in out if isinstance(transfer, ToHost)}
    assert {transfer.slot for transfer in back} <= slots.keys()
    assert [(each.first, len(each.bundles)) for each in table.groups] == [(0, 4), (2, 2), (0, 1)]
    table.check(14)
    check_pool(pool, [table.all_bundles])
    swap.check([])
    assert swap.num_free_slots == 40


def test_siblings_share_the_copy_of_full_bundles_and_have_states_of_their_own() -> None:
    pool, log = BlockPool(40, LAYOUT), TransferLog()
    swap = SwapSpace(pool, 40, log)
    parent = table_of(pool, 8)
    child = parent.fork()
    first, second = swap.swap_out(child, 8), swap.swap_out(parent, 8)
    assert first is not None
    assert second is not None
    assert [a.slots == b.slots for a, b in zip(first, second, strict=True)] == [True, True, False]
    assert len(log.take()) == 2 + 2 * 2 + 2 * 3
    swap.check([first, second])


def test_without_slots_for_all_groups_nothing_goes_out() -> None:
    pool, log = BlockPool(40, LAYOUT), TransferLog()
    table = table_of(pool, 4)
    assert SwapSpace(pool, 5, log).swap_out(table, 4) is None
    assert log.take() == []
    assert pool.num_used_blocks == 6
    assert SwapSpace(pool, 6, log).swap_out(table, 4) == [
        SwappedGroup(0, [0]),
        SwappedGroup(0, [1]),
        SwappedGroup(0, [3]),
    ]


def tiers_of(pool: BlockPool, log: TransferLog, num_slots: int, disk: DiskTier | None) -> KvTiers:
    cost = CostModel(block_bytes=64, block_size=4, seconds_per_token=1e-3)
    return KvTiers(pool, HostTier(0, num_slots), disk, cost, log, "always")


def test_a_bundle_needs_as_many_slots_and_makes_room_as_a_whole() -> None:
    pool, log = BlockPool(6, LAYOUT), TransferLog()
    tiers = tiers_of(pool, log, 4, None)
    wide, small = pool.allocate_bundles(1, 3) + pool.allocate(1)
    pool.cache(wide, b"wide")
    pool.cache(small, b"small")
    pool.free([small, wide])
    pool.allocate(6)  # wide goes first, then small
    assert log.take() == [ToHost(0, 0), ToHost(1, 1), ToHost(2, 2), ToHost(3, 3)]
    assert tiers.host.find(b"wide") == (0, 1, 2)
    assert tiers.host.put(b"other", 2) is not None
    assert tiers.host.find(b"wide") is None  # the least recently used
    assert tiers.host.put(b"huge", 5) is None
    assert tiers.host.find(b"small") == (3,)
    tiers.host.check()
    assert tiers.host.num_used_slots == 3


def test_each_logical_block_that_comes_back_is_counted_once() -> None:
    pool, log = BlockPool(12, LAYOUT), TransferLog()
    tiers = tiers_of(pool, log, 8, None)
    names = [b"block" + bytes([group]) for group in (0, 1)]
    bundles = pool.allocate(1) + pool.allocate_bundles(1, 2)
    for name, bundle in zip(names, bundles, strict=True):
        pool.cache(bundle, name)
    pool.free(bundles)
    pool.allocate(12)
    fetched = tiers.fetch(names)
    assert fetched is not None
    pool.free(range(12))
    log.take()
    targets = pool.allocate(1) + pool.allocate_bundles(1, 2)
    tiers.place(fetched, targets)
    assert [type(transfer) for transfer in log.take()] == [FromHost] * 3
    assert (tiers.num_host_hit_tokens, tiers.num_disk_hit_tokens) == (4, 0)


@pytest.mark.parametrize("num_planes", [1, 4])
def test_a_file_holds_a_whole_bundle(tmp_path: Path, num_planes: int) -> None:
    want = torch.randn(6, 16)  # 64 bytes a block
    kv = in_planes(want, num_planes)
    disk = DiskTier(tmp_path, 1 << 20, 64, b"k" * 16, LAYOUT.widths)
    mover = BlockMover(ops, CpuDevice(1), kv, None, disk)  # type: ignore[arg-type]
    name = b"n" * 15 + b"\x02"  # of the third group, bundles of three
    mover.run([ToDisk((4, 0, 2), False, name)])
    assert disk.used_bytes == sum(path.stat().st_size for path in tmp_path.rglob("*.kv"))
    again = DiskTier(tmp_path, 1 << 20, 64, b"k" * 16, LAYOUT.widths)
    assert name in again
    payload = again.read(name)
    assert payload is not None
    kv.zero_()
    parts = [memoryview(payload)[first : first + 64] for first in (0, 64, 128)]
    mover.run([FromDisk(part, block) for part, block in zip(parts, (4, 0, 2), strict=True)])
    assert torch.equal(kv[:, [4, 0, 2]], in_planes(want, num_planes)[:, [4, 0, 2]])


@pytest.mark.parametrize("widths", [(1, 2, 2), (1, 2)])
def test_files_of_another_layout_are_left_alone(tmp_path: Path, widths: tuple[int, ...]) -> None:
    name = b"n" * 15 + b"\x02"
    DiskTier(tmp_path, 1 << 20, 64, b"k" * 16, LAYOUT.widths).write(name, memoryview(bytes(3 * 64)))
    assert name not in DiskTier(tmp_path, 1 << 20, 64, b"k" * 16, widths)
    assert len(list(tmp_path.rglob("*.kv"))) == 1
