"""Qwen 4, Step 5, DeepSeek V4.1, beside their rows of ``tests/data/counted_configs.json``: layers and refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest
from counted_configs import counted_config

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import find_profile, resolve_model
from kvplan.catalog.reader import read_config
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.catalog.spec import CompressedAttention, LayerSpec, ModelSpec, SoftmaxAttention
from kvplan.catalog.speculation.heads import multi_token_model
from kvplan.errors import KvplanError
from kvplan.estimate.cache_entries import CacheSettings, layer_entries
from kvplan.estimate.kv_cache import size_sequence
from kvplan.estimate.vllm.groups import BlockPlan, RequestShape, blocks_per_request, plan_blocks
from kvplan.estimate.vllm.prediction import predict_vllm
from kvplan.estimate.weights import lookup_bytes, size_weights
from kvplan.paths import profiles_dir
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


def _mixed(**layers: str) -> dict[str, Any]:
    listed = {name: {"quant_algo": algorithm} for name, algorithm in layers.items()}
    return {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": listed}


@pytest.mark.parametrize(
    ("section", "each"),
    [
        (None, 2),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 1 + 4 / 128 / 128),
        ({"quant_method": "fp8", "modules_to_not_convert": ["model.layers.1.ple.ple_embedding.ngram_embedding"]}, 2),
        ({"quant_method": "fp8", "ignored_layers": ["model.layers.1.ple.ple_embedding.ngram_embedding.shard_0"]}, 2),
        (_mixed(**{"model.layers.1.ple.ple_embedding.ngram_embedding": "FP8"}), 1),
        (_mixed(**{"model.layers.1.ple.ple_embedding.ngram_embedding": "NVFP4"}), 0.5 + 1 / 16),
        (_mixed(**{"model.layers.0.mlp.experts": "NVFP4"}), 2),
    ],
)
def test_a_table_of_n_grams_is_stored_as_vllm_loads_it(section: dict[str, Any] | None, each: float):
    """vllm/models/qwen4_exp/common/ngram_embedding.py of vLLM 0.33, from_quant_config."""
    spec = read("qwen 4 flash, text", quantization_config=section)
    assert lookup_bytes(spec, "bfloat16") == pytest.approx(spec.lookup_elements * each, rel=5e-3)


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
        ({}, "0.29", "not known"),
        ({"block_size": 16}, "0.33", "groups of 32"),
    ],
)
def test_what_vllm_does_not_serve_is_refused(settings, version, message):
    group = 32 if "groups" in message else 4
    spec = read("qwen 4 flash, text", mtp_num_hidden_layers=0, indexer_compress_ratio=group)
    with pytest.raises(Exception, match=message):
        predict_vllm(spec, find_gpu("h200-141gb"), ServingSettings(**settings), version)


def test_a_full_layer_keeps_an_8_bit_key_for_eight_tokens_and_the_open_region() -> None:
    """vLLM's specs: 24,576 B of keys and values and 512 B of summaries a block of 16; rows of 1,024 B in the ring."""
    full, sliding = read_config(counted_config("step 5"), model_id="step 5").layers[:2]
    for kv_dtype, keys_and_values in (("bfloat16", 24_576), ("fp8", 12_288)):
        found = {entry.kind: entry for entry in layer_entries(full, CacheSettings(kv_dtype=kv_dtype))}
        assert found["full"].token_bytes * 16 == keys_and_values
        assert found["indexer"].token_bytes * 16 == 512
        assert found["index_tail"].state_bytes == 7 * 1024
    drafting = layer_entries(full, CacheSettings(num_speculative_tokens=3))
    assert drafting[-1].state_bytes == 10 * 1024
    assert [entry.kind for entry in layer_entries(sliding, CacheSettings())] == ["sliding"]


def test_a_page_that_is_too_small_for_the_ring_is_refused_as_by_vllm() -> None:
    """In 8 bits one KV head has 6 rows of 1,024 B in a block of 16, and vLLM asks for 7."""
    one_group = {"num_attention_groups": 1, "sparse_config": {"sparse_indexer_num_heads": 4, "index_tp_size": 1}}
    spec = read_config(counted_config("step 5", **one_group), model_id="step 5")
    with pytest.raises(KvplanError, match="open region") as raised:
        plan_blocks(spec.layers, CacheSettings(kv_dtype="fp8"), 16, vllm_release("0.33.0"))
    assert raised.value.hint is not None and "--block-size" in raised.value.hint
    plan_blocks(spec.layers, CacheSettings(kv_dtype="fp8"), 32, vllm_release("0.33.0"))


