"""Blocks, their tokens, groups and longest lengths equal those of vLLM's own planner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.catalog.spec import LatentAttention, LayerSpec, SoftmaxAttention, SparseIndexer, StateMixer
from kvplan.errors import KvplanError
from kvplan.estimate.cache_entries import CacheSettings
from kvplan.estimate.vllm.block_sizes import default_block_size
from kvplan.estimate.vllm.groups import (
    BlockPlan,
    RequestShape,
    blocks_per_request,
    hybrid_block_size,
    longest_that_fits,
    plan_blocks,
)
from kvplan.estimate.vllm.prediction import predict_vllm
from kvplan.settings import ServingSettings
from kvplan.units import GIB

LATEST = vllm_release("0.32.0")


def full(heads: int, head: int) -> LayerSpec:
    return LayerSpec(SoftmaxAttention(heads, heads, head, head))


def sliding(heads: int, head: int, window: int) -> LayerSpec:
    return LayerSpec(SoftmaxAttention(heads, heads, head, head, "sliding", window))


def chunked(heads: int, head: int, window: int) -> LayerSpec:
    return LayerSpec(SoftmaxAttention(heads, heads, head, head, "chunked", window))


def latent(indexer: SparseIndexer | None = None) -> LayerSpec:
    return LayerSpec(LatentAttention(128, 512, 64, 128, 128, indexer=indexer))


def layers(count: int, choose: Callable[[int], LayerSpec]) -> tuple[LayerSpec, ...]:
    return tuple(choose(index) for index in range(count))


MODELS = {
    "llama-3.1-8b": layers(32, lambda _: full(8, 128)),
    "gpt2": layers(12, lambda _: full(12, 64)),
    "deepseek-v3": layers(61, lambda _: latent()),
    "gemma-3-27b": layers(62, lambda i: full(16, 128) if i % 6 == 5 else sliding(16, 128, 1024)),
    "gpt-oss-20b": layers(24, lambda i: sliding(8, 64, 128) if i % 2 == 0 else full(8, 64)),
    "llama-4-scout": layers(48, lambda i: full(8, 128) if i % 4 == 3 else chunked(8, 128, 8192)),
    "25 sliding of 8 x 256, 5 full of 2 x 512": layers(
        30, lambda i: full(2, 512) if i % 6 == 5 else sliding(8, 256, 1024)
    ),
    "gemma-3-1b": layers(26, lambda i: full(1, 256) if i % 6 == 5 else sliding(1, 256, 512)),
    "13 full, 12 sliding": layers(25, lambda i: full(8, 64) if i % 2 == 0 else sliding(8, 64, 128)),
    "one window everywhere": layers(32, lambda _: sliding(8, 128, 4096)),
    "full, two widths": layers(20, lambda i: full(8 if i < 10 else 4, 128)),
}


@pytest.mark.parametrize(
    ("name", "max_model_len", "batched", "num_groups", "bytes_per_block", "blocks"),
    [
        ("llama-3.1-8b", 32768, 2048, 1, 2097152, 2048),
        ("gpt2", 1024, 2048, 1, 589824, 64),
        ("deepseek-v3", 32768, 2048, 1, 1124352, 2048),
        ("gemma-3-27b", 32768, 2048, 7, 1310720, 3206),
        ("gemma-3-27b", 32768, 8192, 7, 1310720, 5510),
        ("gpt-oss-20b", 32768, 2048, 2, 393216, 2185),
        ("gpt-oss-20b", 32768, 8192, 2, 393216, 2569),
        ("llama-4-scout", 32768, 2048, 4, 786432, 3968),
        ("llama-4-scout", 100000, 8192, 4, 786432, 9322),
        ("25 sliding of 8 x 256, 5 full of 2 x 512", 32768, 2048, 6, 655360, 1989),
        ("25 sliding of 8 x 256, 5 full of 2 x 512", 100000, 8192, 6, 655360, 6010),
        ("gemma-3-1b", 32768, 2048, 7, 65536, 3014),
        ("gemma-3-1b", 100000, 8192, 7, 65536, 9520),
        ("13 full, 12 sliding", 32768, 2048, 2, 425984, 2185),
        ("one window everywhere", 32768, 2048, 1, 2097152, 385),
        ("one window everywhere", 100000, 8192, 1, 2097152, 769),
        ("full, two widths", 32768, 2048, 1, 983040, 2048),
    ],
)
def test_blocks_per_request(
    name: str, max_model_len: int, batched: int, num_groups: int, bytes_per_block: int, blocks: int
) -> None:
    plan = plan_blocks(MODELS[name], CacheSettings(), 16, LATEST)
    assert (len(plan.groups), plan.bytes_per_block) == (num_groups, bytes_per_block)
    assert blocks_per_request(plan, RequestShape(max_model_len, batched)) == blocks


def test_groups_of_gemma_3_27b() -> None:
    plan = plan_blocks(MODELS["gemma-3-27b"], CacheSettings(), 16, LATEST)
    assert sorted((group.page.kind, group.num_layers) for group in plan.groups) == [
        ("full", 10),
        *[("sliding", 8)] * 2,
        *[("sliding", 9)] * 4,
    ]


def test_indexer_keys_are_layers_of_the_same_group() -> None:
    spec = layers(61, lambda _: latent(SparseIndexer(64, 128, 2048)))
    plan = plan_blocks(spec, CacheSettings(kv_dtype="bfloat16"), 64, LATEST)
    assert len(plan.groups) == 1
    assert plan.groups[0].num_layers == 122
    assert blocks_per_request(plan, RequestShape(32768, 2048)) == 512


@pytest.mark.parametrize(
    ("name", "longest"),
    [
        ("llama-4-scout", 16384),
        ("25 sliding of 8 x 256, 5 full of 2 x 512", 64960),
        ("gemma-3-1b", 100000),
        ("full, two widths", 52416),
    ],
)
def test_longest_that_fits_three_gib(name: str, longest: int) -> None:
    plan = plan_blocks(MODELS[name], CacheSettings(), 16, LATEST)
    assert longest_that_fits(plan, RequestShape(100000, 8192), 3 * GIB) == longest


def hybrid(num_attention: int, num_states: int, heads: int, head: int, state_dtype: str) -> BlockPlan:
    every = (num_attention + num_states) // num_attention
    state = StateMixer("gated_delta_net", 8192, 4, (32, 128, 128), recurrent_dtype=state_dtype)

    def choose(index: int) -> LayerSpec:
        return full(heads, head) if index % every == every - 1 else LayerSpec(state)

    return plan_blocks(layers(num_attention + num_states, choose), CacheSettings(), 16, LATEST)


@pytest.mark.parametrize(
    ("state_dtype", "block_size", "bytes_per_block", "blocks"),
    [("bfloat16", 544, 13369344, 64), ("float32", 1056, 25952256, 35)],
)
def test_qwen3_next_raises_the_attention_block(
    state_dtype: str, block_size: int, bytes_per_block: int, blocks: int
) -> None:
    plan = hybrid(12, 36, 2, 256, state_dtype)
    assert (plan.block_size, plan.bytes_per_block) == (block_size, bytes_per_block)
    assert [group.num_layers for group in plan.groups] == [12, 12, 12, 12]
    assert blocks_per_request(plan, RequestShape(32768, 8192)) == blocks


def test_jamba_block_of_80() -> None:
    state = StateMixer("mamba1", 8192, 4, (8192, 16))
    spec = layers(32, lambda i: full(8, 128) if i % 8 == 4 else LayerSpec(state))
    plan = plan_blocks(spec, CacheSettings(), 16, LATEST)
    assert (plan.block_size, plan.bytes_per_block, len(plan.groups)) == (80, 1310720, 8)
    assert blocks_per_request(plan, RequestShape(32768, 8192)) == 7 + 410


@pytest.mark.parametrize(
    ("state_bytes", "token_bytes", "block_size"),
    [  # "Setting attention block size to N tokens" in published logs of Qwen3.5-27B (16-bit, and 8-bit cache)
        (10240 * 3 * 2 + 48 * 128 * 128 * 4, 4 * 256 * 2 * 2, 784),
        (10240 * 3 * 2 + 48 * 128 * 128 * 4, 4 * 256 * 2, 1568),
        (10240 * 6 * 2 + 48 * 128 * 128 * 4, 4 * 256 * 2 * 2, 800),
    ],
)
def test_block_sizes_seen_in_logs(state_bytes: int, token_bytes: int, block_size: int) -> None:
    assert hybrid_block_size(16, state_bytes, token_bytes) == block_size


def test_old_releases_group_differently() -> None:
    spec = MODELS["13 full, 12 sliding"]
    old = plan_blocks(spec, CacheSettings(), 16, vllm_release("0.10.2"))
    assert (len(old.groups), old.bytes_per_block) == (3, 12 * 8 * 64 * 2 * 2 * 16)  # groups of 12: the 13th is alone
    first = plan_blocks(spec, CacheSettings(), 16, vllm_release("0.9.0"))
    assert len(first.groups) == 1
    assert first.groups[0].page.kind == "full"


def test_pages_that_cannot_be_made_equal_are_refused_by_old_releases() -> None:
    spec = layers(6, lambda i: full(3, 64) if i == 5 else sliding(2, 64, 128))
    with pytest.raises(KvplanError, match="shares blocks"):
        plan_blocks(spec, CacheSettings(), 16, vllm_release("0.19.0"))
    assert plan_blocks(spec, CacheSettings(), 16, LATEST).bytes_per_block == 3 * 64 * 2 * 2 * 16


GPUS = ("a100-80gb-sxm", "l40s", "h100-sxm", "b200", "rtx-pro-6000")


@pytest.mark.parametrize(
    ("version", "sizes"),
    [
        ("0.7.3", (16, 16, 16, 16, 16)),
        ("0.9.0", (16, 16, 64, 16, 16)),
        ("0.11.0", (16, 16, 64, 128, 16)),
        ("0.15.0", (16, 16, 64, 64, 16)),
        ("0.18.0", (16, 16, 16, 32, 16)),
        ("0.32.0", (16, 16, 16, 32, 16)),
    ],
)
def test_latents(version: str, sizes: tuple[int, ...]) -> None:
    spec, release = resolve_model("deepseek-v3"), vllm_release(version)
    assert tuple(default_block_size(spec, find_gpu(gpu), release, "bfloat16") for gpu in GPUS) == sizes


@pytest.mark.parametrize(("version", "size"), [("0.17.0", 64), ("0.32.0", 64)])
def test_latents_in_8_bits_on_hopper_are_flash_mlas(version: str, size: int) -> None:
    spec = resolve_model("deepseek-v3")
    assert default_block_size(spec, find_gpu("h100-sxm"), vllm_release(version), "fp8") == size


def test_sparse_latents_have_blocks_of_their_index() -> None:
    spec = resolve_model("deepseek-v3.2")
    assert {default_block_size(spec, find_gpu(gpu), vllm_release("0.32.0"), "bfloat16") for gpu in GPUS} == {64}
    on_amd = [default_block_size(spec, find_gpu("mi300x"), vllm_release(each), "fp8") for each in ("0.27.0", "0.28.0")]
    assert on_amd == [64, 16]


def test_other_attention_has_16_tokens() -> None:
    assert default_block_size(resolve_model("llama-3.1-8b"), find_gpu("b200"), vllm_release("0.32.0"), "fp8") == 16


def test_a_prediction_takes_it_and_a_launch_command_leaves_it_out(answer_of: Callable[..., Any]) -> None:
    asked = ServingSettings(max_model_len=8192)
    found = predict_vllm(resolve_model("deepseek-v2-lite"), find_gpu("a100-80gb-sxm"), asked, "0.32.0")
    assert found.rank.blocks.block_size == 16
    load = ("--users", "4", "--input-len", "500", "--output-len", "100")
    (first, *_) = answer_of("plan", "deepseek-v2-lite", "--gpu", "h100-sxm", *load)["deployments"]
    assert first["block_size"] == 16
    assert "--block-size" not in first["commands"]["vllm"]
