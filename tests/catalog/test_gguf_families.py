"""A model from a GGUF file is the model of its config.json: layers, what each keeps, parameters.

Every architecture of llama.cpp that the table names is asked of a shipped profile's config, or of a small one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import gguf_headers as headers
import pytest
from data_rows import data_rows
from gguf_headers import Config, Header
from small_configs import small_configs

from kvplan.catalog.architectures import by_gguf_name
from kvplan.catalog.gguf.families import OWN_KEYS
from kvplan.catalog.gguf.header import GgufHeader, read_gguf_header
from kvplan.catalog.gguf.models import gguf_config
from kvplan.catalog.models import find_profile, resolve_model
from kvplan.catalog.reader import read_config
from kvplan.catalog.spec import LayerSpec, ModelSpec
from kvplan.errors import KvplanError

ROOT = Path(__file__).resolve().parents[2]
Writer = Callable[[Header], None]
_SMALL = small_configs()
CASES: dict[str, tuple[list[str], tuple[Writer, ...]]] = {
    row["architecture"]: (row["models"], tuple(getattr(headers, name) for name in row["writers"]))
    for row in data_rows("gguf_families")
}
"""Profiles or small configs of each architecture, and what of ``gguf_headers`` writes such a model's header."""

_UNSAID_LENGTH = frozenset({"chatglm", "falcon", "falcon-h1", "mamba", "mamba2", "mpt", "bloom", "qwen"})
"""Converters that write a length of their own, or another one than the config's."""


