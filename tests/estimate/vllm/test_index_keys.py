"""Sparse latent attention in vLLM: its rows in 8 bits by GPU and release, and index keys of several tokens each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tiny_configs import own_config

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.catalog.reader import read_config
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.catalog.spec import LatentAttention, LayerSpec, ModelSpec, SparseIndexer, StateMixer
from kvplan.errors import KvplanError
from kvplan.estimate.cache_entries import CacheSettings, layer_entries
from kvplan.estimate.kv_cache import size_sequence
from kvplan.estimate.mixers import attention_spans
from kvplan.estimate.vllm.groups import BlockPlan, RequestShape, blocks_per_request, plan_blocks
from kvplan.estimate.vllm.prediction import predict_vllm
from kvplan.settings import ServingSettings

LATEST = vllm_release("0.33.0")
STATE = LayerSpec(StateMixer("kimi_delta", 24576, 4, (64, 128, 128), recurrent_dtype="float32", bounded=True))
CHOOSING = LayerSpec(LatentAttention(64, 512, 0, 256, 256, 1536, SparseIndexer(32, 128, 2048, 16), 2048))


def flash_plan(num_layers: int = 45, num_drafters: int = 0, **settings: Any) -> BlockPlan:
    layers = tuple(CHOOSING if index % 4 == 3 else STATE for index in range(num_layers))
    return plan_blocks(layers + (CHOOSING,) * num_drafters, CacheSettings(indexer_dtype="fp8", **settings), 512, LATEST)


@pytest.mark.parametrize(
    ("ranks", "kv_dtype", "max_model_len", "block_size", "bytes_per_block", "blocks"),
    [
        (1, "bfloat16", 131072, 4608, 52323328, 42),
        (2, "bfloat16", 131072, 2560, 29068288, 65),
        (4, "bfloat16", 131072, 1536, 17441792, 99),
        (4, "bfloat16", 1048576, 1536, 17441792, 696),
        (8, "bfloat16", 131072, 1024, 11627520, 141),
        (4, "fp8", 131072, 2560, 14663680, 65),
        (8, "fp8", 131072, 1536, 8798208, 99),
    ],
)
def test_blocks_are_those_of_vllm(
    ranks: int, kv_dtype: str, max_model_len: int, block_size: int, bytes_per_block: int, blocks: int
) -> None:
    """Rows of latents are 32 at a time in 8 bits, as FlashInfer reads them on Blackwell."""
    plan = flash_plan(tensor_parallel_size=ranks, kv_dtype=kv_dtype)
    assert (plan.block_size, plan.bytes_per_block) == (block_size, bytes_per_block)
    assert [group.num_layers for group in plan.groups] == [9, 9, 8, 8, 22, 11]
    assert blocks_per_request(plan, RequestShape(max_model_len, 8192, states_per_request=3)) == blocks


def test_blocks_with_drafts_and_of_fewer_layers() -> None:
    drafting = flash_plan(num_drafters=1, tensor_parallel_size=4, num_speculative_tokens=1)
    assert (drafting.bytes_per_block, [group.num_layers for group in drafting.groups]) == (
        19026944,
        [12, 11, 11, 24, 12],
    )
    assert blocks_per_request(drafting, RequestShape(131072, 8192, states_per_request=4)) == 99
    few = flash_plan(12, tensor_parallel_size=4)
    assert (few.bytes_per_block, [group.num_layers for group in few.groups]) == (4757504, [3, 3, 3, 6, 3])


@pytest.mark.parametrize(("drafts", "tokens"), [(0, 16), (1, 32), (16, 32), (17, 64)])
def test_a_ring_holds_the_tokens_of_the_last_pool(drafts: int, tokens: int) -> None:
    """Glm5NextTailCache: 8,192 B of one request in each layer, where nothing is drafted."""
    tail = layer_entries(CHOOSING, CacheSettings(num_speculative_tokens=drafts))[-1]
    assert (tail.kind, tail.state_bytes, tail.token_bytes) == ("index_tail", tokens * 512, 0)


def flash(**own: Any) -> ModelSpec:
    """The model with few experts, which a GPU holds."""
    return read_config(own_config("glm 5.3 flash", **own), model_id="flash")


def test_a_sequence_keeps_a_key_for_each_whole_pool() -> None:
    sizes = [size_sequence(flash(), tokens, CacheSettings()).logical_bytes for tokens in (16, 31, 32)]
    assert sizes[1] - sizes[0] == 15 * 3 * 512 * 2
    assert sizes[2] - sizes[1] == 3 * (512 * 2 + 128 * 2)


def test_states_have_a_block_for_the_middle_of_a_prompt_where_their_decays_are_bounded() -> None:
    """num_prefill_checkpoint_blocks of Glm5NextLinearAttention."""
    hopper = find_gpu("h200")
    assert predict_vllm(flash(), hopper).settings.states_per_request == 3
    assert predict_vllm(flash(linear_lower_bound=None), hopper).settings.states_per_request == 2
    assert predict_vllm(flash(linear_head_dim=64), hopper).settings.states_per_request == 2
    states = [layer.mixer for layer in resolve_model("kimi-k3").layers if isinstance(layer.mixer, StateMixer)]
    assert states and all(state.bounded for state in states)


def test_the_cache_is_in_8_bits_by_default_on_blackwell_from_0_33_on() -> None:
    found = {version: predict_vllm(flash(), find_gpu("b200"), version=version) for version in ("0.32.0", "0.33.0")}
    dtypes = {version: each.settings.serving.kv_cache_dtype for version, each in found.items()}
    assert dtypes == {"0.32.0": "bfloat16", "0.33.0": "fp8"}


def test_attention_and_states_stay_in_16_bits() -> None:
    hopper = find_gpu("h200")
    plain, fp8 = (
        predict_vllm(flash(), hopper, ServingSettings(quantization=name)).rank.weight_bytes for name in ("none", "fp8")
    )
    experts = 9 * 17 * 3 * 4096 * 2048 + 3 * 3 * 4096 * 12288
    assert plain - fp8 == pytest.approx(experts, rel=0.001)


@pytest.mark.parametrize(
    ("gpu", "settings", "version", "reason"),
    [
        ("rtx-pro-6000", ServingSettings(), "0.33.0", "not known how vLLM keeps the index keys"),
        ("h200", ServingSettings(pipeline_parallel_size=2), "0.33.0", "over pipeline stages"),
        ("h200", ServingSettings(kv_cache_dtype="fp8_ds_mla"), "0.33.0", "fp8_ds_mla beside pooled index keys"),
        ("h200", ServingSettings(), "0.27.0", "no pooled index keys"),
    ],
)
def test_what_is_not_known_is_refused(gpu: str, settings: ServingSettings, version: str, reason: str) -> None:
    with pytest.raises(KvplanError, match=reason):
        predict_vllm(flash(), find_gpu(gpu), settings, version)


def test_layers_without_an_indexer_attend_to_what_another_chose() -> None:
    """GLM 5.2's shared layers: no keys of their own, and no more tokens than the others."""
    assert isinstance(CHOOSING.mixer, LatentAttention)
    shared = LayerSpec(replace(CHOOSING.mixer, indexer=None))
    assert [span.limit for span in attention_spans(shared)] == [2048]
    assert [entry.kind for entry in layer_entries(shared, CacheSettings())] == ["latent"]


