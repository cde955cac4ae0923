"""A shipped config says where it was read, or which start-up log its sizes agree with, and then a note goes with it."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import LOG_ONLY, profiles, provenance_note, read_profile, resolve_model
from kvplan.estimate.vllm.prediction import predict_vllm
from kvplan.settings import ServingSettings
from kvplan.units import GIB

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
    assert {profile["name"] for profile in rest} == logged.keys() | weights_gib.keys()
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
