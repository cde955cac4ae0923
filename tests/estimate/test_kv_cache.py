"""How ranks divide a cache, how a pipeline divides layers, and the affine form."""

from __future__ import annotations

import pytest

from kvplan.catalog.models import resolve_model
from kvplan.errors import UsageError
from kvplan.estimate.kv_cache import (
    CacheSettings,
    components_of,
    pipeline_slices,
    rank_conv_channels,
    rank_kv_heads,
    size_sequence,
)


@pytest.mark.parametrize(("heads", "ranks", "each"), [(8, 1, 8), (8, 4, 2), (8, 8, 1), (8, 16, 1), (1, 4, 1)])
def test_kv_heads_are_divided_then_replicated(heads, ranks, each):
    assert rank_kv_heads(heads, ranks) == each


@pytest.mark.parametrize(("heads", "ranks"), [(8, 3), (8, 12), (6, 4)])
def test_uneven_divisions_are_refused(heads, ranks):
    with pytest.raises(UsageError, match="tensor-parallel"):
        rank_kv_heads(heads, ranks)


def per_token(name: str, ranks: int) -> int:
    settings = CacheSettings(tensor_parallel_size=ranks)
    return size_sequence(resolve_model(name), 1024, settings).bytes_per_token


def test_a_rank_of_a_grouped_and_of_a_latent_cache():
    assert [per_token("llama-3.1-8b", ranks) for ranks in (1, 2, 8, 16)] == [131_072, 65_536, 16_384, 16_384]
    assert [per_token("deepseek-v3", ranks) for ranks in (1, 8)] == [70_272, 70_272]


def test_states_are_divided_along_heads_and_groups_replicated():
    spec = resolve_model("nemotron-3-nano-30b")
    mixer = spec.layers[0].mixer
    assert rank_conv_channels(mixer, 1) == 64 * 64 + 2 * 8 * 128
    assert rank_conv_channels(mixer, 8) == (64 * 64 + 2 * 8 * 128) // 8
    # 16 ranks and 8 groups: every rank has a group of its own
    assert rank_conv_channels(mixer, 16) == (64 * 64) // 16 + 2 * 128
    whole, rank = (
        size_sequence(spec, 1, CacheSettings(tensor_parallel_size=ranks)).fixed_bytes_per_sequence for ranks in (1, 2)
    )
    assert rank * 2 == whole


@pytest.mark.parametrize(
    ("layers", "stages", "sizes"),
    [(32, 4, [8, 8, 8, 8]), (61, 4, [15, 15, 16, 15]), (61, 2, [31, 30]), (26, 4, [6, 7, 7, 6]), (5, 5, [1] * 5)],
)
def test_pipeline_stages(layers, stages, sizes):
    slices = pipeline_slices(layers, stages)
    assert [len(part) for part in slices] == sizes
    assert [index for part in slices for index in part] == list(range(layers))


def test_more_stages_than_layers_are_refused():
    with pytest.raises(UsageError, match="pipeline stages"):
        pipeline_slices(4, 5)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-3-27b", "qwen3-next-80b", "jamba-v0.1", "llama-4-scout"])
def test_the_affine_form_is_exact_beyond_every_window(name):
    spec = resolve_model(name)
    for context in (8192, 32_768, 100_000):
        found = size_sequence(spec, context, CacheSettings())
        assert found.logical_bytes == found.fixed_bytes_per_sequence + found.bytes_per_token * context


def test_inside_the_window_a_token_costs_more():
    found = size_sequence(resolve_model("gemma-3-27b"), 100, CacheSettings())
    assert found.logical_bytes == 100 * (found.bytes_per_token + found.window_bytes_per_token)


def test_stages_together_hold_what_one_rank_would():
    spec = resolve_model("gemma-3-27b")
    whole = size_sequence(spec, 5000, CacheSettings()).logical_bytes
    parts = [components_of(spec.layers[part.start : part.stop], CacheSettings()) for part in pipeline_slices(62, 3)]
    assert whole == sum(component.logical_bytes(5000) for part in parts for component in part)


def test_a_window_longer_than_the_model_is_full_attention():
    spec = resolve_model("phi-3.5-mini")
    (component,) = (found := size_sequence(spec, 131_072, CacheSettings())).components
    assert (component.kind, found.bytes_per_token, found.fixed_bytes_per_sequence) == ("full", 393_216, 0)
    assert found.logical_bytes == 393_216 * 131_072
    beyond = size_sequence(spec, 400_000, CacheSettings())
    assert beyond.logical_bytes == 393_216 * 262_144, "past the positions, the window does cap"


def test_the_next_token_costs_what_open_windows_keep_too():
    spec = resolve_model("gemma-3-27b")
    costs = [size_sequence(spec, context, CacheSettings()).next_token_bytes for context in (512, 1024, 131_072)]
    assert costs == [81_920 + 425_984, 81_920, 81_920]
