"""Qwen 4, beside its rows of ``tests/data/counted_configs.json``: layers, drafters, what vLLM 0.33 refuses."""

from __future__ import annotations

from typing import Any

import pytest
from counted_configs import counted_config

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.reader import read_config
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.catalog.spec import LayerSpec, ModelSpec
from kvplan.catalog.speculation.heads import multi_token_model
from kvplan.estimate.kv_cache import CacheSettings, layer_entries
from kvplan.estimate.vllm.groups import BlockPlan, RequestShape, blocks_per_request, plan_blocks
from kvplan.estimate.vllm.prediction import predict_vllm
from kvplan.settings import ServingSettings


def read(name: str, **changed: Any) -> ModelSpec:
    return read_config(counted_config(name, **changed), model_id=name)


def test_a_drafter_has_joints_and_a_mixer_of_streams_of_its_own():
    """vLLM's class has 156,640: an embedding and a head besides, which it shares, and 2 x 9 x 192 of padding."""
    (extra,) = read("qwen 4", mtp_num_hidden_layers=1).extras
    assert extra.num_parameters == 156_640 - 2 * 128 * 64 - 2 * 9 * 192


def test_flash_next_has_the_parameters_its_makers_state():
    """176 B of which 51 B are the table of n-grams, 6 B active beside embedding and head, 4 B to draft with these."""
    spec = read("qwen 4 flash")
    ends = 2 * spec.vocab_size * spec.hidden_size
    assert spec.lookup_elements == 320_001_536 * 160
    assert (spec.num_parameters - spec.lookup_elements) / 1e9 == pytest.approx(125.7, abs=0.1)
    assert (spec.num_active_parameters - ends) / 1e9 == pytest.approx(6.0, abs=0.1)
    tower, drafter = spec.extras
    assert tower.num_parameters == 448_931_056
    assert drafter.num_parameters is not None
    assert (drafter.num_parameters + ends) / 1e9 == pytest.approx(4, abs=0.15)
    assert spec.max_position_embeddings == 262_144


def _kept(layer: LayerSpec, **settings: Any) -> list[tuple[str, int, int]]:
    """Of each part: its kind, bytes per token and bytes per sequence."""
    entries = layer_entries(layer, CacheSettings(**settings))
    return [(entry.kind, entry.token_bytes, entry.state_bytes) for entry in entries]


