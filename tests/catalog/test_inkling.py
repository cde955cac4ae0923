"""Inkling: small configs and the published size, and what vLLM 0.33's planner of KV caches makes of its layers.

Parameters are those of transformers 5.24's class, the published ones of its configuration's defaults. Groups, bytes and
blocks are those of vllm/v1/core/kv_cache_planning.py over the KVCacheSpecs of vllm/models/inkling/nvidia/
(attention.py, sconv_swa_attn.py), in the layout of its backends: 4,096 tokens a request and 16,384 in flight.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvplan.catalog.reader import read_config
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import KvplanError
from kvplan.estimate.kv_cache import CacheSettings
from kvplan.estimate.vllm.groups import RequestShape, blocks_per_request, plan_blocks

_EVERY_SIXTH_FULL = [index for index in range(66) if (index + 1) % 6]


def _text(heads: tuple[int, int], local: list[int], layers: int, **own: Any) -> dict[str, Any]:
    return {
        "hidden_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": heads[0],
        "swa_num_key_value_heads": heads[1],
        "head_dim": 16,
        "sliding_window_size": 32,
        "local_layer_ids": local,
        "vocab_size": 128,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_shared_experts": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 4096,
        "use_embed_norm": True,
        "use_global_scale": True,
        **own,
    }


_BIG = _text(
    (8, 16),
    _EVERY_SIXTH_FULL,
    66,
    hidden_size=6144,
    num_attention_heads=64,
    head_dim=128,
    sliding_window_size=512,
    vocab_size=201024,
    n_routed_experts=256,
    num_experts_per_tok=6,
    intermediate_size=3072,
    dense_intermediate_size=24576,
)
_SMALL = _text((2, 4), [0, 1, 2], 4)
_EQUAL_HEADS = _text((2, 2), [0, 1, 3, 4], 6)
_WIDER = _text((2, 4), [0, 1, 3, 4], 6, head_dim=32, hidden_size=96, sliding_window_size=64)


def _read(text: dict[str, Any]) -> ModelSpec:
    config = {"architectures": ["InklingForConditionalGeneration"], "torch_dtype": "bfloat16", "text_config": text}
    return read_config(config, model_id="inkling")


def test_the_published_size_has_the_parameters_of_its_class() -> None:
    """975 B, 41 B of them active."""
    spec = _read(_BIG)
    assert spec.num_parameters == 974_105_178_690 + 1_235_091_456
    assert spec.num_active_parameters / 1e9 == pytest.approx(41, abs=0.5)


@pytest.mark.parametrize(
    ("text", "parameters"),
    [
        (_SMALL, 265_732),
        ({**_SMALL, "intermediate_size": 96, "moe_intermediate_size": 32, "dense_mlp_idx": 2}, 228_100),
        ({**_WIDER, "sliding_window_size": 32, "conv_kernel_size": 3, "d_rel": 8, "rel_extent": 48}, 659_398),
    ],
)
def test_small_configs_have_the_parameters_of_its_class(text: dict[str, Any], parameters: int) -> None:
    assert _read(text).num_parameters == parameters


@pytest.mark.parametrize(
    ("text", "ranks", "kv_dtype", "block_size", "planned"),
    [
        (_BIG, 1, "bfloat16", 16, (12, 1_441_792, 7563)),
        (_BIG, 1, "fp8", 16, (12, 1_441_792, 6859)),
        (_BIG, 8, "bfloat16", 16, (12, 180_224, 7563)),
        (_BIG, 8, "fp8", 16, (12, 180_224, 6859)),
        (_SMALL, 1, "bfloat16", 16, (8, 4096, 2951)),
        (_EQUAL_HEADS, 1, "bfloat16", 16, (6, 4096, 3845)),
        (_WIDER, 2, "bfloat16", 32, (6, 16_384, 1093)),
    ],
)
def test_inputs_of_convolutions_are_kept_as_windows(
    text: dict[str, Any], ranks: int, kv_dtype: str, block_size: int, planned: tuple[int, int, int]
) -> None:
    cache = CacheSettings(kv_dtype=kv_dtype, tensor_parallel_size=ranks)
    plan = plan_blocks(_read(text).layers, cache, block_size, vllm_release("0.33.0"))
    assert (len(plan.groups), plan.bytes_per_block, blocks_per_request(plan, RequestShape(4096, 16384))) == planned


def test_more_ranks_than_kv_heads_are_refused_as_by_vllm() -> None:
    with pytest.raises(KvplanError, match="8 KV heads over 16 ranks"):
        plan_blocks(_read(_BIG).layers, CacheSettings(tensor_parallel_size=16), 16, vllm_release("0.33.0"))


@pytest.mark.parametrize(
    "own",
    [
        {"local_layer_ids": None},
        {"q_bias": True},
        {"layer_types": ["hybrid"] * 4},
        {"mlp_layer_types": ["dense", *["sparse"] * 3]},
        {"swa_num_key_value_heads": 3},
    ],
)
def test_what_is_not_known_is_refused(own: dict[str, Any]) -> None:
    (key,) = own
    with pytest.raises(KvplanError, match=key):
        _read({**_SMALL, **own})
