"""Compressed attention (DeepSeek V4) in vLLM: pages, groups and blocks as its own planner has them.

The figures were printed by vLLM 0.33.0's planner (vllm/v1/core/kv_cache_planning.py) over the KVCacheSpecs of its own
classes (DeepseekV4Attention, DeepseekV4SWACache, DeepseekV4IndexerCache, CompressorStateCache): blocks of 256 tokens.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import find_profile, resolve_model
from kvplan.catalog.reader import read_config
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.catalog.spec import CompressedAttention, LayerSpec, SparseIndexer
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate.cache_entries import CacheSettings
from kvplan.estimate.vllm.groups import (
    RequestShape,
    blocks_per_request,
    longest_that_fits,
    plan_blocks,
    printed_blocks_per_request,
)
from kvplan.estimate.vllm.kernels import (
    compressed_workspace_bytes,
    gathered_bytes,
    index_graph_bytes,
    index_workspace_bytes,
)
from kvplan.estimate.vllm.pages import compressed_pages
from kvplan.estimate.vllm.prediction import VllmPrediction, predict_vllm
from kvplan.estimate.vllm.rope_tables import rope_table_bytes
from kvplan.estimate.vllm.weights import stream_buffer_bytes
from kvplan.settings import ServingSettings
from kvplan.units import GIB, MIB

RELEASE = vllm_release("0.33.0")
CACHE = CacheSettings(kv_dtype="fp8")


def compressed(ratio: int) -> LayerSpec:
    indexer = SparseIndexer(64, 128, 512) if ratio == 4 else None
    return LayerSpec(CompressedAttention(64, 512, 128, ratio or None, indexer))


FLASH, PRO = (resolve_model(f"deepseek-v4-{name}").layers for name in ("flash", "pro"))


@pytest.mark.parametrize(
    ("layers", "tokens", "in_flight", "num_groups", "bytes_per_block", "blocks"),
    [
        (FLASH, 30_000, 16_384, 5, 1_002_240, 6800),
        (FLASH, 1_048_576, 8192, 5, 1_002_240, 7450),
        (PRO, 30_000, 16_384, 5, 1_435_968, 6800),
        (PRO, 1_048_576, 8192, 5, 1_435_968, 7450),
        ((*PRO, compressed(0)), 30_000, 16_384, 5, 1_435_968, 6800),
        (tuple(map(compressed, (0, 4, 128) * 3)), 30_000, 16_384, 6, 143_424, 7059),
        ((compressed(4),) * 5, 30_000, 16_384, 3, 230_400, 4476),
        ((*(compressed(128),) * 7, compressed(0)), 30_000, 16_384, 16, 37_440, 16_645),
    ],
)
def test_blocks_per_request(
    layers: tuple[LayerSpec, ...], tokens: int, in_flight: int, num_groups: int, bytes_per_block: int, blocks: int
) -> None:
    plan = plan_blocks(layers, CACHE, 256, RELEASE)
    assert (len(plan.groups), plan.bytes_per_block, plan.block_size) == (num_groups, bytes_per_block, 256)
    assert blocks_per_request(plan, RequestShape(tokens, in_flight)) == blocks


WINDOW_DRAFTER = compressed(0)
"""What one multi-token-prediction layer of V4 keeps: a window."""


@pytest.mark.parametrize(
    ("version", "bytes_per_block", "admitted_bytes"),
    [
        ("0.20.2", 22 * (37_440 + 8_640 + 1_728), 22 * (37_440 + 8_640 + 1_728)),
        ("0.22.1", 22 * (37_440 + 8_640 + 1_728), 22 * (37_440 + 8_640 + 1_728)),
        ("0.25.0", 22 * 37_440 + 21 * 8_640 + 20 * 1_728, 22 * (37_440 + 8_640 + 1_728)),
        ("0.27.1", 21 * (37_440 + 8_640) + 20 * 1_728, 22 * (37_440 + 8_640 + 1_728)),
        ("0.29.0", 21 * (37_440 + 8_640) + 20 * 1_728, 21 * (37_440 + 8_640) + 20 * 1_728),
    ],
)
def test_releases_lay_the_same_five_groups_out_in_blocks_of_their_own(
    version: str, bytes_per_block: int, admitted_bytes: int
) -> None:
    """As _get_kv_cache_groups_uniform_groups has them (vllm/v1/core/kv_cache_utils.py of these releases): windows of 44
    layers in two groups of 22, what makes vectors of 4 and of 128 tokens in one each.
    """
    plan = plan_blocks((*FLASH, WINDOW_DRAFTER), CACHE, 256, vllm_release(version))
    assert [group.num_layers for group in plan.groups if group.page.block_size == 64] == [22, 22]
    assert (len(plan.groups), plan.bytes_per_block) == (5, bytes_per_block)
    assert plan.bytes_per_admitted_block == admitted_bytes


def test_the_concurrency_that_0_25_printed() -> None:
    """V4 Flash with two draft tokens, 4,096 tokens a step (W012 of tests/data/vllm_startups.csv): 10.29 GiB were 1.90
    requests of 1,048,576 tokens, 1,993,100 tokens."""
    plan = plan_blocks((*FLASH, WINDOW_DRAFTER), CACHE, 256, vllm_release("0.25.0"))
    blocks = int(10.29 * GIB) // plan.bytes_per_block
    concurrency = blocks / printed_blocks_per_request(plan, RequestShape(1_048_576, 4_096))
    assert int(concurrency * 1_048_576) == pytest.approx(1_993_100, rel=0.0006)  # 10.29 is rounded to 0.05 %


def test_the_refusal_that_0_22_printed() -> None:
    """V249 of tests/data/vllm_startups.csv: 6.66 GiB for 30,000 tokens, 5.44 GiB for at most 13,528."""
    plan, shape = plan_blocks(FLASH, CACHE, 256, vllm_release("0.22.0")), RequestShape(30_000, 16_384)
    needed = blocks_per_request(plan, shape) * plan.bytes_per_admitted_block
    assert needed / GIB == pytest.approx(6.66, abs=0.005)
    assert longest_that_fits(plan, shape, int(5.44 * GIB)) == pytest.approx(13_528, abs=12)


def test_pages_that_no_full_page_can_hold_stop_the_older_releases() -> None:
    """A rank whose layers see everything in 128s alone: their 1,728 B are less than a window's 37,440."""
    for version, is_fine in (("0.26.0", False), ("0.27.0", True)):
        layers = (compressed(128), compressed(128))
        if is_fine:
            assert plan_blocks(layers, CACHE, 256, vllm_release(version)).bytes_per_block == 2 * 37_440
        else:
            with pytest.raises(KvplanError, match="37,440"):
                plan_blocks(layers, CACHE, 256, vllm_release(version))
    with pytest.raises(KvplanError, match="no compressed attention"):
        plan_blocks(FLASH, CACHE, 256, vllm_release("0.19.1"))