_FILLED: dict[str, Config] = {
    "Cohere2MoeForCausalLM": {
        "head_dim": 128,
        "layer_types": ["sliding_attention"] * 7 + ["full_attention"],
        "first_k_dense_replace": 2,
        "prefix_dense_intermediate_size": 48,
    },
    "Ernie4_5ForCausalLM": {"head_dim": 128},
    "gemma-3n-e4b": {"vocab_size_per_layer_input": 262400},
    "Gemma4ForCausalLM": {"layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 2},
    "glm-4.7-flash": {"first_k_dense_replace": 1},
    "paddleocr-vl": {"head_dim": 128},
    "PanguEmbeddedForCausalLM": {"sandwich_norm": False},
}
"""What the config's class in transformers fills in before a converter reads it, and what a converter changes.

Gemma 3n's table of embeddings is filled up to the whole vocabulary; openPangu's further norms have no converter.
"""


def _config(name: str) -> Config:
    profile = find_profile(name)
    config: Config = _SMALL[name] if profile is None else profile["config"]
    return {key: value for key, value in config.items() if key != "quantization_config"} | _FILLED.get(name, {})


def _with_biases(header: Header, spec: ModelSpec) -> None:
    """The tensors that every converter writes where the model has them, by the names of the config's reader."""
    names = {tensor.name for layer in spec.layers[:8] for tensor in layer.all_tensors}
    last = header.blocks - 1
    if any(name.endswith(("q_proj.bias", "qkv_proj.bias")) for name in names):
        header.block(last, "attn_q.bias")
    if any(name.endswith("o_proj.bias") for name in names):
        header.block(last, "attn_output.bias")
    if any(name.endswith("up_proj.bias") for name in names):
        header.block(last, "ffn_up.bias")
    if any(tensor.name == "lm_head.bias" for tensor in spec.tensors):
        header.shapes["output.bias"] = (8,)


def _written(path: Path, architecture: str, config: Config, writers: tuple[Writer, ...]) -> ModelSpec:
    expected = read_config(config, model_id="expected")
    header = Header(path, architecture, config)
    for write in writers:
        write(header)
    _with_biases(header, expected)
    if not expected.tie_word_embeddings:
        header.untie()
    header.close()
    return expected


def _kept(layer: LayerSpec) -> tuple[Any, ...]:
    """What a layer keeps and computes, without the names of its weights."""
    parts = (layer.mixer, layer.parallel_state, layer.cross_attention, layer.feed_forward)
    return tuple(None if part is None else replace(part, tensors=()) for part in parts)


def _drafting(architecture: str, expected: ModelSpec) -> list[str]:
    """The layers for multi-token prediction, where the converter writes them."""
    kinds = [extra.kind for extra in expected.extras]
    return [kind for kind in kinds if kind == "multi_token_prediction" and _MTP_WRITTEN[architecture]]


_MTP_WRITTEN = {
    name: name in ("exaone-moe", "glm-dsa", "glm4moe", "qwen35", "qwen35moe", "nemotron_h_moe") for name in CASES
}


@pytest.mark.parametrize(
    ("architecture", "name"), [(architecture, name) for architecture, (names, _) in CASES.items() for name in names]
)
def test_a_file_is_the_model_of_its_config(tmp_path: Path, architecture: str, name: str) -> None:
    config = _config(name)
    path = tmp_path / "model.gguf"
    expected = _written(path, architecture, config, CASES[architecture][1])
    found = resolve_model(str(path))
    assert [_kept(layer) for layer in found.layers] == [_kept(layer) for layer in expected.layers]
    assert found.num_parameters == expected.num_parameters
    assert found.num_active_parameters == expected.num_active_parameters
    assert (found.hidden_size, found.vocab_size) == (expected.hidden_size, expected.vocab_size)
    assert [extra.kind for extra in found.extras] == _drafting(architecture, expected)
    if architecture not in _UNSAID_LENGTH and architecture != "granitehybrid":
        assert found.max_position_embeddings == expected.max_position_embeddings


def test_blocks_for_multi_token_prediction_are_no_layers(tmp_path: Path) -> None:
    """They are counted apart from the model's weights, as those of a checkpoint are."""
    path = tmp_path / "model.gguf"
    expected = _written(path, "glm4moe", _config("glm-4.5-air"), CASES["glm4moe"][1])
    found = resolve_model(str(path))
    assert found.num_layers == expected.num_layers == 46
    assert [extra.num_parameters for extra in found.extras] == [extra.num_parameters for extra in expected.extras] != []
    assert found.checkpoint is not None
    assert sum(each.num_elements for each in found.checkpoint.multi_token) == 8
    assert not any(each.name.startswith("blk.46.") for each in found.checkpoint.tensors)


def test_a_latent_of_an_older_file_has_the_heads_own_sizes(tmp_path: Path) -> None:
    """Until 2025 the key length was that of the heads: 128 elements and 64 that turn."""

    def older(header: Header) -> None:
        headers.deepseek2(header)
        get = header.get
        for kept in header.writer.kv_data:
            for name in ("key_length_mla", "value_length_mla"):
                kept.pop(f"deepseek2.attention.{name}", None)
        header.writer.add_head_count_kv(get("num_attention_heads"))
        header.writer.add_key_length(get("qk_nope_head_dim") + get("qk_rope_head_dim"))
        header.writer.add_value_length(get("v_head_dim"))

    path = tmp_path / "model.gguf"
    expected = _written(path, "deepseek2", _config("deepseek-v3"), (headers.text_model, older))
    assert [_kept(layer) for layer in resolve_model(str(path)).layers] == [_kept(layer) for layer in expected.layers]


def test_a_linear_layer_in_place_of_attention_is_refused(tmp_path: Path) -> None:
    def linear(header: Header) -> None:
        headers.decilm(header)
        header.writer.add_head_count([header.get("num_attention_heads")] * header.blocks)

    path = tmp_path / "model.gguf"
    _written(path, "deci", _config("llama-3.3-nemotron-super-49b"), (linear,))
    with pytest.raises(KvplanError, match="replace_with_linear"):
        resolve_model(str(path))


@pytest.mark.parametrize("architecture", sorted(OWN_KEYS))
def test_a_value_of_another_kind_is_refused_or_read(tmp_path: Path, architecture: str) -> None:
    """A damaged key is an error that names a key, or one that nothing asks for; never a crash."""
    (name, *_), writers = CASES[architecture]
    path = tmp_path / "model.gguf"
    _written(path, architecture, _config(name), writers)
    header = read_gguf_header(path)
    for key in [key for key in header.metadata if key.startswith(architecture)]:
        for value in ("x", [0], -1):
            damaged = GgufHeader({**header.metadata, key: value}, header.tensors)
            try:
                read_config(gguf_config(damaged), model_id="damaged")
            except KvplanError as error:
                assert "'" in str(error)


def test_every_architecture_of_the_table_has_a_case_and_is_on_the_page() -> None:
    assert not set(CASES) ^ set(by_gguf_name()), (
        '"gguf" of a row without a case in gguf_families.json, or the other way round'
    )
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    assert f"{len(CASES)} names of `general.architecture`" in page
    assert [name for name in CASES if f"`{name}`" not in page] == []
    known = set(gguf.MODEL_ARCH_NAMES.values()) | {"cohere2moe", "deepseek4"}
    assert set(by_gguf_name()) <= known
