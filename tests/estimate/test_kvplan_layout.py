"""The layout of unlike layers in kvplan's own pool: block sizes, bundles and blocks of a sequence, computed by hand."""

from __future__ import annotations

import pytest

from kvplan.catalog.models import resolve_model
from kvplan.catalog.spec import CrossAttention, LayerSpec, Mixer, ModelSpec, SoftmaxAttention, StateMixer
from kvplan.estimate.cache_entries import CacheSettings
from kvplan.estimate.kv_cache import size_sequence
from kvplan.estimate.kv_groups import FULL, STATE, Kept, KvGroup
from kvplan.estimate.kvplan.layout import KvLayout, plan_layout
from kvplan.paths import profiles_dir

KIB = 1024
BFLOAT16 = CacheSettings()
FULL_LAYER = SoftmaxAttention(4, 2, 8, 8)
"""Of each token 32 B of keys and 32 B of values."""


def model(*mixers: Mixer, cross: CrossAttention | None = None) -> ModelSpec:
    layers = tuple(LayerSpec(mixer, cross_attention=cross) for mixer in mixers)
    return ModelSpec("tiny", "Tiny", "tiny", layers, 64, 100, 1024, "bfloat16", True, ())


def window(tokens: int) -> SoftmaxAttention:
    return SoftmaxAttention(4, 2, 8, 8, window_kind="sliding", window_tokens=tokens)


def shipped(name: str, block_size: int = 16, cache: CacheSettings = BFLOAT16) -> KvLayout:
    return plan_layout(resolve_model(name), cache, block_size)


def widths(layout: KvLayout) -> list[tuple[str, int | None, int]]:
    return [(group.kept.kind, group.kept.tokens, group.width) for group in layout.groups]


@pytest.mark.parametrize(
    ("name", "block_kib", "groups"),
    [
        # K or V of a layer: 16 heads x 128 x 2 B x 16 tokens = 64 KiB. Runs of 20, 10 and 7 of the 20 full pages waste
        # 120/104, 110/104 and 21/20; of 5: 105/104.
        ("gemma-3-27b", 320, [("full", None, 4), ("window", 1024, 21)]),
        ("gemma-3-12b", 1024, [("full", None, 1), ("window", 1024, 5)]),
        # 10 and 58 pages of 32 KiB: runs of 10 and 5 make it 60/58, of 4 and 3 12/10; runs of 2 leave nothing empty
        ("gemma-3-4b", 64, [("full", None, 5), ("window", 1024, 29)]),
        ("gpt-oss-20b", 384, [("full", None, 1), ("window", 128, 1)]),
        ("llama-4-scout", 768, [("full", None, 1), ("chunk", 8192, 3)]),
        ("llama-3.1-8b", 2048, [("full", None, 1)]),
        ("deepseek-v3", 1098, [("full", None, 1)]),
        # in 36 layers 3 inputs of 8,192 channels x 2 B and 32 heads x 128 rows of 128 float32: 38,592 KiB
        ("qwen3-next-80b-a3b", 384, [("full", None, 1), ("state", None, 101)]),
        # keys of 192 elements, values of 128
        ("mimo-v2-flash", 80, [("full", None, 5), ("window", 128, 39)]),
    ],
)
def test_groups_of_shipped_models(name: str, block_kib: int, groups: list[tuple[str, int | None, int]]) -> None:
    layout = shipped(name)
    assert layout.block_bytes == block_kib * KIB
    assert widths(layout) == groups


@pytest.mark.parametrize("block_size", [1, 3, 16, 32])
def test_layers_that_keep_the_same_tokens_are_one_group_of_width_one(block_size: int) -> None:
    for mixers in ([FULL_LAYER] * 3, [window(20)] * 3):
        layout = plan_layout(model(*mixers), BFLOAT16, block_size)
        assert layout.block_bytes == 3 * 64 * block_size
        assert [group.width for group in layout.groups] == [1]


def test_a_layer_that_reads_anothers_keys_keeps_nothing() -> None:
    reader = SoftmaxAttention(4, 2, 8, 8, kv_shared_with=0)
    assert plan_layout(model(FULL_LAYER, reader), BFLOAT16, 16) == plan_layout(model(FULL_LAYER), BFLOAT16, 16)


