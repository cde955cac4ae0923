"""Step 5: small configs, and what vLLM 0.33's class and its planner of KV caches make of them on a CPU.

The counts are those of the class's parameters (vllm/models/step5/nvidia/), made without storage. Groups, bytes and
blocks are those of vllm/v1/core/kv_cache_planning.py over the class's own KVCacheSpecs: blocks of 16 tokens, 4,096
tokens a request and 16,384 in flight.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvplan.catalog.reader import read_config
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.catalog.spec import SoftmaxAttention
from kvplan.errors import KvplanError
from kvplan.estimate.kv_cache import CacheSettings, layer_entries
from kvplan.estimate.vllm.groups import RequestShape, blocks_per_request, plan_blocks
from kvplan.paths import profiles_dir

_FULL, _SLIDING = "full_attention", "sliding_attention"
_SMALL: dict[str, Any] = {
    "architectures": ["Step5ForCausalLM"],
    "model_type": "step5",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 8,
    "num_attention_groups": 2,
    "num_hidden_layers": 4,
    "vocab_size": 128,
    "head_dim": 192,
    "max_position_embeddings": 4096,
    "moe_num_experts": 4,
    "moe_top_k": 2,
    "moe_intermediate_size": 32,
    "share_expert_dim": 40,
    "moe_layers_enum": "1,2,3",
    "use_moe_router_bias": True,
    "use_head_wise_attn_gate": True,
    "layer_types": [_FULL, _SLIDING, _SLIDING, _FULL],
    "sliding_window": 512,
    "sparse_config": {"sparse_indexer_num_heads": 8, "index_tp_size": 2, "topk": 512},
    "torch_dtype": "bfloat16",
}
_ONE_GROUP = {"num_attention_groups": 1, "sparse_config": {"sparse_indexer_num_heads": 4, "index_tp_size": 1}}
_COUNTED: dict[str, tuple[dict[str, Any], int, tuple[int, int, int]]] = {
    "as it is": ({}, 1_449_820, (3, 61_440, 514)),
    "sliding layers with groups and heads of their own, a tied embedding": (
        {
            "attention_other_setting": {
                "attention_type": _SLIDING,
                "num_attention_heads": 12,
                "num_attention_groups": 4,
                "head_dim": 128,
            },
            "layer_types": [_FULL, _SLIDING, _SLIDING, _FULL, _SLIDING, _SLIDING],
            "num_nextn_predict_layers": 2,
            "tie_word_embeddings": True,
            "share_expert_dim": None,
            "moe_layers_enum": None,
        },
        1_488_476,
        (3, 73_728, 514),
    ),
    "listed layers are sparse, sliding ones have twice the heads": (
        {
            "num_hidden_layers": 6,
            "layer_types": [_FULL, _SLIDING, _SLIDING, _SLIDING, _FULL, _SLIDING],
            "swa_num_attention_heads": 16,
            "moe_layers_enum": None,
            "moe_layer_list": [2, 4],
            "rope_theta": [1e6, 1e4, 1e4, 1e4, 1e6, 1e4],
            "partial_rotary_factors": [0.5, 1, 1, 1, 0.5, 1],
            "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
            "yarn_only_types": [_FULL],
        },
        2_754_648,
        (4, 61_440, 771),
    ),
    "no index, no gate": (
        {"sparse_config": {"enabled": False}, "use_head_wise_attn_gate": False},
        1_117_516,
        (2, 49_152, 513),
    ),
    "48 layers": (
        {
            "num_hidden_layers": 48,
            "layer_types": [_FULL, _SLIDING, _SLIDING, _SLIDING] * 12,
            "moe_layers_enum": ",".join(str(index) for index in range(3, 48)),
        },
        15_362_132,
        (5, 307_200, 1028),
    ),
    "blocks that begin at a multiple of a region": (
        {
            **_ONE_GROUP,
            "num_hidden_layers": 45,
            "layer_types": [_FULL, _SLIDING, _SLIDING] * 15,
            "moe_layers_enum": "44",
        },
        12_349_372,
        (4, 196_608, 771),
    ),
    "layers that do not divide into groups": (
        {
            **_ONE_GROUP,
            "num_hidden_layers": 30,
            "layer_types": ([_FULL, _SLIDING, _SLIDING, _SLIDING] * 8)[:30],
            "moe_layers_enum": "29",
        },
        8_044_420,
        (5, 104_448, 1028),
    ),
}


@pytest.mark.parametrize("name", _COUNTED)
def test_small_configs_as_vllm_builds_them(name: str) -> None:
    changed, parameters, (num_groups, bytes_per_block, blocks) = _COUNTED[name]
    spec = read_config({**_SMALL, **changed}, model_id=name)
    assert spec.num_parameters == parameters
    plan = plan_blocks(spec.layers, CacheSettings(), 16, vllm_release("0.33.0"))
    assert (len(plan.groups), plan.bytes_per_block) == (num_groups, bytes_per_block)
    assert blocks_per_request(plan, RequestShape(4096, 16384)) == blocks


def test_a_full_layer_keeps_an_8_bit_key_for_eight_tokens_and_the_open_region() -> None:
    """vLLM's specs: 24,576 B of keys and values and 512 B of summaries a block of 16; rows of 1,024 B in the ring."""
    full, sliding = read_config(_SMALL, model_id="step 5").layers[:2]
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
    spec = read_config({**_SMALL, **_ONE_GROUP}, model_id="step 5")
    with pytest.raises(KvplanError, match="open region") as raised:
        plan_blocks(spec.layers, CacheSettings(kv_dtype="fp8"), 16, vllm_release("0.33.0"))
    assert raised.value.hint is not None and "--block-size" in raised.value.hint
    plan_blocks(spec.layers, CacheSettings(kv_dtype="fp8"), 32, vllm_release("0.33.0"))


