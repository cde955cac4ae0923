"""The KV layout of well-known shapes, worked out by hand from the rule in ARCHITECTURE.md."""

from __future__ import annotations

import pytest

from kvplan_engine.blocks.layout import KeptPart, KvLayout, Place, pack, plan_layout
from kvplan_engine.description.kept_units import KeptUnit
from kvplan_engine.description.mixers import FULL, STATE, Kept

KIB = 1024
BF16 = {"kv": 2, "model": 2, "float32": 4}.__getitem__


def attention(layers: range | list[int], elements: int, kept: Kept = FULL) -> list[KeptUnit]:
    """Keys and values of ``elements`` per token, in each of ``layers``."""
    return [KeptUnit(layer, part, kept, elements) for layer in layers for part in ("keys", "values")]  # type: ignore[arg-type]


def in_order(*units: list[KeptUnit]) -> list[KeptUnit]:
    return sorted((unit for some in units for unit in some), key=lambda unit: unit.layer)


def gated_delta(layers: list[int], heads: int, channels: int, dtype: str = "float32") -> list[KeptUnit]:
    """A convolution of 4 over ``channels``, and ``heads`` states of 128 x 128."""
    units = []
    for layer in layers:
        units.append(KeptUnit(layer, "conv", STATE, channels, num_rows=3, dtype="model"))
        units.append(KeptUnit(layer, "recurrent", STATE, 128, num_rows=heads * 128, dtype=dtype))
    return units


def gemma_3(num_layers: int, elements: int, window: int) -> KvLayout:
    full = [layer for layer in range(num_layers) if layer % 6 == 5]
    rest = [layer for layer in range(num_layers) if layer % 6 != 5]
    units = in_order(attention(full, elements), attention(rest, elements, Kept("window", window)))
    return plan_layout(units, 16, BF16)


def hybrid(num_layers: int, elements: int, heads: int, channels: int, dtype: str = "float32") -> KvLayout:
    full = [layer for layer in range(num_layers) if layer % 4 == 3]
    rest = [layer for layer in range(num_layers) if layer % 4 != 3]
    return plan_layout(in_order(attention(full, elements), gated_delta(rest, heads, channels, dtype)), 16, BF16)