def predict(**settings: object) -> VllmPrediction:
    asked = ServingSettings(tensor_parallel_size=2, max_model_len=30_000, **settings)  # type: ignore[arg-type]
    return predict_vllm(resolve_model("deepseek-v4-flash"), find_gpu("h200"), asked)


def test_a_request_of_v4_flash_takes_what_a_start_up_said() -> None:
    """vLLM 0.22 (V249 of tests/data/vllm_startups.csv): 6.66 GiB for 30,000 tokens in 8 bits. Most of it is what makes
    compressed vectors, of the tokens in flight; keys and values alone are 0.2 GiB.
    """
    found = predict()
    assert found.blocks_per_request * found.bytes_per_block / GIB == pytest.approx(6.66, rel=0.05)


def test_dsparks_three_layers_are_loaded_beside_the_model() -> None:
    """DeepSeek-V4-Flash-0731, whose config has the sizes of V4-Flash and says one layer: a B300 printed 156.32 GiB."""
    config = find_profile("deepseek-v4-flash")["config"]  # type: ignore[index]
    keys = {"dspark_target_layer_ids": [40, 41, 42], "dspark_markov_rank": 256}
    asked = ServingSettings(max_model_len=65_536, num_speculative_tokens=7)
    plain, spec = (read_config(config | more, model_id="v4-flash") for more in ({}, keys))
    assert [extra.num_layers for extra in plain.extras] == [1]
    assert [extra.num_layers for extra in spec.extras] == [2, 1]
    loaded = predict_vllm(spec, find_gpu("b300"), asked, "0.26.0").rank.weight_bytes / GIB
    assert loaded == pytest.approx(156.32, rel=0.005)
    assert loaded - predict_vllm(plain, find_gpu("b300"), asked, "0.26.0").rank.weight_bytes / GIB > 6.5


