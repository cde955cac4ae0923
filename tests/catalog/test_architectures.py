"""The table of architectures: typed when loaded, every reader exists. Shipped configs say where they were read."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from small_configs import small_configs

from architecture_rows import TABLE, table_text, with_ways
from kvplan.catalog.architectures import architectures, by_gguf_name, of_type, rows_of
from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import LOG_ONLY, profiles, provenance_note, read_profile, resolve_model
from kvplan.catalog.reader import read_config
from kvplan.catalog.registry import find_reader, known_architectures, reader_of
from kvplan.catalog.typed_json import FactError
from kvplan.estimate.vllm.prediction import predict_vllm
from kvplan.settings import ServingSettings
from kvplan.units import GIB

ROWS: list[dict[str, Any]] = [
    {"architecture": "A", "reader": "softmax.plain:read_plain", "family": "LlamaForCausalLM", "model_types": ["a"]},
    {"architecture": "B", "reader": "wrappers.multimodal:read_multimodal", "text_model": "A", "gguf": ["b"]},
]


def test_a_row_has_the_defaults_of_what_it_leaves_out() -> None:
    first, second = rows_of(ROWS).values()
    assert (first.native, first.transformers, first.gguf, first.vllm.last) == (False, None, (), None)
    assert second.is_wrapper and not first.is_wrapper


@pytest.mark.parametrize(
    ("index", "change", "said"),
    [
        (0, {"reeder": "x"}, "'A': no row has a key 'reeder'"),
        (0, {"native": 1}, "'A': 'native' is 1, which is no bool"),
        (0, {"model_types": "a"}, "'A': 'model_types' is 'a', which is no list[str]"),
        (0, {"transformers": "slowly"}, "'A': 'transformers' is 'slowly'"),
        (0, {"vllm": {"until": "0.1.0"}}, "'A' and vLLM: no row has a key 'until'"),
        (0, {"vllm": {"last": 0.1}}, "'A' and vLLM: 'last' is 0.1, which is no str | null"),
        (0, {"text_model": "B"}, "'A' has the text model 'B', which has no row, or is no wrapper"),
        (1, {"text_model": "C"}, "'B' has the text model 'C'"),
        (1, {"architecture": "A"}, "'A' stands twice, or not in the order of names"),
        (1, {"model_types": ["a"]}, "'a' of model_types is both A and B"),
        (1, {"reader": None}, "'B': 'reader' is None, which is no str"),
    ],
)
def test_a_wrong_row_fails_at_once(index: int, change: dict[str, Any], said: str) -> None:
    rows = copy.deepcopy(ROWS)
    rows[index].update(change)
    with pytest.raises(FactError) as raised:
        rows_of(rows)
    assert said in str(raised.value)


def test_a_row_without_a_reader_fails_at_once() -> None:
    with pytest.raises(FactError, match="'C' has no 'reader'"):
        rows_of([*ROWS, {"architecture": "C"}])


def test_every_row_has_a_reader_that_exists() -> None:
    """A function of the module that it names, or one with a row of that module's families."""
    assert all(callable(reader_of(row)) for row in architectures().values())
    assert known_architectures() == tuple(sorted(architectures()))
    assert find_reader("WizardForCausalLM") is None


def test_a_row_whose_family_no_module_has_is_named() -> None:
    row = replace(architectures()["MixtralForCausalLM"], architecture="C", family="D")
    with pytest.raises(FactError, match=r"'C' is read by 'D', which FAMILIES of kvplan.*mixtures lacks"):
        reader_of(row)


def test_a_type_and_a_name_of_a_file_stand_for_one_architecture() -> None:
    found = of_type("qwen3_vl_text")
    assert found is not None and found.architecture == "Qwen3ForCausalLM"
    assert by_gguf_name()["qwen3"].architecture == "Qwen3ForCausalLM"


def test_a_config_that_names_a_type_alone_is_read_as_its_class() -> None:
    """Of a model that sees too, whose type decides which language model it holds."""
    small = small_configs()
    for name in ("OrionForCausalLM", "MiniCPMV"):
        config = small[name]
        typed = {key: value for key, value in config.items() if key != "architectures"}
        assert read_config(typed, model_id="a").layers == read_config(config, model_id="a").layers