def test_multi_token_layers_are_dense_and_have_heads_of_their_own() -> None:
    changed, *_ = _COUNTED["sliding layers with groups and heads of their own, a tied embedding"]
    (drafter,) = read_config({**_SMALL, **changed}, model_id="step 5").extras
    assert (drafter.num_layers, drafter.num_parameters) == (2, 596_608)
    assert drafter.layer is not None and isinstance(drafter.layer.mixer, SoftmaxAttention)
    assert drafter.layer.mixer.window_tokens == 512


def test_the_model_that_sees_is_the_language_model_and_names_its_tower() -> None:
    text = {key: value for key, value in _SMALL.items() if key != "architectures"}
    config = {
        "architectures": ["Step5ForConditionalGeneration"],
        "model_type": "step5_vl",
        "text_config": text,
        "vision_config": {"model_type": "perception_encoder"},
    }
    spec = read_config(config, model_id="step 5")
    assert spec.num_parameters == 1_449_820
    assert [(extra.kind, extra.num_parameters) for extra in spec.extras] == [("vision", None)]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"sparse_config": None}, "sparse_config"),
        ({"sparse_config": {"proxy_dim": 128}}, "proxy_dim"),
        ({"sparse_config": {"region_block_size": 16}}, "region_block_size"),
        ({"sparse_config": {"apply_to_layer_types": [_SLIDING]}}, "apply_to_layer_types"),
        ({"attention_bias": True}, "attention_bias"),
        ({"use_moe_router_bias": False}, "use_moe_router_bias"),
        ({"layer_types": [_FULL, _SLIDING]}, "layer_types"),
        ({"num_nextn_predict_layers": 1}, "layer_types"),
        ({"sliding_window": None}, "sliding_window"),
    ],
)
def test_what_vllm_refuses_or_nobody_knows_is_refused_by_name(changed: dict[str, Any], named: str) -> None:
    with pytest.raises(KvplanError, match=named):
        read_config({**_SMALL, **changed}, model_id="step 5")


def test_step_3_5_has_as_many_kv_heads_as_its_attention_groups() -> None:
    """vllm/model_executor/models/step3p5.py reads num_attention_groups; transformers' class has 8 by default."""
    config = {
        "architectures": ["Step3p5ForCausalLM"],
        "model_type": "step3p5",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "head_dim": 16,
        "vocab_size": 128,
        "max_position_embeddings": 256,
        "moe_num_experts": 4,
        "moe_top_k": 2,
        "moe_intermediate_size": 32,
        "share_expert_dim": 40,
    }
    for groups, heads in ({"num_attention_groups": 2}, 2), ({"num_key_value_heads": 4}, 4), ({}, 8):
        spec = read_config({**config, **groups}, model_id="step 3.5")
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
