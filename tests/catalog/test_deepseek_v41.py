"""DeepSeek V4.1: few layers keep compressed vectors, which the others read; tables of n-grams in the host's memory.

vLLM 0.33 has the class (vllm/models/deepseek_v41); transformers 5.24 has none, so the weights are written out here.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvplan.catalog.models import find_profile, resolve_model
from kvplan.catalog.reader import read_config
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.catalog.spec import CompressedAttention, ModelSpec
from kvplan.errors import KvplanError
from kvplan.estimate.kv_cache import CacheSettings, size_sequence
from kvplan.estimate.vllm.groups import plan_blocks
from kvplan.estimate.weights import size_weights

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
