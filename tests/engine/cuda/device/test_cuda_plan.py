"""How a step is cut into work items, and how kernels are sized for a device."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import pytest
import torch
from kernel_matrix import BF16, CAPABILITIES, F16, F32, FP8, LLAMA, properties_of

from kvplan_engine.attention.cuda_plan import AttentionPlanner
from kvplan_engine.kernels.cuda.attention import (
    CHUNK_MULTIPLE,
    HEAD_SIZES,
    MIN_CHUNK,
    MIN_PART,
    AttentionShape,
    decode_launch,
    prefill_launch,
)
from kvplan_engine.kernels.cuda.launching.emulation import EmulatedRuntime
from kvplan_engine.kernels.cuda.launching.variants import CudaKernelError, KernelVariant
from kvplan_engine.kernels.cuda.params import PlanParams
from kvplan_engine.kernels.cuda.step_memory import StepMemory

TILE_ROWS = 64
GROUP = 4


class Item(NamedTuple):
    """attention.cuh: PrefillItem."""

    sequence: int
    tile: int
    first_token: int
    last_token: int
    part: int
    num_parts: int
    first_slot: int
    first_position: int


def make_plan(
    seq_lens: list[int], query_lens: list[int], window: int, target_chunks: int, num_slots: int = 0
) -> tuple[list[list[int]], list[Item]]:
    """Decode items [sequence, first token, last token, first item, number of items] and prefill items, as planned.

    num_slots: room for parts of tiles, for a device that takes ``target_chunks`` tiles at once.
    """
    starts = torch.tensor([0, *query_lens]).cumsum(0).to(torch.int32)
    lengths = torch.tensor(seq_lens, dtype=torch.int32)
    max_decode = len(seq_lens) + target_chunks
    max_prefill = len(seq_lens) + sum(query_lens) * GROUP // TILE_ROWS + num_slots
    decode = torch.full((max_decode, 8), 99, dtype=torch.int32)
    prefill = torch.full((max_prefill + 1, 8), 99, dtype=torch.int32)
    params = PlanParams(
        seq_lens=lengths.data_ptr(),
        query_starts=starts.data_ptr(),
        decode_items=decode.data_ptr(),
        prefill_items=prefill.data_ptr(),
        num_sequences=len(seq_lens),
        max_decode_items=max_decode,
        max_prefill_items=max_prefill,
        window=window,
        target_chunks=target_chunks,
        min_chunk=MIN_CHUNK,
        chunk_multiple=CHUNK_MULTIPLE,
        group=GROUP,
        tile_rows=TILE_ROWS,
        target_tiles=target_chunks,
        num_slots=num_slots,
        min_part=MIN_PART,
    )
    EmulatedRuntime().kernel(KernelVariant("attention/plan/plan.cu", "plan_attention"))((1, 1), 256, 0, params)
    assert (prefill[-1] == 99).all(), "wrote past the last prefill item"
    used = [row for row in decode.tolist() if row[0] >= 0]
    assert all(row[5:7] == [int(starts[row[0]]), seq_lens[row[0]]] for row in used)
    used_decode = [row[:5] for row in used]
    used_prefill = [Item(*row) for row in prefill[:-1].tolist() if row[0] >= 0]
    assert all(row[0] == -1 for row in decode.tolist()[len(used_decode) :])
    return used_decode, used_prefill


BATCHES = [
    ([32768], [1], 0, 33),
    ([8192] * 16, [1] * 16, 0, 33),
    ([1024] * 300, [1] * 300, 0, 33),
    ([1, 0, 255, 256, 257, 5000, 77], [1, 1, 1, 1, 1, 1, 1], 0, 20),
    ([3000, 100, 5000], [1, 1, 1], 1000, 20),
    ([3000, 100, 500, 40, 17], [1, 100, 3, 0, 1], 0, 20),
]


@pytest.mark.parametrize(("seq_lens", "query_lens", "window", "target"), BATCHES)
def test_decode_items_cover_every_visible_token_once(seq_lens, query_lens, window, target) -> None:
    items, _ = make_plan(seq_lens, query_lens, window, target)
    for sequence, (length, queries) in enumerate(zip(seq_lens, query_lens, strict=True)):
        own = [item for item in items if item[0] == sequence]
        if queries != 1:
            assert own == []
            continue
        first_item = items.index(own[0])
        assert all(item[3:] == [first_item, len(own)] for item in own)
        assert items[first_item : first_item + len(own)] == own, "the items of a sequence lie side by side"
        first_visible = max(0, length - window) if window else 0
        assert own[0][1] == first_visible // CHUNK_MULTIPLE * CHUNK_MULTIPLE
        assert own[-1][2] == length
        assert all(one[2] == other[1] for one, other in pairwise(own))
        assert all(item[1] % CHUNK_MULTIPLE == 0 or item[1] == item[2] for item in own)


def test_a_long_sequence_fills_the_device_and_many_short_ones_are_not_cut() -> None:
    alone, _ = make_plan([32768], [1], 0, 33)
    assert len(alone) == 33 - 1  # chunks of 1024 = 32768 / 33 rounded up to 64
    many, _ = make_plan([1024] * 300, [1] * 300, 0, 33)
    assert len(many) == 300
    short, _ = make_plan([200] * 2, [1] * 2, 0, 33)
    assert len(short) == 2


def test_prefill_items_are_all_tiles_longest_first() -> None:
    _, items = make_plan([3000, 100, 500, 40, 17], [1, 100, 3, 0, 40], 0, 20)
    rows = {1: 100 * GROUP, 2: 3 * GROUP, 4: 40 * GROUP}
    expected = [
        [sequence, tile] for sequence, count in rows.items() for tile in reversed(range(-(-count // TILE_ROWS)))
    ]
    assert [[item.sequence, item.tile] for item in items] == expected
    assert all((item.part, item.num_parts) == (0, 1) for item in items)


def tile_tokens(item: Item, length: int, queries: int, window: int) -> tuple[int, int]:
    """First position that the tile's first row sees, and one past what its last row sees."""
    first_query = item.tile * TILE_ROWS // GROUP
    last_query = (min((item.tile + 1) * TILE_ROWS, queries * GROUP) - 1) // GROUP
    first_position = length - queries
    visible = max(0, first_position + first_query - window + 1) if window else 0
    return visible, first_position + last_query + 1


