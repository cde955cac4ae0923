"""Architectures of vLLM 0.33 that came last: parameters and caches by hand, by transformers' class, or as stated."""

from __future__ import annotations

from typing import Any

import pytest
from kept_elements import kept

from kvplan.catalog.reader import read_config
from kvplan.errors import KvplanError

_SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
_EMBEDDING, _NORM = 128 * 64, 64
_LLAMA_LAYER = 2 * 64 * 64 + 2 * 32 * 64 + 3 * 96 * 64 + 2 * _NORM


def test_telechat_2_has_biases_of_both_outputs():
    """As vllm/model_executor/models/telechat2.py: those of the other matrices are taken away again."""
    config = {**_SMALL, "architectures": ["TeleChat2ForCausalLM"]}
    renamed = {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "intermediate_size": "ffn_hidden_size"}
    config |= {theirs: config.pop(ours) for ours, theirs in renamed.items()}
    spec = read_config(config, model_id="telechat")
    assert spec.num_parameters == 4 * (_LLAMA_LAYER + 2 * 64) + 2 * _EMBEDDING + _NORM
    assert kept(spec) == [("softmax", 2 * 2 * 16, None)] * 4
    with pytest.raises(KvplanError, match="embed_layernorm"):
        read_config({**config, "embed_layernorm": True}, model_id="telechat")


@pytest.mark.parametrize(("groups", "elements"), [({"num_attention_groups": 2}, 64), ({}, 32)])
def test_step_1_keeps_groups_of_heads_without_positions(groups, elements):
    """One group where the config names none (vllm/model_executor/models/step1.py)."""
    config = {**_SMALL, **groups, "architectures": ["Step1ForCausalLM"], "tie_word_embeddings": True}
    del config["num_key_value_heads"]
    spec = read_config(config, model_id="step")
    assert kept(spec) == [("softmax", elements, None)] * 4
    assert spec.num_parameters == 4 * (_LLAMA_LAYER - 2 * (64 - elements) // 2 * 64) + _EMBEDDING + _NORM
    assert spec.rope is None


_BEAM = {
    "architectures": ["BeamForCausalLM"],
    "model_type": "beam",
    "vocab_size": 151936,
    "hidden_size": 5120,
    "intermediate_size": 20480,
    "num_hidden_layers": 52,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 8192,
    "sliding_window": 512,
    "layer_types": [
        "full_attention" if (index + 1) % 6 == 0 or index == 51 else "sliding_attention" for index in range(52)
    ],
    "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 49,
    "moe_intermediate_size": 2560,
    "num_experts_per_tok": 8,
    "num_experts": 256,
}
_FLINT = {
    "architectures": ["FlintForCausalLM"],
    "model_type": "flint",
    "vocab_size": 150144,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 49,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "sliding_window": 513,
    "layer_types": [
        "full_attention" if index < 2 or index % 4 == 1 or index == 48 else "sliding_attention" for index in range(49)
    ],
    "moe_intermediate_size": 512,
    "num_experts_per_tok": 6,
    "num_experts": 256,
    "mlp_only_layers": [0, 1],
}
_KOLIBRI = {
    "architectures": ["Kolibri1ForCausalLM"],
    "model_type": "kolibri1",
    "vocab_size": 128000,
    "hidden_size": 2560,
    "num_hidden_layers": 50,
    "num_attention_heads": 48,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 512,
    "num_experts_per_tok": 6,
    "num_experts": 384,
}


@pytest.mark.parametrize(
    ("config", "parameters", "active_billions", "full", "window", "elements"),
    [
        (_BEAM, 501_267_612_352, 23.4, 9, 512, 2 * 8 * 128),
        (_FLINT, 39_785_287_456, 2.8, 14, 513, 2 * 4 * 128),
        (_KOLIBRI, 78_103_074_560, 3.8, 10, 513, 2 * 4 * 128),
    ],
)
def test_mixtures_have_the_parameters_of_their_classes(config, parameters, active_billions, full, window, elements):
    """transformers 5.24's classes of the defaults that name a published model, with their routers' corrections."""
    spec = read_config(config, model_id="mixture")
    assert spec.num_parameters == parameters
    assert spec.num_active_parameters / 1e9 == pytest.approx(active_billions, abs=0.05)
    layers = kept(spec)
    assert layers.count(("softmax", elements, None)) == full
    assert layers.count(("softmax", elements, window)) == len(layers) - full


@pytest.mark.parametrize(
    ("config", "key"),
    [(_BEAM, "layer_types"), (_BEAM, "mlp_layer_types"), (_FLINT, "layer_types"), (_FLINT, "mlp_only_layers")],
)
def test_lists_that_two_classes_fill_differently_are_needed(config, key):
    """vLLM's BeamConfig and FlintConfig take other defaults than transformers' classes of the same names."""
    silent = {name: value for name, value in config.items() if name != key}
    with pytest.raises(KvplanError, match=key):
        read_config(silent, model_id="silent")
