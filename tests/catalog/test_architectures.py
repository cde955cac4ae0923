"""The table of architectures: typed when loaded, a misspelt key fails at once, every reader exists."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from small_configs import small_configs

from architecture_rows import TABLE, table_text, with_ways
from kvplan.catalog.architectures import architectures, by_gguf_name, of_type, rows_of
from kvplan.catalog.reader import read_config
from kvplan.catalog.registry import find_reader, known_architectures, reader_of
from kvplan.catalog.typed_json import FactError

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