def test_multi_token_layers_are_dense_and_have_heads_of_their_own() -> None:
    config = counted_config("step 5: sliding layers with groups and heads of their own, a tied embedding")
    (drafter,) = read_config(config, model_id="step 5").extras
    assert (drafter.num_layers, drafter.num_parameters) == (2, 596_608)
    assert drafter.layer is not None and isinstance(drafter.layer.mixer, SoftmaxAttention)
    assert drafter.layer.mixer.window_tokens == 512


def test_the_model_that_sees_is_the_language_model_and_names_its_tower() -> None:
    text = {key: value for key, value in counted_config("step 5").items() if key != "architectures"}
    config = {
        "architectures": ["Step5ForConditionalGeneration"],
        "model_type": "step5_vl",
        "text_config": text,
        "vision_config": {"model_type": "perception_encoder"},
    }
    spec = read_config(config, model_id="step 5")
    assert spec.num_parameters == 1_449_820
    assert [(extra.kind, extra.num_parameters) for extra in spec.extras] == [("vision", None)]


def test_step_3_5_has_as_many_kv_heads_as_its_attention_groups() -> None:
    """vllm/model_executor/models/step3p5.py reads num_attention_groups; transformers' class has 8 by default."""
    for groups, heads in ({"num_attention_groups": 2}, 2), ({"num_key_value_heads": 4}, 4), ({}, 8):
        spec = read_config(counted_config("step 3.5", **groups), model_id="step 3.5")
        found = {layer.mixer.num_kv_heads for layer in spec.layers if isinstance(layer.mixer, SoftmaxAttention)}
        assert found == {heads}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("partial_rotary_factors", [{}] * 45),
        ("partial_rotary_factors", [0.5]),
        ("partial_rotary_factors", [float("inf")] * 45),
        ("rope_theta", ["x"] * 45),
        ("moe_layers_enum", [float("inf")]),
    ],
)
def test_a_list_by_layer_of_anything_but_numbers_is_refused_by_name(key: str, value: list[object]) -> None:
    config = json.loads((profiles_dir() / "models" / "step-3.7-flash.json").read_text(encoding="utf-8"))["config"]
    inner = {name: each for name, each in config.get("text_config", config).items() if name != "mlp_layer_types"}
    changed = {**inner, key: value}
    with pytest.raises(KvplanError, match=key):
        read_config({**config, "text_config": changed} if "text_config" in config else changed, model_id="step 3.7")


_HIDDEN, _HEADS, _HEAD, _STREAMS = 5120, 64, 512, 4


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    return resolve_model("deepseek-v4.1-flash")


def _config() -> dict[str, Any]:
    profile = find_profile("deepseek-v4.1-flash")
    assert profile is not None
    return profile["config"]