def test_what_layers_keep():
    delta = [("conv_state", 0, 4 * 208 * 2), ("recurrent_state", 0, 6 * 24 * 16 * 4)]
    attention = [("full", 2 * 2 * 32 * 2, 0), ("indexer", 16 * 2 // 4, 0), ("index_tail", 0, 4 * 16 * 2)]
    looking_up = [*delta, ("ngram_state", 0, 8 * 192 * 2)]
    layers = [_kept(layer) for layer in read("qwen 4").layers]
    assert layers == [delta, looking_up, delta, attention, looking_up, delta, delta, attention]


def test_what_layers_keep_with_three_drafted_tokens():
    layers = read("qwen 4").layers
    assert _kept(layers[1], num_speculative_tokens=3) == [
        ("conv_state", 0, 7 * 208 * 2),
        ("recurrent_state", 0, 6 * 24 * 16 * 4),
        ("ngram_state", 0, 11 * 192 * 2),
    ]
    assert _kept(layers[3], num_speculative_tokens=3)[-1] == ("index_tail", 0, 8 * 16 * 2)


def test_ranks_divide_neither_keys_of_the_index_nor_the_convolution_of_n_grams():
    layers = read("qwen 4").layers
    assert _kept(layers[1], tensor_parallel_size=2)[-1] == ("ngram_state", 0, 8 * 192 * 2)
    assert _kept(layers[3], tensor_parallel_size=2) == [("full", 128, 0), ("indexer", 8, 0), ("index_tail", 0, 128)]


def test_an_index_keeps_its_dtype_in_a_cache_of_8_bits():
    assert _kept(read("qwen 4").layers[3], kv_dtype="fp8")[:2] == [("full", 128, 0), ("indexer", 8, 0)]


def test_a_model_that_sees_keeps_positions_with_the_keys_of_an_open_group():
    (*_, kept) = _kept(read("qwen 4 flash").layers[3])
    assert kept == ("index_tail", 0, 4 * (128 + 12) * 2)
    (*_, kept) = _kept(read("qwen 4 flash, text").layers[3])
    assert kept == ("index_tail", 0, 4 * 128 * 2), "without a tower vLLM takes the sections out of the config"


def _groups(plan: BlockPlan) -> list[tuple[str, int]]:
    return sorted((group.page.kind, group.num_layers) for group in plan.groups)


_THREE = [("state", 12)] * 3


@pytest.mark.parametrize(
    ("name", "own", "block", "num_bytes", "per_request", "groups"),
    [
        (
            "qwen 4",
            {},
            48,
            38_016,
            [1, 4, 4, 4, 86],
            [("state", 3)] * 2 + [("ngram_state", 2), ("ring", 3), ("full", 6)],
        ),
        (
            "qwen 4 flash, text",
            {"ngram_vocab_size_base": 1000},
            1600,
            43_929_600,
            [1, 3, 4, 4, 4, 4],
            [*_THREE, ("ngram_state", 1), ("ring", 13), ("full", 26)],
        ),
    ],
)
def test_blocks_with_a_drafter_of_three_tokens(name, own, block, num_bytes, per_request, groups):
    spec = read(name, mtp_num_hidden_layers=1, **own)
    drafter = multi_token_model(spec)
    assert drafter is not None
    cache = CacheSettings(num_speculative_tokens=3)
    plan = plan_blocks(spec.layers + drafter.layers, cache, 16, vllm_release("0.33"))
    assert (plan.block_size, plan.bytes_per_block) == (block, num_bytes)
    assert _groups(plan) == sorted(groups)
    shape = RequestShape(4096, 2048, states_per_request=4)
    alone = [BlockPlan((group,), plan.bytes_per_block) for group in plan.groups]
    assert sorted(blocks_per_request(each, shape) for each in alone) == per_request


def test_vllm_keeps_tables_in_the_hosts_memory_and_what_a_step_chooses_on_the_gpu():
    """12 layers x 2,052 numbers and one layer x 2,560 rows' elements, of 8,192 tokens."""
    gpu, settings = find_gpu("h200-141gb"), ServingSettings(tensor_parallel_size=4, max_num_batched_tokens=8192)
    more = ServingSettings(tensor_parallel_size=4, max_num_batched_tokens=16384)
    spec = read("qwen 4 flash, text", mtp_num_hidden_layers=0)
    found = predict_vllm(spec, gpu, settings).rank.weight_bytes
    assert found < 2 * (spec.num_parameters - spec.lookup_elements) / 4 * 1.1
    added = predict_vllm(spec, gpu, more).rank.weight_bytes - found
    assert added == 8192 * (12 * 2052 * 4 + 2560 * 2)


@pytest.mark.parametrize(
    ("settings", "version", "message"),
    [
        ({"pipeline_parallel_size": 2}, "0.33", "does not divide"),
        ({"kv_cache_dtype": "fp8_e5m2"}, "0.33", "does not serve"),
        ({"dtype": "float16"}, "0.33", "does not serve"),
        ({}, "0.31", "not known"),
        ({"block_size": 16}, "0.33", "groups of 32"),
    ],
)
def test_what_vllm_does_not_serve_is_refused(settings, version, message):
    group = 32 if "groups" in message else 4
    spec = read("qwen 4 flash, text", mtp_num_hidden_layers=0, indexer_compress_ratio=group)
    with pytest.raises(Exception, match=message):
        predict_vllm(spec, find_gpu("h200-141gb"), ServingSettings(**settings), version)