def width_one_by_one(units: list[KeptUnit], block_bytes: int) -> int:
    """The blocks that the rows of ``units`` fill, put in one after the other."""
    block, offset = 0, 0
    for unit in units:
        offset = -(-offset // 16) * 16
        for _ in range(unit.num_rows):
            row_bytes = unit.row_elements * BF16(unit.dtype)
            if offset + row_bytes > block_bytes:
                block, offset = block + 1, 0
            offset += row_bytes
    return block + 1


def widths(layout: KvLayout) -> list[int]:
    return [group.width for group in layout.groups]


@pytest.mark.parametrize("num_layers, elements, dtype_bytes", [(32, 1024, 2), (12, 768, 4), (1, 3, 1)])
def test_layers_that_all_keep_the_same_tokens_are_one_block_of_all_keys_and_values(
    num_layers: int, elements: int, dtype_bytes: int
) -> None:
    layout = plan_layout(attention(range(num_layers), elements), 16, lambda _: dtype_bytes)
    assert layout.block_bytes == num_layers * 2 * 16 * elements * dtype_bytes
    assert widths(layout) == [1]
    assert layout.is_uniform
    page = 16 * elements * dtype_bytes
    assert layout.groups[0].places[num_layers - 1, "values"] == Place(0, (2 * num_layers - 1) * page)
    assert layout.num_planes == num_layers


def test_windows_of_one_length_in_all_layers_are_uniform_too() -> None:
    layout = plan_layout(attention(range(4), 8, Kept("window", 32)), 16, BF16)
    assert layout.is_uniform
    assert layout.groups[0].kept == Kept("window", 32)


def test_gemma_3_27b() -> None:
    # pages of 64 KiB: 20 in the 10 full layers, 104 in the 52 windows. 20, 10, 7 of a block waste 15, 6, 5 %, 5 1 %
    layout = gemma_3(62, 16 * 128, 1024)
    assert layout.block_bytes == 320 * KIB
    assert layout.num_planes == 1  # a layer's two pages of 64 KiB would be cut
    assert widths(layout) == [4, 21]
    assert [group.kept for group in layout.groups] == [FULL, Kept("window", 1024)]
    window = layout.groups[1].places
    assert window[0, "keys"] == Place(0, 0)
    assert window[2, "values"] == Place(1, 0)  # the sixth page: layer 5 is full, and in the other group
    assert layout.groups[0].places[17, "values"] == Place(1, 0)


def test_gemma_3_4b() -> None:
    # 5 full layers of 34: 10 pages of 32 KiB, and 58. Blocks of 2 pages are the first that fill up: 5 + 29
    layout = gemma_3(34, 4 * 256, 1024)
    assert layout.block_bytes == 64 * KIB
    assert sum(widths(layout)) == 34


def test_gpt_oss_20b() -> None:
    even, odd = list(range(0, 24, 2)), list(range(1, 24, 2))
    units = in_order(attention(even, 8 * 64, Kept("window", 128)), attention(odd, 8 * 64))
    layout = plan_layout(units, 16, BF16)
    assert layout.block_bytes == 384 * KIB
    assert widths(layout) == [1, 1]
    assert layout.num_planes == 12


def test_qwen_3_5_27b() -> None:
    layout = hybrid(64, 4 * 256, heads=48, channels=10_240)
    assert layout.block_bytes == 1024 * KIB
    assert layout.num_planes == 1  # rows of states fill whole blocks
    # a layer: 60 KiB of convolution and 3 MiB of state, 48 of them: 146.8 blocks of 1 MiB
    assert widths(layout) == [1, 147]
    assert layout.groups[1].unit_bytes == 48 * (3 * 10_240 * 2 + 48 * 128 * 128 * 4)


def test_qwen_3_next_80b() -> None:
    layout = hybrid(48, 2 * 256, heads=32, channels=8192, dtype="model")
    assert layout.block_bytes == 384 * KIB
    assert widths(layout) == [1, 101]


def test_latents_with_states_fill_blocks_that_are_no_power_of_two() -> None:
    # Kimi Linear: 7 latent layers of 576, and 20 with three convolutions of 4,096 channels and 32 states of 128 x 128
    full = [3, 7, 11, 15, 19, 23, 26]
    rest = [layer for layer in range(27) if layer not in full]
    units = in_order([KeptUnit(layer, "latent", FULL, 576) for layer in full], gated_delta(rest, 32, 3 * 4096))
    layout = plan_layout(units, 16, BF16)
    assert layout.block_bytes == 126 * KIB
    # 336.5 blocks full of states; rows of 24 KiB of the convolutions leave gaps at the ends of some
    states = [unit for unit in units if unit.kept == STATE]
    assert widths(layout) == [1, 340] == [1, width_one_by_one(states, 126 * KIB)]


def test_states_alone_are_one_block() -> None:
    layout = plan_layout(gated_delta([0, 1], 2, 100), 16, BF16)
    assert widths(layout) == [1]
    # the convolution's 600 bytes end at 608, where the state begins
    assert layout.block_bytes == 2 * (608 + 2 * 128 * 128 * 4)
    assert layout.groups[0].places[1, "recurrent"] == Place(0, 608 + 2 * 128 * 128 * 4 + 608)
    assert not layout.is_uniform
    assert layout.blocks_for(1) == layout.blocks_for(100_000) == 1


def test_a_unit_larger_than_the_smallest_group_makes_the_block() -> None:
    units = [*attention([0], 8), *attention([1], 100, Kept("window", 4))]
    layout = plan_layout(units, 16, BF16)
    assert layout.block_bytes == 16 * 100 * 2
    assert widths(layout) == [1, 2]


def test_a_size_counts_although_the_one_before_it_was_too_small() -> None:
    # runs of 3 give 7 elements, runs of 2 give 10: only these have room for a page of 9
    small = [KeptUnit(layer, "latent", FULL, size) for layer, size in enumerate([1, 1, 5, 5, 1, 1, 1, 1])]
    large = [KeptUnit(layer, "latent", Kept("window", 64), 9) for layer in range(8, 20)]
    sizes = {plan_layout([*small, *large], 1, lambda _: 1).block_bytes}
    assert sizes <= {16, 12, 10}  # of runs of 8, of 4 (1 1 5 5), of 2


def test_rows_of_compressed_tokens_round_up() -> None:
    units = [KeptUnit(0, "compressed", FULL, 10, tokens_per_row=3)]
    assert plan_layout(units, 16, BF16).block_bytes == 6 * 10 * 2


def test_groups_stand_in_the_order_full_windows_chunks_states() -> None:
    kept = [STATE, Kept("chunk", 8), Kept("window", 9), Kept("window", 4), FULL]
    units = [KeptUnit(layer, "keys", each, 16, num_rows=each == STATE) for layer, each in enumerate(kept)]
    layout = plan_layout(units, 4, BF16)
    assert [group.kept for group in layout.groups] == [FULL, Kept("window", 4), Kept("window", 9), *kept[1::-1]]


def test_packing_begins_a_block_where_a_unit_does_not_fit_and_never_splits_one() -> None:
    parts = [KeptPart((0, "conv"), 1, 10), KeptPart((0, "recurrent"), 7, 30), KeptPart((1, "conv"), 1, 90)]
    packed = pack(parts, 100, 16)
    # 10 | 16: two rows of 30 | three rows | two rows: 60, then 64 + 90 does not fit
    assert packed.starts == ((0, 0), (0, 16), (3, 0))
    assert packed.width == 4
    assert pack(parts[:2], 100, 16).width == 3


@pytest.mark.parametrize("num_tokens, in_flight, expected", [(1, 1, 1), (16, 1, 1), (17, 1, 2), (1000, 1, 63)])
def test_full_layers_need_a_block_for_every_16_tokens(num_tokens: int, in_flight: int, expected: int) -> None:
    assert plan_layout(attention([0], 8), 16, BF16).blocks_for(num_tokens, in_flight) == expected


def test_a_window_holds_what_the_tokens_in_flight_see() -> None:
    layout = plan_layout(attention([0], 8, Kept("window", 32)), 16, BF16)
    # one query sees 32 tokens, which lie in 3 blocks unless they begin with one
    assert [layout.blocks_for(number) for number in (16, 17, 33, 1000)] == [1, 2, 3, 3]
    assert layout.blocks_for(1000, in_flight=16) == 4
    assert layout.largest_sequence(3, limit=1000) == 1000
    assert layout.largest_sequence(3, limit=1000, in_flight=16) == 48
    assert layout.largest_sequence(0, limit=1000) == 0


@pytest.mark.parametrize("window, in_flight", [(1, 1), (7, 1), (8, 3), (9, 8), (17, 30)])
def test_no_sequence_ever_holds_more_than_blocks_for_says(window: int, in_flight: int) -> None:
    layout = plan_layout(attention([0], 8, Kept("window", window)), 8, BF16)
    group, length = layout.groups[0], 90
    most = 0
    for computed in range(length):
        for new in range(1, min(in_flight, length - computed) + 1):
            held = (computed + new - 1) // 8 - group.first_kept_token(computed) // 8 + 1
            assert held <= layout.blocks_for(computed + new, new) <= layout.blocks_for(length, in_flight)
            most = max(most, held)
    assert most == layout.blocks_for(length, in_flight)


def test_a_chunk_sees_from_its_own_start() -> None:
    group = plan_layout(attention([0], 8, Kept("chunk", 32)), 16, BF16).groups[0]
    assert [group.first_kept_token(number) for number in (0, 31, 32, 70)] == [0, 0, 32, 64]