def test_parameters_are_those_of_vllms_class(spec: ModelSpec) -> None:
    """Shapes of ``DeepseekV4Attention``, ``DeepseekV4MoE``, ``Engram`` and ``DeepseekV4DecoderLayer``."""
    attention = (1280 + _HEAD) * _HIDDEN + 1280 + _HEAD  # fused_wqa_wkv and its norms
    attention += _HEADS * _HEAD * 1280 + 8 * 1024 * (_HEADS * _HEAD // 8) + _HIDDEN * 8 * 1024 + _HEADS
    experts = 384 * 3 * 2304 * _HIDDEN + 3 * 2304 * _HIDDEN + 384 * _HIDDEN + 2 * 384
    streams = 2 * (24 * _STREAMS * _HIDDEN + 24 + 3) + 2 * _HIDDEN
    sources = 3 * (2 * _HEAD * _HIDDEN + _HEAD) + _HEAD * _HIDDEN + _HEAD  # of ratio 1 there is no gate
    sources += 4 * (128 * _HEAD + 128) + 8 * (32 * 128 * 1280 + 32 * _HIDDEN)
    tables = 256 * (384_006_168 + 384_016_682) + 2 * (24 * 256 * _HIDDEN * 5 + 2 * _STREAMS * _HIDDEN)
    ends = 2 * 129_280 * _HIDDEN + _HIDDEN
    assert spec.num_parameters == 40 * (attention + experts + streams) + sources + tables + ends
    # Without the tables it is the 552 B that its card says.
    assert spec.num_parameters - spec.lookup_elements == pytest.approx(552e9, rel=1e-3)


def test_bytes_are_those_of_the_published_files(spec: ModelSpec) -> None:
    """Headers of the released files: 475.2 GiB in all, 253.1 + 15.8 of routed experts, 188.8 of tables."""
    weights = size_weights(spec, "bfloat16")
    by_kind = {(each.kind, each.format): each.num_bytes / 2**30 for each in weights.components}
    assert by_kind["experts", "mxfp4 4-bit, group 32"] == pytest.approx(253.1 + 15.8, abs=0.1)
    assert by_kind["embedding", "8.25-bit table"] == pytest.approx(188.8, abs=0.1)
    drafting = next(extra for extra in spec.extras if extra.kind == "multi_token_prediction")
    towers = sum(extra.num_parameters or 0 for extra in spec.extras if extra is not drafting)
    rest = (drafting.num_parameters or 0) * 4.25 / 8 + 2 * towers
    assert weights.total_bytes + rest == pytest.approx(475.2 * 2**30, rel=2e-3)


def test_four_layers_keep_what_forty_read(spec: ModelSpec) -> None:
    mixers = [layer.mixer for layer in spec.layers if isinstance(layer.mixer, CompressedAttention)]
    assert [index for index, mixer in enumerate(mixers) if mixer.ratio and mixer.keeps_vectors] == [2, 8, 14, 20]
    assert [index for index, mixer in enumerate(mixers) if mixer.ratio and mixer.chooses] == [
        *(2, 8, 14, 20, 24, 28, 32, 36)
    ]
    cache = size_sequence(spec, 8192, CacheSettings(kv_dtype="fp8"))
    assert cache.bytes_per_token == 3 * (512 + 132) // 2 + 512 + 132
    assert cache.fixed_bytes_per_sequence == 40 * 512 * 128


@pytest.mark.parametrize(
    ("kv_dtype", "record", "alignment", "stride"), [("mxfp8", 528, 512, 528), ("fp8", 584, 576, 1)]
)
def test_pages_are_vllms(spec: ModelSpec, kv_dtype: str, record: int, alignment: int, stride: int) -> None:
    """Blocks of 256 tokens hold the pages of four layers side by side; windows are in blocks of 32, rings apart."""
    plan = plan_blocks(spec.layers, CacheSettings(kv_dtype=kv_dtype), 256, vllm_release("0.33.0"))

    def padded(size: int) -> int:
        return -(-size // alignment) * alignment

    full = 3 * (padded(128 * record) + padded(128 * 132)) + padded(256 * record) + padded(256 * 132)
    assert plan.bytes_per_block == -(-full // stride) * stride
    kinds = {(group.page.kind, group.page.block_size, group.page.page_bytes) for group in plan.groups}
    assert ("sliding", 32, padded(32 * record)) in kinds
    assert ("ring", 1, 8 * 2 * 512 * 4) in kinds


def test_a_config_that_is_quoted_in_part_says_what_was_taken() -> None:
    """Ports quote the text's sizes and leave out the lists: the one published model's are taken, and said."""
    config = _config()
    left_out = ("compress_ratios", "kv_source_layer_ids", "index_source_layer_ids", "engram_num_embeddings")
    text = {key: value for key, value in config["text_config"].items() if key not in left_out}
    found = read_config({**config, "text_config": text}, model_id="quoted")
    assert found.num_parameters == resolve_model("deepseek-v4.1-flash").num_parameters
    assert [key for key in left_out if any(f"{key}'" in sentence for sentence in found.assumptions)] == list(left_out)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("compress_ratios", [4] * 43),
        ("kv_source_layer_ids", [3]),
        ("index_source_layer_ids", [2, 8, 14]),
        ("engram_num_embeddings", [1]),
    ],
)
def test_what_vllms_class_does_not_take_is_refused(key: str, value: object) -> None:
    config = _config()
    with pytest.raises(KvplanError, match=key):
        read_config({**config, "text_config": {**config["text_config"], key: value}}, model_id="odd")