INDEX_KEY = 128 + 4


@pytest.mark.parametrize(
    ("model", "gpu", "asked", "ranks", "version", "dtype"),
    [
        ("glm-5.1", "rtx-pro-6000", "auto", 8, "0.33.0", "fp8_ds_mla"),
        ("glm-5.1", "rtx-pro-6000", "fp8", 8, "0.24.0", "fp8_ds_mla"),
        ("glm-5.1", "h200", "auto", 8, "0.33.0", "bfloat16"),
        ("deepseek-v3.2", "h200", "auto", 8, "0.11.0", "fp8_ds_mla"),
        ("deepseek-v3.2", "h200", "auto", 8, "0.11.1", "bfloat16"),
        ("deepseek-v3.2", "h200", "fp8", 8, "0.33.0", "fp8_ds_mla"),
        ("deepseek-v3.2", "h200", "fp8_e4m3", 8, "0.17.0", "fp8_ds_mla"),
        ("deepseek-v3.2", "h200", "fp8_e4m3", 8, "0.30.0", "fp8_e4m3"),
        ("deepseek-v3.2", "b200", "fp8", 8, "0.17.0", "fp8_ds_mla"),
        ("deepseek-v3.2", "b200", "fp8", 4, "0.18.0", "fp8_ds_mla"),
        ("deepseek-v3.2", "b200", "fp8", 8, "0.18.0", "fp8"),
        ("glm-5.1", "b200", "fp8", 8, "0.18.0", "fp8_ds_mla"),
        ("deepseek-v3.2", "b200", "fp8", 4, "0.19.0", "fp8"),
        ("glm-5.1", "b300", "auto", 4, "0.33.0", "fp8_e4m3"),
        ("deepseek-v3.2", "mi300x", "fp8", 8, "0.33.0", "fp8"),
    ],
)
def test_each_kernel_keeps_8_bits_its_way(
    model: str, gpu: str, asked: str, ranks: int, version: str, dtype: str
) -> None:
    """_get_backend_priorities and _canonicalize_sparse_mla_kv_cache_dtype: 656 B of a token in each layer, or 576."""
    spec = resolve_model(model)
    settings = ServingSettings(kv_cache_dtype=asked, tensor_parallel_size=ranks)
    found = predict_vllm(spec, find_gpu(gpu), settings, version)
    assert found.settings.serving.kv_cache_dtype == dtype
    row = {"fp8_ds_mla": 656, "bfloat16": 2 * 576}.get(dtype, 576)
    mixers = [layer.mixer for layer in spec.layers]
    keys = sum(isinstance(mixer, LatentAttention) and mixer.indexer is not None for mixer in mixers)
    assert found.bytes_per_block == found.block_size * (spec.num_layers * row + keys * INDEX_KEY)