SHORT_ON_LONG = [
    ([32768], [64], 0, 33),  # 4 tiles for 33 places
    ([32768], [4], 0, 264),  # one tile
    ([8192] * 16, [4] * 16, 0, 33),
    ([131072, 50, 0, 700], [3, 1, 0, 1], 0, 20),
    ([9000, 4000], [40, 400], 3000, 20),  # windows
    ([2048, *[100] * 30, 30000], [2048, *[100] * 30, 64], 0, 33),  # one long history among many tiles
    ([5000] * 300 + [20000], [1] * 300 + [7], 0, 33),  # more sequences than the plan has threads
]


@pytest.mark.parametrize(("seq_lens", "query_lens", "window", "target"), SHORT_ON_LONG)
@pytest.mark.parametrize("num_slots", [60, 7])
def test_parts_of_a_tile_cover_its_tokens_once(seq_lens, query_lens, window, target, num_slots) -> None:
    """And lie side by side in items, at multiples of the chunk, each with a slot that no other part has."""
    _, items = make_plan(seq_lens, query_lens, window, target, num_slots)
    tiles: dict[tuple[int, int], list[Item]] = {}
    for number, item in enumerate(items):
        tiles.setdefault((item.sequence, item.tile), []).append(item)
        assert items[number - item.part].part == 0
    assert set(tiles) == {(s, t) for s, n in enumerate(query_lens) if n > 1 for t in range(-(-n * GROUP // TILE_ROWS))}
    slots = [item.first_slot + item.part for item in items if item.num_parts > 1]
    assert len(set(slots)) == len(slots)
    assert all(0 <= slot < num_slots for slot in slots)
    for (sequence, _), parts in tiles.items():
        first, last = tile_tokens(parts[0], seq_lens[sequence], query_lens[sequence], window)
        assert [part.part for part in parts] == list(range(parts[0].num_parts))
        assert (parts[0].first_token, parts[-1].last_token) == (first, last)
        assert all(one.last_token == other.first_token for one, other in pairwise(parts))
        assert all(part.first_token % CHUNK_MULTIPLE == 0 for part in parts[1:])
        assert all(part.first_token < part.last_token for part in parts)


def parts_of_longest(items: list[Item]) -> int:
    return max(item.num_parts for item in items)


def test_short_queries_behind_long_prefixes_fill_the_device() -> None:
    """One round of parts where there are fewer tiles than places; no more parts than there are slots."""
    _, alone = make_plan([32768], [32], 0, 33, 60)  # two tiles
    assert len(alone) == 32
    _, verified = make_plan([8192] * 16, [4] * 16, 0, 33, 60)
    assert len(verified) == 32
    _, one = make_plan([32768], [4], 0, 33, 60)
    assert parts_of_longest(one) == 33 - 1  # parts of 1024 = 32768 / 33 rounded up to 64
    _, few_slots = make_plan([32768], [32], 0, 33, 7)
    assert len(few_slots) == 6


def test_what_keeps_the_device_busy_is_not_cut() -> None:
    """Whole prompts, as many tiles as there are places, prefixes shorter than a part; without slots nothing is."""
    for seq_lens, query_lens in (([1024], [1024]), ([8192] * 33, [16] * 33), ([4096] * 4, [4096] * 4), ([500], [16])):
        _, items = make_plan(seq_lens, query_lens, 0, 33, 60)
        assert parts_of_longest(items) == 1
    _, items = make_plan([32768], [16], 0, 33, 0)
    assert parts_of_longest(items) == 1


def test_a_history_longer_than_its_share_is_cut_among_many_tiles() -> None:
    """Its tile alone would keep the device waiting: 30000 tokens, where each place has about 5,000."""
    _, items = make_plan([2048, 30000], [2048, 16], 0, 33, 60)
    by_sequence = {s: parts_of_longest([item for item in items if item.sequence == s]) for s in (0, 1)}
    assert by_sequence == {0: 1, 1: 5}


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_kernels_fit_every_devices_shared_memory(capability: tuple[int, int], head_size: int) -> None:
    properties = properties_of(capability)
    for scalar, cache in ((F32, F32), (F16, F16), (BF16, FP8)):
        for heads, kv_heads in ((1, 1), (8, 2), (64, 4), (71, 1)):
            shape = AttentionShape(scalar, cache, head_size, 16, heads, kv_heads)
            decode, prefill = decode_launch(shape, properties), prefill_launch(shape, properties)
            assert decode.shared_bytes <= properties.shared_bytes_per_block
            assert prefill.shared_bytes <= properties.shared_bytes_per_block
            uses_mma = capability >= (8, 0) and scalar is not F32
            assert ("mma" in decode.variant.source, "mma" in prefill.variant.source) == (uses_mma, uses_mma)


def test_two_decode_blocks_share_a_multiprocessor_of_the_large_chips() -> None:
    h100 = properties_of((9, 0))
    launch = decode_launch(LLAMA, h100)
    assert launch.shared_bytes * 2 + 2048 <= h100.shared_bytes_per_multiprocessor
    assert launch.target_chunks == 2 * h100.num_multiprocessors // LLAMA.num_kv_heads
    assert launch.blocks_per_item == LLAMA.num_kv_heads


def test_few_rows_take_blocks_of_one_warp() -> None:
    """As many as there are 16 rows of a sequence: 4 tokens of 4 heads, say. Not without tensor cores."""
    planner = AttentionPlanner(EmulatedRuntime(properties_of((9, 0))), 4, None, False, StepMemory())
    launches = planner.launches_of(LLAMA)
    short = launches.prefill_of(16)
    assert (short.threads, short.tile_rows) == (32, 16)
    assert short.target_items == 80 * 5 // 8  # 5 blocks a multiprocessor, by shared memory
    assert launches.prefill_of(17) is launches.prefill
    plain = planner.launches_of(AttentionShape(F32, F32, 128, 16, 32, 8))
    assert plain.prefill_of(1) is plain.prefill


def test_shapes_without_kernels_say_so() -> None:
    for head_size in (0, 72, 272):
        with pytest.raises(CudaKernelError, match=f"do not support head size {head_size}"):
            decode_launch(AttentionShape(BF16, BF16, head_size, 16, 8, 8), properties_of((9, 0)))
    with pytest.raises(CudaKernelError, match="9 query heads cannot share 2 KV heads"):
        prefill_launch(AttentionShape(BF16, BF16, 64, 16, 9, 2), properties_of((9, 0)))
