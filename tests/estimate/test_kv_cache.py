"""How ranks divide a cache, how a pipeline divides layers, the affine form, and caches of integers with scales."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.errors import UsageError
from kvplan.estimate.cache_entries import CacheSettings, rank_conv_channels, rank_kv_heads
from kvplan.estimate.kv_cache import components_of, pipeline_slices, size_sequence
from kvplan.estimate.sglang import predict_sglang
from kvplan.estimate.vllm.prediction import VllmPrediction, predict_vllm
from kvplan.settings import ServingSettings


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


SCALED = "int8_per_token_head"


def predict(model: str, gpu: str = "h100", version: str = "0.32.0", **settings: object) -> VllmPrediction:
    asked = ServingSettings(**{"max_model_len": 8192, "kv_cache_dtype": SCALED, **settings})  # type: ignore[arg-type]
    return predict_vllm(resolve_model(model), find_gpu(gpu), asked, version)


@pytest.mark.parametrize("tensor_parallel_size", [1, 4])
def test_a_block_has_the_bytes_of_vllms_pages(tensor_parallel_size: int) -> None:
    """AttentionSpec.page_size_bytes: 2 x 16 x heads x 128 integers and 2 x 16 x heads float32, for 32 layers."""
    heads = 8 // tensor_parallel_size
    blocks = predict("llama-3.1-8b", tensor_parallel_size=tensor_parallel_size).rank.blocks
    assert blocks.bytes_per_block == 32 * (2 * 16 * heads * 128 + 2 * 16 * heads * 4)


def test_a_state_raises_the_block_to_pages_with_scales() -> None:
    """_align_hybrid_block_size divides the state's page by that of one token, scales included."""
    cache = CacheSettings(kv_dtype=SCALED)
    (attention,) = [c for c in size_sequence(resolve_model("qwen3.5-27b"), 1, cache).components if c.kind == "full"]
    states = [c for c in size_sequence(resolve_model("qwen3.5-27b"), 1, cache).components if c.entry.state_bytes]
    token_bytes, state_bytes = attention.entry.token_bytes, sum(c.entry.state_bytes for c in states)
    assert token_bytes == 4 * (256 + 256 + 8)
    assert predict("qwen3.5-27b").rank.blocks.block_size == 16 * -(-state_bytes // (16 * token_bytes))


def test_values_of_another_size_are_counted_and_their_formula_says_so() -> None:
    size = size_sequence(resolve_model("mimo-v2-flash"), 1, CacheSettings(kv_dtype=SCALED))
    (full,) = [component for component in size.components if component.kind == "full"]
    assert full.entry.token_bytes == 4 * (192 + 128 + 8)
    assert full.entry.formula == "4 KV heads x ((192 K + 128 V) x 1 B + 2 x 4 B scale)"


@pytest.mark.parametrize(
    ("model", "version", "sentence"),
    [
        ("deepseek-v3", "0.32.0", "is for keys and values of KV heads, and this model keeps latents"),
        ("deepseek-v4-flash", "0.32.0", "is for keys and values of KV heads, and this model keeps latents"),
        ("whisper-large-v3", "0.32.0", "and this model keeps an encoder's tokens"),
        ("mimo-v2-flash", "0.32.0", "for keys and values of unlike sizes, as in"),
        ("llama-3.1-8b", "0.18.1", "vLLM 0.18.1 has no kv_cache_dtype int8_per_token_head, which 0.20 has"),
    ],
)
def test_what_cannot_be_kept_so_is_refused(model: str, version: str, sentence: str) -> None:
    length = 448 if model.startswith("whisper") else 8192
    with pytest.raises(UsageError) as refusal:
        predict(model, version=version, max_model_len=length, tensor_parallel_size=4)
    assert sentence in refusal.value.message
    assert refusal.value.hint


def test_flashinfer_has_no_workspace_for_it_on_blackwell() -> None:
    graphs = {kv: predict("llama-3.1-8b", "b200", kv_cache_dtype=kv).rank.cudagraph_bytes for kv in ("fp8", SCALED)}
    assert graphs["fp8"] - graphs[SCALED] >= 394 * 1024**2


def test_sglang_has_none() -> None:
    with pytest.raises(UsageError, match="SGLang has no KV cache in int8_per_token_head"):
        predict_sglang(resolve_model("llama-3.1-8b"), find_gpu("h100"), ServingSettings(kv_cache_dtype=SCALED))


def test_a_plan_offers_the_engines_that_have_it(printed_by: Callable[..., str]) -> None:
    arguments = ["plan", "llama-3.1-8b", "--users", "4", "--ctx-avg", "4k", "--gpu", "h100", "--json"]
    best = json.loads(printed_by(*arguments, "--kv-cache-dtype", SCALED))["deployments"][0]
    assert set(best["commands"]) == {"vllm", "kvplan"}
    assert all(f"--kv-cache-dtype {SCALED}" in command for command in best["commands"].values())
