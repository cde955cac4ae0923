"""Plain decoders with windows, and Jais 2: small configs, and what the classes that vLLM 0.33 serves make of them.

PLaMo 3's counts are those of vLLM's class on a CPU. vLLM serves the others through transformers; theirs are those of
transformers 5.24's classes, and the published sizes those of the defaults of their configurations.
"""

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
    "head_dim": 16,
    "vocab_size": 128,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "sliding_window": 32,
    "torch_dtype": "bfloat16",
}
_LISTED = {"interleaved_sliding_window": [64, 64, 64, None], "rope_local_theta": 10000}
_COUNTED: dict[str, tuple[str, dict[str, Any], int, list[int | None]]] = {
    "plamo 3": ("Plamo3ForCausalLM", _LISTED, 140_480, [64, 64, 64, None]),
    "plamo 3, tied": (
        "Plamo3ForCausalLM",
        {"interleaved_sliding_window": [None, 64, None, 64], "tie_word_embeddings": True},
        132_288,
        [None, 64, None, 64],
    ),
    "cwm": ("CwmForCausalLM", {}, 139_840, [None, 32, 32, 32]),
    "cwm, tied": (
        "CwmForCausalLM",
        {"mlp_bias": True, "layer_types": ["sliding_attention"] * 4, "tie_word_embeddings": True},
        132_672,
        [32] * 4,
    ),
    "jais 2": ("Jais2ForCausalLM", {}, 117_248, [None] * 4),
    "jais 2, without biases": ("Jais2ForCausalLM", {"attention_bias": False, "mlp_bias": False}, 115_840, [None] * 4),
    "vaultgemma": ("VaultGemmaForCausalLM", {}, 139_840, [32, None] * 2),
    "vaultgemma, tied": (
        "VaultGemmaForCausalLM",
        {"attention_bias": True, "tie_word_embeddings": True},
        132_416,
        [32, None] * 2,
    ),
}


@pytest.mark.parametrize("name", _COUNTED)
def test_small_configs_as_their_classes_have_them(name: str) -> None:
    architecture, own, parameters, windows = _COUNTED[name]
    spec = read_config({**_SMALL, "architectures": [architecture], **own}, model_id=name)
    assert spec.num_parameters == parameters
    assert kept(spec) == [("softmax", 64, tokens) for tokens in windows]


_PUBLISHED: dict[str, tuple[tuple[int, ...], int]] = {
    "CwmForCausalLM": ((6144, 21504, 64, 48, 8, 128, 128256), 32_581_097_472),
    "Jais2ForCausalLM": ((3328, 26624, 32, 26, 26, 128, 150272), 8_090_401_280),
    "VaultGemmaForCausalLM": ((2304, 9216, 26, 8, 4, 256, 256000), 2_614_222_080),
}
"""Hidden and inner size, layers, heads, KV heads, head size, vocabulary; parameters."""


@pytest.mark.parametrize("architecture", _PUBLISHED)
def test_published_sizes(architecture: str) -> None:
    sizes, parameters = _PUBLISHED[architecture]
    config = dict(zip(_SMALL, sizes, strict=False)) | {"architectures": [architecture], "torch_dtype": "bfloat16"}
    assert read_config(config, model_id="published").num_parameters == parameters


@pytest.mark.parametrize("windows", [None, [64, 64], [64, 64, 64, "none"]])
def test_windows_of_plamo_that_are_not_listed_are_refused(windows: object) -> None:
    config = {**_SMALL, "architectures": ["Plamo3ForCausalLM"], "interleaved_sliding_window": windows}
    with pytest.raises(KvplanError, match="interleaved_sliding_window"):
        read_config(config, model_id="plamo")
