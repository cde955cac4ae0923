"""Qwen 4 as vLLM 0.33's class and transformers 5.24's have it: parameters, what each layer keeps, how vLLM groups it.

The counts are those of both classes' parameters, made without storage (vLLM's has rows of padding besides, which no
checkpoint fills); what a layer keeps is that of its ``KVCacheSpec``; blocks are those of vllm/v1/core/
kv_cache_planning.py for these specs.
"""

from __future__ import annotations

from typing import Any

import pytest
from small_configs import small_configs

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.reader import read_config
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.catalog.spec import LayerSpec, ModelSpec
from kvplan.catalog.speculation.heads import multi_token_model
from kvplan.estimate.kv_cache import CacheSettings, layer_entries
from kvplan.estimate.vllm.groups import BlockPlan, RequestShape, blocks_per_request, plan_blocks
from kvplan.estimate.vllm.prediction import predict_vllm
from kvplan.settings import ServingSettings

_NEW_KEYS = ("hc_", "ple_", "ngram_", "heads_per_ngram", "make_ngram", "indexer_")
_PARTS = {key: value for key, value in small_configs()["Qwen4ExpForCausalLM"].items() if key.startswith(_NEW_KEYS)}
SMALL: dict[str, Any] = {
    "architectures": ["Qwen4ExpForCausalLM"],
    "model_type": "qwen4_exp_text",
    "hidden_size": 64,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 128,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_conv_kernel_dim": 5,
    "mamba_ssm_dtype": "float32",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "shared_expert_intermediate_size": 24,
    **_PARTS,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000_000, "partial_rotary_factor": 0.25},
}
UNEVEN = {
    **SMALL,
    "num_hidden_layers": 7,
    "layer_types": ["full_attention" if index in (0, 3, 6) else "linear_attention" for index in range(7)],
    "ple_layer_ids": [2, 3],
}
FLASH_TEXT: dict[str, Any] = {
    "model_type": "qwen4_exp_text",
    "dtype": "bfloat16",
    "hidden_size": 2560,
    "num_hidden_layers": 48,
    "layer_types": ["full_attention" if index % 4 == 3 else "linear_attention" for index in range(48)],
    "num_attention_heads": 24,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "vocab_size": 248_320,
    "max_position_embeddings": 262_144,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "mamba_ssm_dtype": "float32",
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 640,
    "shared_expert_intermediate_size": 640,
    "hc_count": 4,
    "hc_lowrank": 320,
    "ple_layer_ids": [2],
    "ple_embed_dim": 2560,
    "ple_conv_kernel_size": 4,
    "ngram_size": 3,
    "heads_per_ngram": 8,
    "ngram_vocab_size_base": 20_000_000,
    "make_ngram_vocab_size_divisible_by": 128,
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 128,
    "indexer_budget": 2048,
    "indexer_compress_ratio": 4,
    "mtp_num_hidden_layers": 1,
    "rope_parameters": {
        "mrope_interleaved": True,
        "mrope_section": [11, 11, 10],
        "partial_rotary_factor": 0.25,
        "rope_theta": 10_000_000,
        "rope_type": "default",
    },
}
FLASH: dict[str, Any] = {
    "architectures": ["Qwen4ExpForConditionalGeneration"],
    "model_type": "qwen4_exp",
    "text_config": FLASH_TEXT,
    "vision_config": {"model_type": "qwen4_exp_vision", "out_hidden_size": 2560, "deepstack_visual_indexes": []},
}
"""Qwen3.8-Flash-Next, by its published sizes."""
WIDER = {
    **FLASH_TEXT,
    "hidden_size": 2048,
    "num_key_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "hc_count": 8,
    "ple_layer_ids": [1, 2, 3, 5],
    "ple_conv_kernel_size": 6,
    "ngram_vocab_size_base": 1000,
    "indexer_n_heads": 2,
    "indexer_head_dim": 64,
    "indexer_compress_ratio": 8,
}
"""Convolutions of n-grams keep more than the delta nets."""
MANY_FULL = {
    **FLASH_TEXT,
    "layer_types": ["full_attention" if index % 12 < 5 else "linear_attention" for index in range(48)],
    "ple_layer_ids": [6, 7, 8, 9, 10],
    "ngram_vocab_size_base": 1000,
}


def read(config: dict[str, Any], **others: Any) -> ModelSpec:
    return read_config({"architectures": ["Qwen4ExpForCausalLM"], **config, **others}, model_id="qwen4")


@pytest.mark.parametrize(("config", "parameters"), [(SMALL, 1_098_424), (UNEVEN, 984_688)])
def test_parameters_of_small_configs(config, parameters):
    assert read(config).num_parameters == parameters


def test_a_drafter_has_joints_and_a_mixer_of_streams_of_its_own():
    """vLLM's class has 156,640: an embedding and a head besides, which it shares, and 2 x 9 x 192 of padding."""
    (extra,) = read(SMALL, mtp_num_hidden_layers=1).extras
    assert extra.num_parameters == 156_640 - 2 * 128 * 64 - 2 * 9 * 192


def test_flash_next_has_the_parameters_its_makers_state():
    """176 B of which 51 B are the table of n-grams, 6 B active beside embedding and head, 4 B to draft with these."""
    spec = read_config(FLASH, model_id="flash")
    ends = 2 * spec.vocab_size * spec.hidden_size
    assert spec.num_parameters == 176_955_696_000 - 2 * 48 * 12 * 4 * 2560
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
    layers = [_kept(layer) for layer in read(SMALL).layers]
    assert layers == [delta, looking_up, delta, attention, looking_up, delta, delta, attention]


