"""Swap space: exact transfers, nothing moved away from others, and an engine that never computes swapped KV again."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_answers import answer, in_planes, random_prompts, shrink_pool, small_llm
from small_models import Checkpoint, greedy

from kvplan_engine import LLM, EngineError, SamplingParams
from kvplan_engine.blocks.block_pool import BlockPool, check_pool
from kvplan_engine.blocks.block_table import BlockCopy, BlockTable, num_blocks_to_start
from kvplan_engine.blocks.layout import uniform_layout
from kvplan_engine.blocks.transfers import FromHost, SwappedGroup, ToHost, Transfer, TransferLog
from kvplan_engine.device.device import CpuDevice
from kvplan_engine.kernels.cpu import ops
from kvplan_engine.memory.workspace import HostPool
from kvplan_engine.offload.mover import BlockMover, group_transfers
from kvplan_engine.offload.preemption import CostModel, PreemptionPolicy
from kvplan_engine.offload.swap import SwapSpace


class Swapping:
    """A pool of 8 blocks of 4 tokens with ``num_slots`` host slots."""

    def __init__(self, num_slots: int = 8) -> None:
        self.log = TransferLog()
        self.pool = BlockPool(8, uniform_layout(4))
        self.swap = SwapSpace(self.pool, num_slots, self.log)

    def table(self, num_tokens: int) -> BlockTable:
        table = BlockTable(self.pool)
        table.reserve(0, num_tokens)
        return table

    def num_blocks_to_take(self, slots: list[SwappedGroup], num_held: int) -> int:
        return num_blocks_to_start(self.pool, self.swap.find(slots), num_held)


def test_blocks_go_out_and_come_back_into_the_next_free_ones() -> None:
    s = Swapping()
    table = s.table(10)  # blocks 0 1 2, the last one half full
    slots = s.swap.swap_out(table, 10)
    assert s.log.take() == [ToHost(0, 0), ToHost(1, 1), ToHost(2, 2)]
    assert s.pool.num_free_blocks == 8
    s.table(32).release()  # everything is overwritten
    assert slots is not None
    assert s.num_blocks_to_take(slots, 3) == 3
    s.swap.swap_in(table, slots, 10)
    assert s.log.take() == [FromHost(slot, block) for slot, block in zip(slots[0].slots, table.blocks, strict=True)]
    assert s.swap.num_free_slots == 8
    check_pool(s.pool, [table.blocks])


def test_full_blocks_nobody_took_need_no_copy_back() -> None:
    s = Swapping()
    table = s.table(10)
    slots = s.swap.swap_out(table, 10)
    assert slots is not None
    s.log.take()
    other = s.table(8)  # takes blocks 0 and 1, freed last of all
    s.swap.swap_in(table, slots, 10)
    assert s.log.take() == [FromHost(0, 2), FromHost(1, 3), FromHost(2, 4)]
    other.release()
    table.release()
    table = s.table(10)
    slots = s.swap.swap_out(table, 10)
    assert slots is not None
    s.log.take()
    before = s.num_blocks_to_take(slots, 3)
    s.swap.swap_in(table, slots, 10)
    assert before == 3
    assert [type(transfer) for transfer in s.log.take()] == [FromHost]  # only the partly filled one
    check_pool(s.pool, [table.blocks])


def test_a_shared_block_stays_with_the_others_and_is_copied_once() -> None:
    s = Swapping()
    parent = s.table(8)
    child = parent.fork()
    slots_of_child = s.swap.swap_out(child, 8)
    assert slots_of_child is not None
    assert len(s.log.take()) == 2
    assert parent.blocks == [0, 1]
    assert s.pool.num_used_blocks == 2
    slots_of_parent = s.swap.swap_out(parent, 8)
    assert slots_of_parent == slots_of_child
    assert s.log.take() == []  # a copy is there already
    assert s.pool.num_used_blocks == 0
    s.swap.check([slots_of_child, slots_of_parent])
    s.table(32).release()
    s.swap.swap_in(parent, slots_of_parent, 8)
    assert len(s.log.take()) == 2
    assert s.num_blocks_to_take(slots_of_child, 2) == 0
    s.swap.swap_in(child, slots_of_child, 8)
    assert s.log.take() == []  # shared again
    assert child.blocks == parent.blocks
    s.swap.check([])
    check_pool(s.pool, [parent.blocks, child.blocks])


def test_a_shared_block_that_is_partly_filled_gets_a_copy_of_its_own() -> None:
    s = Swapping()
    parent = s.table(6)
    child = parent.fork()
    slots = s.swap.swap_out(child, 6)
    parent.reserve(6, 7)  # alone now: written in place, beyond what the child knows
    assert slots is not None
    s.swap.swap_in(child, slots, 6)
    assert child.blocks[0] == parent.blocks[0]
    assert child.blocks[1] != parent.blocks[1]


def test_no_room_changes_nothing() -> None:
    s = Swapping(num_slots=2)
    table = s.table(10)
    assert s.swap.swap_out(table, 10) is None
    assert table.blocks == [0, 1, 2]
    assert s.log.take() == []
    assert s.swap.num_free_slots == 2


def test_auto_swaps_where_copying_is_cheaper_than_computing() -> None:
    class OneSequence:
        def __init__(self, table: BlockTable) -> None:
            self.table, self.num_computed_tokens, self.swapped = table, 8, []

    for seconds_per_token, goes_out in ((1e-3, True), (1e-9, False)):
        s = Swapping()
        cost = CostModel(block_bytes=1 << 20, block_size=4, seconds_per_token=seconds_per_token)
        sequence = OneSequence(s.table(8))
        assert PreemptionPolicy("auto", s.swap, cost).try_swap_out(sequence) == goes_out  # type: ignore[arg-type]
        assert (sequence.table.blocks == []) == goes_out


def test_groups_never_reorder_what_depends_on_each_other() -> None:
    transfers: list[Transfer] = [
        ToHost(3, 0),
        ToHost(4, 1),
        ToHost(5, 0),  # slot 0 again: must come after
        FromHost(0, 3),
        FromHost(1, 0),
        BlockCopy(3, 7),
        BlockCopy(7, 3),
    ]
    sizes = [len(group) for group in group_transfers(transfers)]
    assert sizes == [2, 1, 2, 1, 1]


@pytest.mark.parametrize("num_planes", [1, 4])
def test_the_mover_does_what_one_transfer_after_another_would(num_planes: int) -> None:
    rng = np.random.default_rng(0)
    start = [torch.from_numpy(rng.integers(0, 256, (number, 512), np.uint8)) for number in (6, 5)]
    for _ in range(50):
        transfers: list[Transfer] = []
        device, host = start[0].clone(), start[1].clone()
        for kind, a, b, slot in rng.integers(0, (3, 6, 6, 5), (12, 4)).tolist():
            if kind == 0:
                transfers.append(ToHost(a, slot))
                host[slot] = device[a]
            elif kind == 1:
                transfers.append(FromHost(slot, a))
                device[a] = host[slot]
            elif a != b:
                transfers.append(BlockCopy(a, b))
                device[b] = device[a]
        planes, pool = in_planes(start[0], num_planes), HostPool(*start[1].shape, is_pinned=False)
        got_host = pool.blocks.copy_(start[1])
        BlockMover(ops, CpuDevice(1), planes, pool).run(transfers)  # type: ignore[arg-type]
        assert torch.equal(planes, in_planes(device, num_planes))
        assert torch.equal(got_host, host)


def swapping_llm(checkpoint: Checkpoint, **settings: object) -> LLM:
    limits = {"max_num_batched_tokens": 48, "max_num_seqs": 8, "max_model_len": 96, "block_size": 8}
    return small_llm(checkpoint.path, **limits | {"swap_space": "4MiB", "preemption_mode": "swap"} | settings)


@pytest.mark.parametrize("prefix_caching", [False, True], ids=["uncached", "cached"])
def test_nothing_that_was_swapped_is_computed_again(checkpoints: dict[str, Checkpoint], prefix_caching: bool) -> None:
    checkpoint = checkpoints["llama"]
    prompts = random_prompts(30, 25, 40, 9, 61, 33, seed=2)
    want = greedy(checkpoint.model, prompts, 24)
    llm = swapping_llm(checkpoint, enable_prefix_caching=prefix_caching)
    shrink_pool(llm, num_tokens=128)
    assert answer(llm, prompts, 24) == want
    stats = llm.get_stats()
    assert stats["num_preemptions"] == stats["num_swaps"] > 0
    assert stats["recomputed_tokens"] == 0
    assert 0 < stats["swapped_in_blocks"] <= stats["swapped_out_blocks"]
    assert stats["num_free_blocks"] == stats["num_blocks"]


def test_swapped_sequences_come_back_before_new_ones_start(checkpoints: dict[str, Checkpoint]) -> None:
    llm = swapping_llm(checkpoints["qwen2"], enable_prefix_caching=False)
    shrink_pool(llm, num_tokens=96)
    params = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
    requests = [llm.engine.add_request(f"r{i}", [i + 1] * 20, params) for i in range(6)]
    scheduler = llm.engine.scheduler
    seen = False
    while llm.engine.has_unfinished_requests():
        waiting_before = len(scheduler.waiting)
        llm.engine.step()
        llm.engine.check()
        if scheduler.swapped:
            seen = True
            assert len(scheduler.waiting) == waiting_before
    assert seen
    assert all(len(request.sequences[0].output_token_ids) == 30 for request in requests)


def test_parallel_samples_are_swapped_and_come_back_the_same(checkpoints: dict[str, Checkpoint]) -> None:
    prompts = [{"prompt_token_ids": list(range(1, 38))}, {"prompt_token_ids": list(range(50, 80))}]
    params = SamplingParams(n=4, temperature=1.0, seed=7, max_tokens=24, ignore_eos=True)
    roomy = swapping_llm(checkpoints["llama"], swap_space=0, preemption_mode="recompute")
    want = [[c.token_ids for c in output.outputs] for output in roomy.generate(prompts, params)]
    assert roomy.get_stats()["num_preemptions"] == 0
    llm = swapping_llm(checkpoints["llama"])
    shrink_pool(llm, num_tokens=128)
    got = [[c.token_ids for c in output.outputs] for output in llm.generate(prompts, params)]
    assert got == want
    assert llm.get_stats()["num_swaps"] > 0
    assert llm.get_stats()["recomputed_tokens"] == 0
    llm.engine.check()


def test_a_swap_space_that_is_too_small_falls_back_to_recomputing(checkpoints: dict[str, Checkpoint]) -> None:
    checkpoint = checkpoints["gpt2"]
    prompts = random_prompts(*[30] * 5)
    want = greedy(checkpoint.model, prompts, 24)
    llm = swapping_llm(checkpoint, swap_space=5 * 12288, enable_prefix_caching=False)
    shrink_pool(llm, num_tokens=96)
    assert answer(llm, prompts, 24) == want
    stats = llm.get_stats()
    assert stats["recomputed_tokens"] > 0


def test_aborting_swapped_requests_frees_their_slots(checkpoints: dict[str, Checkpoint]) -> None:
    llm = swapping_llm(checkpoints["gpt2"])
    shrink_pool(llm, num_tokens=96)
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    for i in range(5):
        llm.engine.add_request(f"r{i}", [i + 1] * 20, params)
    while not llm.engine.scheduler.swapped:
        llm.engine.step()
    for i in range(5):
        llm.engine.abort(f"r{i}")
    llm.engine.check()
    assert not llm.engine.has_unfinished_requests()
    assert llm.get_stats()["num_free_blocks"] == llm.get_stats()["num_blocks"]


def test_swap_without_swap_space_is_refused() -> None:
    with pytest.raises(EngineError, match="needs host memory"):
        LLM({"architectures": ["GPT2LMHeadModel"]}, preemption_mode="swap")
