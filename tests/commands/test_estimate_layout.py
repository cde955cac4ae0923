"""``kvplan estimate --engine kvplan``: every profile has a size, and the layout of unlike layers is shown."""

from __future__ import annotations

import json

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.cli import main
from kvplan.commands.printing.kv_layout import layout_lines
from kvplan.estimate.deployments import place
from kvplan.estimate.kv_cache import CacheSettings
from kvplan.estimate.kvplan.layout import plan_layout
from kvplan.paths import profiles_dir
from kvplan.settings import ServingSettings


def explained(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["estimate", *arguments, "--engine", "kvplan", "--gpu", "h200", "--explain"]) == 0
    return capsys.readouterr().out


def test_windows_and_full_layers_share_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    lines = explained(capsys, "gemma-3-27b", "--ctx", "8k").splitlines()
    first = next(index for index, line in enumerate(lines) if "paged:" in line)
    assert [line.strip() for line in lines[first : first + 4]] == [
        "paged: 3,413 blocks in 2 groups x 327,680 B = 1,118,371,840 B, 1.0 % over logical",
        "blocks of 327,680 B = 320.00 KiB, in bundles for 16 tokens:",
        "all tokens:         512 x 4 blocks  0.0 % empty",
        "last 1,024 tokens:  65 x 21 blocks  1.0 % empty",
    ]
    assert "blocks of 320.00 KiB" in lines[-1 - next(i for i, line in enumerate(reversed(lines)) if "budget" in line)]


def test_states_take_blocks_of_the_same_pool(capsys: pytest.CaptureFixture[str]) -> None:
    out = explained(capsys, "qwen3.5-27b", "--ctx", "8k")
    assert "in bundles for 16 tokens, or for a state:" in out
    assert "states:      1 x 147 blocks" in out


def test_one_kind_of_layers_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "blocks of 2,097,152 B = 2.00 MiB: all layers of 16 tokens" in explained(capsys, "llama-3.1-8b")


def test_chunks_are_named() -> None:
    lines = layout_lines(plan_layout(resolve_model("llama-4-scout"), CacheSettings(), 16), 32_768)
    assert lines[1:] == [
        "  all tokens:             2,048 x 1 block  0.0 % empty",
        "  chunk of 8,192 tokens:  513 x 3 blocks   0.0 % empty",
    ]


def test_the_document_names_the_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "gpt-oss-20b", "--engine", "kvplan", "--gpu", "h200", "--format", "json"]) == 0
    layout = json.loads(capsys.readouterr().out)["kv_cache"]["layout"]
    assert (layout["block_size"], layout["block_bytes"]) == (16, 384 * 1024)
    assert [(each["kept"], each["kept_tokens"], each["width"]) for each in layout["groups"]] == [
        ("full", None, 1),
        ("window", 128, 1),
    ]
    assert main(["estimate", "gpt-oss-20b", "--gpu", "h200", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["kv_cache"]["layout"] is None  # vLLM has groups of its own


def test_every_profile_is_placed() -> None:
    """No architecture is refused; what does not fit one H200 says what is missing."""
    engine, gpu = EngineChoice("kvplan"), find_gpu("h200")
    settings = ServingSettings(max_model_len=256)
    names = sorted(file.stem for file in (profiles_dir() / "models").glob("*.json"))
    for name in names:
        found = place(resolve_model(name), gpu, engine, settings).deployment
        assert found.fits == (found.limit is None), name
        assert not found.fits or (found.num_blocks > 0 and found.kv_cache_tokens >= 256), name


def test_a_window_beyond_which_nothing_is_kept_lets_more_sequences_in(capsys: pytest.CaptureFixture[str]) -> None:
    engine, gpu = EngineChoice("kvplan"), find_gpu("h200")
    settings = ServingSettings(max_model_len=32_768, max_num_batched_tokens=2048)
    mistral, longer = (place(resolve_model(name), gpu, engine, settings).deployment for name in (
        "mistral-7b-v0.1", "llama-3.1-8b"))  # fmt: skip
    # 257 blocks of 16 tokens hold a window of 4,096, whatever the sequence's length
    assert mistral.max_concurrency == mistral.num_blocks / 257
    assert mistral.kv_cache_tokens == mistral.num_blocks * 32_768 // 257
    assert longer.kv_cache_tokens == longer.num_blocks * 16
