"""Bytes of weights in every published format: what is packed, what stays, and what the scales add."""

from __future__ import annotations

import pytest
from tiny_configs import with_awq

from kvplan.catalog.models import resolve_model
from kvplan.catalog.quantization.formats import QuantizationSpec, Rule, with_rules
from kvplan.catalog.quantization.matching import Names
from kvplan.catalog.reader import read_config
from kvplan.estimate.answer import with_quantization
from kvplan.estimate.weights import NAMED_FORMATS, format_of, quantized_bytes, size_weights
from kvplan.settings import ServingSettings

GIB = 2**30


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        # 4 bits, 16-bit scales and 4-bit zero points for 128 weights each
        (NAMED_FORMATS["awq"], 512 * 256 // 2 + 512 * 2 * 2 + 512 * 2 // 2),
        # the same and the group of every input row
        (NAMED_FORMATS["gptq"], 512 * 256 // 2 + 512 * 2 * 2 + 512 * 2 // 2 + 256 * 4),
        (NAMED_FORMATS["fp8"], 512 * 256 + 4),
        (NAMED_FORMATS["fp8-block"], 512 * 256 + 4 * 2 * 4),
        (NAMED_FORMATS["int8"], 512 * 256 + 512 * 4),
        # one 8-bit exponent for 32 weights
        (NAMED_FORMATS["mxfp4"], 512 * 256 // 2 + 512 * 8),
        # one fp8 scale for 16 weights, one float32 scale for the matrix and one for its inputs
        (NAMED_FORMATS["nvfp4"], 512 * 256 // 2 + 512 * 16 + 8),
        (NAMED_FORMATS["bitsandbytes"], 512 * 256 // 2 + 512 * 4 * 4),
    ],
)
def test_one_matrix(quantization, expected):
    assert quantized_bytes((512, 256), quantization) == expected
    assert quantized_bytes((7, 512, 256), quantization) == 7 * expected


@pytest.mark.parametrize(
    ("name", "gib", "unquantized"),
    [
        ("gpt-oss-20b", 12.82, {"embedding", "head", "attention", "other"}),
        ("gpt-oss-120b", 60.77, {"embedding", "head", "attention", "other"}),
        ("deepseek-r1", 626.92, {"embedding", "head", "other"}),
        ("kimi-k2.5", 553.40, {"embedding", "head", "attention", "feed-forward", "other"}),
        ("gemma-4-26b-a4b-nvfp4", 16.43, {"embedding", "attention", "feed-forward", "other"}),
        ("qwen3.6-27b-nvfp4", 18.77, {"embedding", "other", "state mixer"}),
        ("deepseek-v4-flash", 144.93, {"embedding", "head", "other"}),
    ],
)
def test_published_formats(name, gib, unquantized):
    weights = size_weights(resolve_model(name), "bfloat16")
    assert weights.total_bytes / GIB == pytest.approx(gib, abs=0.01)
    plain = {each.kind for each in weights.components if each.format == "bfloat16"}
    assert plain == unquantized


def test_layers_on_an_ignore_list_stay_as_they_are():
    """GLM 5.1 in NVFP4 names its first layer, every attention and every shared expert."""
    spec = resolve_model("glm-5.1-nvfp4")
    first = {tensor.name: tensor for tensor in spec.layers[0].all_tensors}
    later = {tensor.name: tensor for tensor in spec.layers[10].all_tensors}
    assert format_of(spec.quantization, first["mlp.gate_proj"], 0) is None
    assert format_of(spec.quantization, later["mlp.experts.*.gate_proj"], 10) is not None
    assert format_of(spec.quantization, later["self_attn.o_proj"], 10) is None


def test_patterns_and_targets_decide_per_module():
    spec = resolve_model("llama-3.1-8b")
    tensors = {tensor.name: tensor for tensor in spec.layers[3].all_tensors}
    eight = QuantizationSpec("fp8", 8, "tensor")
    four = QuantizationSpec("nvfp4", 4, "group", group_size=16)
    mixed = with_rules(
        Rule(None, Names("match", (".*down_proj",))),
        Rule(eight, Names("equal", ("model.layers.3.self_attn.q_proj",))),
        Rule(four, Names("match", (".*mlp.*",))),
    )
    assert mixed is not None and mixed.formats == (eight, four)
    assert format_of(mixed, tensors["self_attn.q_proj"], 3) is eight
    assert format_of(mixed, tensors["self_attn.q_proj"], 4) is None
    assert format_of(mixed, tensors["mlp.up_proj"], 3) is four
    assert format_of(mixed, tensors["mlp.down_proj"], 3) is None
    assert format_of(mixed, tensors["norm0"], 3) is None


def test_what_if_a_model_were_quantized():
    spec = resolve_model("llama-3.1-8b")
    plain = size_weights(spec, "bfloat16").total_bytes
    awq = size_weights(with_quantization(spec, ServingSettings(quantization="awq")), "bfloat16").total_bytes
    fp8 = size_weights(with_quantization(spec, ServingSettings(quantization="fp8")), "bfloat16").total_bytes
    assert plain == 2 * spec.num_parameters
    # "AWQ 4-bit or FP8 cuts weights by 50 to 70 %": the embedding and the head stay, so it is less than that for fp8
    assert 0.60 < 1 - awq / plain < 0.70
    assert 0.40 < 1 - fp8 / plain < 0.50


def test_unquantizing_a_published_format_gives_the_plain_size():
    published = resolve_model("qwen2.5-14b-instruct")
    spec = read_config(with_awq(dict(published.raw_config)), model_id="in AWQ")
    plain = size_weights(with_quantization(spec, ServingSettings(quantization="none")), "float16").total_bytes
    assert plain == 2 * spec.num_parameters > size_weights(spec, "float16").total_bytes
