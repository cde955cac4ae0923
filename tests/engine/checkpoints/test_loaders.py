"""Which loader ``load_format`` takes for a source, and what it says about one that does not fit."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tiny_configs import gpt2_config, llama_config

from kvplan_engine import EngineError
from kvplan_engine.checkpoints.families import family_of
from kvplan_engine.checkpoints.loaders import load_weights, read_config
from kvplan_engine.checkpoints.parameters import stored_parameters
from kvplan_engine.checkpoints.weights import Weights, allocate_weights, weight_fingerprint

CONFIG = gpt2_config(n_embd=16, n_head=2, n_layer=1, n_positions=8, vocab_size=20)
MODEL = read_config(CONFIG)


def _empty_weights() -> Weights:
    return allocate_weights(MODEL, torch.float32, torch.device("cpu"))


def _published(prefix: str = "") -> dict[str, torch.Tensor]:
    """Random tensors under a checkpoint's names."""
    torch.manual_seed(0)
    tensors = {}
    names = family_of(MODEL.architecture).names
    assert names is not None
    for parameter in stored_parameters(MODEL, names):
        for source in parameter.sources:
            shape = (source.num_rows, *parameter.shape[1:])
            tensors[prefix + source.name] = torch.randn(tuple(reversed(shape)) if source.transposed else shape)
    return tensors


@pytest.mark.parametrize("prefix", ["", "transformer."])
@pytest.mark.parametrize("load_format", ["auto", "safetensors"])
def test_safetensors_with_and_without_a_prefix(tmp_path: Path, prefix: str, load_format: str) -> None:
    tensors = _published(prefix)
    save_file(tensors, tmp_path / "model.safetensors")
    weights = _empty_weights()
    assert not load_weights(weights, MODEL, str(tmp_path), load_format, seed=0)
    assert torch.equal(weights["embedding.weight"], tensors[f"{prefix}wte.weight"])
    assert torch.equal(weights["layers.0.qkv.weight"], tensors[f"{prefix}h.0.attn.c_attn.weight"].t())


def test_auto_without_weights_is_dummy_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one, other = _empty_weights(), _empty_weights()
    assert load_weights(one, MODEL, str(tmp_path), "auto", seed=0)
    assert "no weights found: they are random numbers" in caplog.text
    assert load_weights(other, MODEL, CONFIG, "dummy", seed=0)
    assert weight_fingerprint(one) == weight_fingerprint(other)
    assert (one["layers.0.mlp_norm.weight"] == 1).all()


@pytest.mark.parametrize(
    ("load_format", "message"),
    [("gguf", "load_format 'gguf' needs a .gguf file"), ("safetensors", "needs a directory with safetensors")],
)
def test_a_source_that_does_not_fit_is_refused(tmp_path: Path, load_format: str, message: str) -> None:
    for source in (CONFIG, str(tmp_path / "config.json")):
        with pytest.raises(EngineError, match=message):
            load_weights(_empty_weights(), MODEL, source, load_format, seed=0)


def test_a_directory_without_weights(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="holds no safetensors"):
        load_weights(_empty_weights(), MODEL, tmp_path, "safetensors", seed=0)


def test_tensors_that_do_not_fit_are_named(tmp_path: Path) -> None:
    tensors = _published()
    tensors["h.0.mlp.c_fc.weight"] = torch.zeros(3, 3)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(EngineError, match=r"'h.0.mlp.c_fc.weight' .* has shape \[3, 3\], the config says \[64, 16\]"):
        load_weights(_empty_weights(), MODEL, tmp_path, "auto", seed=0)
    del tensors["h.0.mlp.c_fc.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(EngineError, match=r"holds no tensor 'h.0.mlp.c_fc.weight'"):
        load_weights(_empty_weights(), MODEL, tmp_path, "auto", seed=0)


def test_a_gguf_of_another_architecture_is_refused(tmp_path: Path) -> None:
    from gguf import GGUFWriter

    path = tmp_path / "model.gguf"
    writer = GGUFWriter(str(path), "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(EngineError, match=r"model.gguf is a GGUF of architecture 'mamba'") as caught:
        read_config(str(path))
    assert caught.value.hint == (
        "it loads gemma2, gemma3, gpt-oss, granite, llama, olmo2, olmoe, phi3, qwen2, qwen2moe, qwen3, qwen3moe"
    )


@pytest.mark.parametrize(
    ("index", "says"),
    [
        ("{", "is not a readable model.safetensors.index.json"),
        ("[]", "does not hold a JSON object"),
        ("[" * 100_000, "it is nested too deep"),
        ('{"weight_map": {"a": ' + "9" * 5000 + "}}", "is not a readable"),
        ('{"weight_map": []}', "names no weight files beside it"),
        ('{"weight_map": {"a": 7}}', "names no weight files beside it"),
        ('{"weight_map": {"a": ["model.safetensors"]}}', "names no weight files beside it"),
        ('{"weight_map": {"a": "../model.safetensors"}}', "names no weight files beside it"),
    ],
    ids=["cut off", "list", "deep", "digits", "no map", "number", "lists", "elsewhere"],
)
def test_a_damaged_index_is_one_sentence(tmp_path: Path, index: str, says: str) -> None:
    save_file(_published(), str(tmp_path / "model.safetensors"))
    (tmp_path / "model.safetensors.index.json").write_text(index, encoding="utf-8")
    with pytest.raises(EngineError, match=says):
        load_weights(_empty_weights(), MODEL, tmp_path, "auto", 0)


@pytest.mark.parametrize("header", [b"[]", b'{"a": 1}', b'{"a": {"dtype": []}}', b"[" * 100_000, b"9" * 5000])
def test_a_damaged_header_tells_no_dtype(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert read_config(tmp_path).dtype == "float32"
    with pytest.raises(EngineError, match="holds a damaged safetensors file"):
        load_weights(_empty_weights(), MODEL, tmp_path, "auto", 0)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "model.safetensors.index.json"])
def test_what_is_no_regular_file_is_not_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    save_file(_published(), str(tmp_path / "model.safetensors"))
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(EngineError, match=f"{name} is not a regular file"):
        load_weights(_empty_weights(), read_config(tmp_path), tmp_path, "auto", 0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 100_000, "nested too deep"),
        ("[" * 101 + "]" * 101, "nested too deep"),
        ('{"a": "\\ud800"}', "surrogate"),
        ('{"vocab_size": ' + "9" * 5000 + "}", "digits"),
        ("[]", "does not hold a JSON object"),
    ],
    ids=["deep", "lists", "half a character", "digits", "list"],
)
def test_a_config_that_is_no_config_is_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(EngineError, match=says):
        read_config(tmp_path)


LLAMA = llama_config(num_hidden_layers=1, num_attention_heads=2, vocab_size=20, rms_norm_eps=1e-06)


@pytest.mark.parametrize("size", [float("inf"), float("nan"), "many", [1], {"a": 1}, 10**400], ids=range(6))
def test_sizes_that_are_none_are_one_sentence(size: object) -> None:
    with pytest.raises(EngineError, match="is malformed"):
        read_config({**LLAMA, "num_attention_heads": size})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_attention_heads", -2),
        ("num_key_value_heads", -1),
        ("head_dim", -32),
        ("hidden_size", -64),
        ("intermediate_size", 0),
        ("vocab_size", -20),
        ("rope_theta", float("inf")),
        ("rope_theta", -1.0),
    ],
)
def test_sizes_below_1_are_one_sentence(key: str, value: float) -> None:
    with pytest.raises(EngineError, match=f"is malformed: its '{key}' is {value}"):
        read_config({**LLAMA, key: value})