def test_an_estimate_for_one_kind_of_gpu_shows_its_rows(answer_of: Callable[..., Any]) -> None:
    def cache(gpu: str, *words: str) -> tuple[str, int]:
        found = answer_of("estimate", "deepseek-v3.2", "--ctx", "32k", "--gpu", gpu, *words)["kv_cache"]
        assert found["paged_bytes"] == found["logical_bytes"]
        return found["dtype"], found["bytes_per_token"]

    assert cache("8xh200", "--kv-cache-dtype", "fp8") == ("fp8_ds_mla", 61 * (656 + INDEX_KEY))
    assert cache("8xb200", "--kv-cache-dtype", "fp8") == ("fp8", 61 * (576 + INDEX_KEY))
    assert cache("8xb200,8xh200", "--kv-cache-dtype", "fp8") == ("fp8", 61 * (576 + INDEX_KEY))


def test_gpus_without_a_kernel_are_not_shown_by_default(answer_of: Callable[..., Any]) -> None:
    assert [each["gpu"] for each in answer_of("estimate", "deepseek-v3.2")["deployments"]] == ["h100-sxm", "h200"]


def test_other_engines_are_told_of_8_bits_too(answer_of: Callable[..., Any]) -> None:
    load = ("--users", "8", "--input-len", "1000", "--output-len", "200", "--kv-cache-dtype", "fp8")
    first = answer_of("plan", "deepseek-v3.2", "--gpu", "h200", *load)["deployments"][0]
    assert first["kv_cache_dtype"] == "fp8_ds_mla"
    assert "--kv-cache-dtype fp8" in first["commands"]["vllm"]
    assert "--kv-cache-dtype fp8_e4m3" in first["commands"]["sglang"]