def test_windows_of_different_lengths_are_groups_of_their_own() -> None:
    layout = plan_layout(model(window(40), FULL_LAYER, window(20), window(40)), BFLOAT16, 4)
    assert layout.block_bytes == 256
    assert widths(layout) == [("full", None, 1), ("window", 20, 1), ("window", 40, 2)]


def test_rows_of_a_state_fill_blocks_and_each_part_begins_at_16_bytes() -> None:
    # conv: 2 rows of 3 channels x 2 B = 12 B, then from byte 16 on 10 rows of 5 float32 = 20 B; a token's block: 64 B
    state = StateMixer("mamba2", 3, 3, (2, 5, 5), recurrent_dtype="float32")
    layout = plan_layout(model(state, FULL_LAYER), BFLOAT16, 1)
    assert layout.block_bytes == 64  # in it: conv and 2 rows; 3 rows; 3 rows; 2 rows
    assert layout.groups == (KvGroup(FULL, 1, 64), KvGroup(STATE, 4, 212))


def test_states_alone_are_one_block() -> None:
    state = StateMixer("mamba2", 3, 3, (2, 5, 5), recurrent_dtype="float32")
    layout = plan_layout(model(state, state), BFLOAT16, 16)
    assert (layout.block_bytes, layout.groups) == (2 * (16 + 208), (KvGroup(STATE, 1, 424),))
    assert layout.blocks_for(100_000) == 1


def test_a_block_holds_the_largest_row_of_a_state() -> None:
    wide = StateMixer("short_conv", 100, 3, ())
    layout = plan_layout(model(FULL_LAYER, wide), BFLOAT16, 1)
    assert layout.block_bytes == 208  # one row of 100 channels x 2 B, while a token's keys and values are 64 B
    assert [group.width for group in layout.groups] == [1, 2]


def test_an_encoders_keys_and_values_are_a_state_of_its_tokens() -> None:
    cross = CrossAttention(4, 2, 8, 8, encoder_tokens=None)
    spec = model(FULL_LAYER, FULL_LAYER, cross=cross)
    # two layers' rows of 64 B for 30 tokens, 32 rows in a block of 2,048 B
    assert widths(plan_layout(spec, BFLOAT16, 16, encoder_tokens=30))[1] == ("state", None, 2)
    asked = CacheSettings(encoder_tokens=60)
    assert widths(plan_layout(spec, asked, 16, encoder_tokens=30))[1] == ("state", None, 4)


def test_one_row_for_several_tokens_fills_its_page_up() -> None:
    whole, cut = shipped("deepseek-v4-flash", 128), shipped("deepseek-v4-flash", 130)
    full = [layout.groups[0].unit_bytes for layout in (whole, cut)]
    # 21 layers keep a vector of 512 and an index key of 128 per 4 tokens, 20 a vector per 128; x 2 B
    assert full == [(21 * 32 * 640 + 20 * 512) * 2, (21 * 33 * 640 + 2 * 20 * 512) * 2]


def test_eight_bit_keys_halve_blocks_and_leave_states() -> None:
    plain, eight = shipped("qwen3.5-27b"), shipped("qwen3.5-27b", cache=CacheSettings(kv_dtype="fp8"))
    assert eight.block_bytes * 2 == plain.block_bytes
    assert eight.groups[1].unit_bytes == plain.groups[1].unit_bytes
    sparse, half = shipped("deepseek-v3.2"), shipped("deepseek-v3.2", cache=CacheSettings(kv_dtype="fp8"))
    assert half.block_bytes * 2 == sparse.block_bytes  # an index key is stored as the KV cache is


@pytest.mark.parametrize(
    ("num_tokens", "in_flight", "blocks"),
    [
        (1, 1, 25),
        (1024, 1, 64 * 25),
        # a window of 1,024 tokens reaches into 65 blocks of 16 when it begins within one
        (8192, 1, 512 * 4 + 65 * 21),
        # and with 2,048 in flight 3,071 tokens lie in 193
        (8192, 2048, 512 * 4 + 193 * 21),
        (1024, 1024, 64 * 25),
    ],
)
def test_blocks_of_one_sequence(num_tokens: int, in_flight: int, blocks: int) -> None:
    assert shipped("gemma-3-27b").blocks_for(num_tokens, in_flight) == blocks