def test_the_file_has_a_line_for_each_row() -> None:
    """As the tool writes it, which changes nothing but how an architecture runs in transformers."""
    text = TABLE.read_text(encoding="utf-8")
    document = json.loads(text)
    assert table_text(document) == text
    ways = {row["architecture"]: row["transformers"] for row in document["architectures"] if "transformers" in row}
    assert with_ways(text, ways) == text
    slower = with_ways(text, ways | {"LlamaForCausalLM": "one sequence after the other"})
    assert [new for old, new in zip(text.splitlines(), slower.splitlines(), strict=True) if old != new] == [
        line.replace("all sequences in one forward pass", "one sequence after the other")
        for line in text.splitlines()
        if '"architecture": "LlamaForCausalLM"' in line
    ]


_PACKAGE = re.compile(
    r"aiconfigurator-core \d+\.\d+\.\d+|litgpt \d+\.\d+\.\d+|defaults of \w+ in transformers \d+\.\d+"
)
_REPOSITORY_FILE = re.compile(r"github\.com/[\w.-]+/[\w.-]+, [\w./-]+\.\w+ at [0-9a-f]{40}")
_HUB_FILE = re.compile(r"huggingface\.co/[\w.-]+/[\w.-]+, [\w./-]+\.json at [0-9a-f]{7,40}")
_ROW = re.compile(r"row [A-Z]\d{3}")


@pytest.mark.parametrize("profile", list(profiles()), ids=lambda profile: profile["name"])
def test_every_profile_is_honest_about_its_source(profile: dict[str, str]) -> None:
    """A package and its version, or a file of a repository at a commit: an address alone is not enough."""
    source = profile["source"]
    assert "not read" not in source
    if source.startswith(LOG_ONLY):
        assert _ROW.search(source), source
    else:
        assert any(pattern.search(source) for pattern in (_PACKAGE, _REPOSITORY_FILE, _HUB_FILE)), source
    note = provenance_note(read_profile(profile))
    assert (note is not None) == source.startswith(LOG_ONLY)


@pytest.mark.parametrize(
    "source",
    [
        "https://huggingface.co/openai-community/gpt2/blob/main/config.json",
        "https://huggingface.co/bigscience/bloom/blob/main/config.json (176 B parameters)",
        "github.com/someone/something",
        "as in litgpt",
    ],
)
def test_an_address_or_a_name_alone_is_no_source(source: str) -> None:
    assert not any(pattern.search(source) for pattern in (_PACKAGE, _REPOSITORY_FILE, _HUB_FILE))


def test_sizes_that_rest_on_a_log_are_those_of_the_log() -> None:
    """The profiles without a config of their own: bytes of KV cache per token as the log's figures give them."""
    logged = {"granite-3.3-8b": 163_841, "kimi-dev-72b": 327_680, "qwen3-coder-30b-a3b": 98_274}
    logged |= {"llama-3.3-70b-instruct-fp8-dynamic": 327_669, "zephyr-7b-beta": 131_147}
    rest = [profile for profile in profiles() if profile["source"].startswith(LOG_ONLY)]
    weights_gib = {"qwen3.5-0.8b": 1.72, "gemma-4-e2b-qat-w4a16": 8.01, "gemma-4-e4b-qat-w4a16": 9.81}
    found_since = {"qwen3.5-0.8b"}
    assert {profile["name"] for profile in rest} == logged.keys() | (weights_gib.keys() - found_since)
    for name, printed in weights_gib.items():
        found = predict_vllm(resolve_model(name), find_gpu("l4"), ServingSettings(max_model_len=8192), "0.29.0")
        assert found.rank.weight_bytes / GIB == pytest.approx(printed, rel=0.01)
    for profile in (each for each in rest if each["name"] in logged):
        layers = read_profile(profile).layers
        elements = sum(layer.mixer.cache_elements_per_token for layer in layers)  # type: ignore[union-attr]
        assert 2 * elements == pytest.approx(logged[profile["name"]], rel=1e-3)


def test_the_note_reaches_the_user_on_stderr() -> None:
    command = [sys.executable, "-m", "kvplan", "estimate"]
    logged = subprocess.run([*command, "kimi-dev-72b", "--json"], capture_output=True, text=True, check=True)
    assert logged.stderr.startswith("note: kvplan's profile of moonshotai/Kimi-Dev-72B: shape confirmed by what vLLM")
    read = subprocess.run([*command, "llama-3.1-8b", "--json"], capture_output=True, text=True, check=True)
    assert read.stderr == ""
