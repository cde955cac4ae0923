"""Step 5, beside its rows of ``tests/data/counted_configs.json``: what vLLM 0.33's class keeps; Step 3.5's heads."""

from __future__ import annotations

import json

import pytest
from counted_configs import counted_config

from kvplan.catalog.reader import read_config
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.catalog.spec import SoftmaxAttention
from kvplan.errors import KvplanError
from kvplan.estimate.kv_cache import CacheSettings, layer_entries
from kvplan.estimate.vllm.groups import plan_blocks
from kvplan.paths import profiles_dir


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