def test_what_layers_keep_with_three_drafted_tokens():
    layers = read(SMALL).layers
    assert _kept(layers[1], num_speculative_tokens=3) == [
        ("conv_state", 0, 7 * 208 * 2),
        ("recurrent_state", 0, 6 * 24 * 16 * 4),
        ("ngram_state", 0, 11 * 192 * 2),
    ]
    assert _kept(layers[3], num_speculative_tokens=3)[-1] == ("index_tail", 0, 8 * 16 * 2)


def test_ranks_divide_neither_keys_of_the_index_nor_the_convolution_of_n_grams():
    layers = read(SMALL).layers
    assert _kept(layers[1], tensor_parallel_size=2)[-1] == ("ngram_state", 0, 8 * 192 * 2)
    assert _kept(layers[3], tensor_parallel_size=2) == [("full", 128, 0), ("indexer", 8, 0), ("index_tail", 0, 128)]


def test_an_index_keeps_its_dtype_in_a_cache_of_8_bits():
    assert _kept(read(SMALL).layers[3], kv_dtype="fp8")[:2] == [("full", 128, 0), ("indexer", 8, 0)]


def test_a_model_that_sees_keeps_positions_with_the_keys_of_an_open_group():
    (*_, kept) = _kept(read_config(FLASH, model_id="flash").layers[3])
    assert kept == ("index_tail", 0, 4 * (128 + 12) * 2)
    (*_, kept) = _kept(read(FLASH_TEXT).layers[3])
    assert kept == ("index_tail", 0, 4 * 128 * 2), "without a tower vLLM takes the sections out of the config"


def _groups(plan: BlockPlan) -> list[tuple[str, int]]:
    return sorted((group.page.kind, group.num_layers) for group in plan.groups)


_THREE = [("state", 12)] * 3
_BLOCKS: list[tuple[dict[str, Any], dict[str, Any], int, int, int, int, list[tuple[str, int]]]] = [
    (SMALL, {}, 200, 48, 25_344, 10, [("state", 2)] * 3 + [("ngram_state", 2), ("ring", 2), ("full", 4)]),
    (UNEVEN, {}, 200, 48, 38_016, 9, [("state", 2)] * 2 + [("ngram_state", 2), ("ring", 3), ("full", 6)]),
    (FLASH_TEXT, {}, 100_000, 1568, 39_739_392, 69, [*_THREE, ("ngram_state", 1), ("ring", 12), ("full", 24)]),
    (
        FLASH_TEXT,
        {"kv_dtype": "fp8"},
        90_000,
        3136,
        40_943_616,
        34,
        [*_THREE, ("ngram_state", 1), ("ring", 12), ("full", 24)],
    ),
    (
        MANY_FULL,
        {},
        90_000,
        1568,
        66_232_320,
        62,
        [("state", 14)] * 2 + [("ngram_state", 5), ("ring", 20), ("full", 40)],
    ),
    (WIDER, {}, 90_000, 128, 6_316_032, 709, [*_THREE, ("ngram_state", 4), ("ring", 12), ("full", 24)]),
]


@pytest.mark.parametrize(("config", "cache", "tokens", "block", "num_bytes", "blocks", "groups"), _BLOCKS)
def test_blocks_as_vllm_plans_them(config, cache, tokens, block, num_bytes, blocks, groups):
    plan = plan_blocks(read(config).layers, CacheSettings(**cache), 16, vllm_release("0.33"))
    assert (plan.block_size, plan.bytes_per_block) == (block, num_bytes)
    assert _groups(plan) == sorted(groups)
    assert blocks_per_request(plan, RequestShape(tokens, 2048)) == blocks


@pytest.mark.parametrize(
    ("config", "block", "num_bytes", "per_request", "groups"),
    [
        (SMALL, 48, 38_016, [1, 4, 4, 4, 86], [("state", 3)] * 2 + [("ngram_state", 2), ("ring", 3), ("full", 6)]),
        (
            {**FLASH_TEXT, "ngram_vocab_size_base": 1000},
            1600,
            43_929_600,
            [1, 3, 4, 4, 4, 4],
            [*_THREE, ("ngram_state", 1), ("ring", 13), ("full", 26)],
        ),
    ],
)
def test_blocks_with_a_drafter_of_three_tokens(config, block, num_bytes, per_request, groups):
    spec = read(config, mtp_num_hidden_layers=1)
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
    spec = read(FLASH_TEXT, mtp_num_hidden_layers=0)
    found = predict_vllm(spec, gpu, settings).rank.weight_bytes
    assert found < 2 * (spec.num_parameters - spec.lookup_elements) / 4 * 1.1
    added = predict_vllm(spec, gpu, more).rank.weight_bytes - found
    assert added == 8192 * (12 * 2052 * 4 + 2560 * 2)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tie_word_embeddings", True),
        ("attention_bias", True),
        ("indexer_n_heads", None),
        ("num_key_value_heads", None),
        ("shared_expert_intermediate_size", None),
        ("indexer_kv_heads", 2),
        ("indexer_compress_ratio", 3),
        ("ple_layer_ids", [4]),
        ("ple_embed_dim", 50),
        ("mtp_num_hidden_layers", 2),
        ("layer_types", ["sliding_attention"] * 8),
    ],
)
def test_what_is_not_known_is_refused(key, value):
    with pytest.raises(Exception, match=key):
        read(SMALL, **{key: value})


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
    spec = read(FLASH_TEXT, mtp_num_hidden_layers=0, indexer_compress_ratio=group)
    with pytest.raises(Exception, match=message):
        predict_vllm(spec, find_gpu("h200-141gb"), ServingSettings(**settings), version)