@pytest.mark.parametrize("kept", [Kept("window", 7), Kept("window", 1), Kept("chunk", 7), Kept("chunk", 8)])
@pytest.mark.parametrize("block_size", [1, 3, 4])
@pytest.mark.parametrize("step", [1, 2, 9])
def test_no_walk_through_a_sequence_holds_more_than_is_counted(kept: Kept, block_size: int, step: int) -> None:
    """Bundles from the first token still needed to the last one computed, step by step from any offset."""
    group = KvGroup(kept, 1, 0)
    for offset in range(1, step + 1):
        computed, size = 0, offset
        while computed < 60:
            held = (computed + size - 1) // block_size - kept.first_needed(computed) // block_size + 1
            assert held <= group.most_bundles(computed + size, step, block_size)
            computed, size = computed + size, step


def test_the_longest_sequence_that_fits_is_the_last_one() -> None:
    layout = shipped("gemma-3-27b")
    for num_blocks in (25, 1000, 5000, 100_000):
        longest = layout.longest_sequence(num_blocks, 2048, 131_072)
        assert layout.blocks_for(longest, min(longest, 2048)) <= num_blocks
        if longest < 131_072:
            assert layout.blocks_for(longest + 1, min(longest + 1, 2048)) > num_blocks
    assert layout.longest_sequence(24, 2048, 131_072) == 0


def test_units_hold_what_the_architecture_caches() -> None:
    for name in (
        "gemma-3-27b",
        "qwen3-next-80b-a3b",
        "deepseek-v3.2",
        "llama-4-scout",
        "jamba-v0.1",
        "whisper-large-v3",
    ):
        spec, cache = resolve_model(name), CacheSettings(encoder_tokens=None)
        units = sum(group.unit_bytes for group in plan_layout(spec, cache, 1).groups)
        assert units == size_sequence(spec, 1, cache).logical_bytes, name


WASTEFUL = {
    "deepseek-v4-flash": "most layers keep a row for 4 or 128 tokens beside a window of 128",
    "deepseek-v4-flash-0731": "as deepseek-v4-flash",
    "deepseek-v4-flash-nvfp4": "as deepseek-v4-flash",
    "deepseek-v4-pro": "as deepseek-v4-flash",
    "deepseek-v4-pro-nvfp4": "as deepseek-v4-flash",
    "deepseek-v4.1-flash": "as deepseek-v4-flash, and only some layers keep such rows",
    "mimo-v2-flash": "keys of 192 and values of 128 elements",
    "mimo-v2.5": "as mimo-v2-flash",
    "mimo-v2.5-pro": "as mimo-v2-flash",
    "inkling": "a window of 512 tokens lies in 33 blocks of 16, and 55 of 66 layers have it",
    "gemma-3-1b": "a window of 512 tokens lies in 33 blocks of 16, and 22 of 26 layers have it",
    "gemma-3n-e4b": "a window of 512 tokens, as gemma-3-1b",
}
"""Models whose sequences of 1,024 tokens hold more than 2 % over what their architecture needs, and why."""


def _waste(name: str) -> float:
    spec = resolve_model(name)
    crossed = any(layer.cross_attention is not None for layer in spec.layers)
    cache = CacheSettings(encoder_tokens=1500 if crossed else None)
    layout = plan_layout(spec, cache, 16)
    return layout.blocks_for(1024) * layout.block_bytes / size_sequence(spec, 1024, cache).logical_bytes - 1


def test_a_sequence_of_1024_tokens_takes_hardly_more_than_its_architecture_needs() -> None:
    names = [file.stem for file in (profiles_dir() / "models").glob("*.json")]
    assert len(names) > 150
    wastes = {name: _waste(name) for name in names}
    assert all(waste >= 0 for waste in wastes.values())
    assert {name for name, waste in wastes.items() if waste > 0.02} == set(WASTEFUL)
