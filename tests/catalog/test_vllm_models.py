"""Architectures that vLLM serves no longer, or never did: a note wherever they are sized for it."""

from __future__ import annotations

import json

import pytest

from kvplan.catalog.releases.vllm import latest_vllm
from kvplan.catalog.vllm_models import has_class, service_note
from kvplan.cli import main

LAST = "the last release that does is 0.28.0 (--engine vllm@0.28.0)."
NOTE = f"vLLM {latest_vllm()} no longer serves MPTForCausalLM; {LAST}"


@pytest.mark.parametrize(
    ("architecture", "version", "is_served"),
    [
        ("MPTForCausalLM", "0.28.0", True),
        ("MPTForCausalLM", "0.29.0", False),
        ("MllamaForConditionalGeneration", "0.10.2", True),
        ("MllamaForConditionalGeneration", "0.11.0", False),
        ("T5ForConditionalGeneration", "0.10.2", False),
        ("WhisperForConditionalGeneration", "latest", True),
        ("LlamaForCausalLM", "latest", True),
    ],
)
def test_a_note_from_the_first_release_without_it(architecture: str, version: str, is_served: bool) -> None:
    assert has_class(architecture, version) is is_served
    assert (service_note(architecture, version) is None) is is_served


@pytest.mark.parametrize("words", ["estimate mpt-7b --gpu h100", "plan mpt-7b --users 4 --ctx-avg 1k --gpu h100"])
def test_both_commands_say_it(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words.split(), "--json"]) == 0
    printed = capsys.readouterr()
    assert f"note: {NOTE}" in printed.err and NOTE in json.loads(printed.out)["assumptions"]
    assert main([*words.split(), "--engine", "vllm@0.28"]) == 0
    assert "no longer serves" not in capsys.readouterr().err


def test_of_other_engines_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "mpt-7b", "--gpu", "h100", "--engine", "kvplan"]) == 0
    assert "no longer serves" not in capsys.readouterr().err