def test_the_cache_is_in_8_bits_and_blocks_of_256_whatever_is_said() -> None:
    found = predict().settings
    assert (found.serving.kv_cache_dtype, found.serving.block_size) == ("fp8", 256)
    assert any("compressed attention" in sentence for sentence in found.notes)
    with pytest.raises(UsageError, match="8 bits"):
        predict(kv_cache_dtype="bfloat16")
    with pytest.raises(KvplanError, match="blocks of 256 tokens"):
        predict(block_size=64)


def test_the_workspace_holds_what_four_prompts_read() -> None:
    """(30,000 / 4 + 128 + 8,192) vectors of 1,024 B each, and 512 + 128 chosen ones and a count for each of a batch."""
    settings = predict().settings.serving
    found = gathered_bytes(FLASH, find_gpu("h200"), settings)
    assert found == 4 * (7_500 + 128 + 8_192) * 1_024 + 8_192 * 641 * 4
    assert gathered_bytes(FLASH, find_gpu("rtx-5090"), settings) == 0
    assert [compressed_workspace_bytes(FLASH, find_gpu(gpu)) for gpu in ("rtx-5090", "h200")] == [128 * MIB, 0]


def test_the_indexers_workspace_holds_the_keys_of_five_long_prompts() -> None:
    """get_max_prefill_buffer_size of vLLM: 40 keys of 132 B for each token of max_model_len, here one for 4 tokens."""
    settings = predict().settings.serving
    assert index_workspace_bytes(FLASH, settings, vllm_release("0.25.0")) == 40 * 30_000 // 4 * 132
    long = replace(settings, max_model_len=1_048_576)
    assert index_workspace_bytes(FLASH, long, vllm_release("0.31.0")) == 40 * 1_048_576 // 4 * 132
    assert index_workspace_bytes(FLASH, long, vllm_release("0.32.0")) == 16 * 1_048_576 // 4 * 132
    latent = resolve_model("deepseek-v3.2").layers
    assert index_workspace_bytes(latent, settings, vllm_release("0.25.0")) == 40 * 30_000 * 132
    assert index_workspace_bytes(resolve_model("deepseek-v3").layers, settings, vllm_release("0.25.0")) == 0


def test_graphs_keep_the_indexers_room_for_scores() -> None:
    """512 MiB of a step without attention, and of a whole step 192 tokens x 262,144 vectors in float32: with two draft
    tokens and 64 sequences of 1,048,576 tokens."""
    settings = replace(predict(num_speculative_tokens=2).settings.serving, max_num_seqs=64, max_model_len=1_048_576)
    scores = 192 * 262_144 * 4
    assert index_graph_bytes(FLASH, settings, 384, whole=True) == 512 * MIB + scores
    assert index_graph_bytes(FLASH, settings, 384, whole=False) == 512 * MIB
    many = replace(settings, max_num_seqs=1024, num_speculative_tokens=0)
    assert index_graph_bytes(FLASH, many, 512, whole=True) == 2 * 512 * 262_144 * 4
    assert index_graph_bytes(resolve_model("llama-3.1-8b").layers, settings, 384, whole=True) == 0


def test_tables_and_streams_beside_the_weights() -> None:
    """Two tables of 65,536 x 16 positions in float32, and 4 streams of each of a step's tokens in 16 bits."""
    spec = resolve_model("deepseek-v4-flash")
    assert rope_table_bytes(spec, "bfloat16", 30_000, 4) == 2 * 1_048_576 * 64 * 4
    assert stream_buffer_bytes(spec, predict().settings.serving) == 8_192 * 4 * 4_096 * 2
    assert stream_buffer_bytes(resolve_model("deepseek-v3"), predict().settings.serving) == 0


def test_unknown_records_are_refused() -> None:
    for mixer in (CompressedAttention(8, 64, 16, 4), CompressedAttention(8, 512, 128, 2)):
        with pytest.raises(KvplanError, match="not known"):
            list(compressed_pages(mixer, 256))
