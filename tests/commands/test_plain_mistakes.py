"""Mistakes that are easy to make on a command line or in a file: one sentence, and a hint that works when followed."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from kvplan.cli import main


def run(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(shlex.split(words))
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_a_config_that_is_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"\xff\xfe\x00")
    code, _, error = run(f"estimate {path}", capsys)
    assert code == 1 and f"error: {path} is not text in UTF-8." in error and "hint: " in error


def test_fewer_gpus_than_one(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, error = run("estimate llama-3.1-8b --gpu -1xh100", capsys)
    assert code == 2 and "'-1xh100' names no GPU: the count must be at least 1." in error


def test_a_device_of_one_byte(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, error = run("estimate gpt2 --gpu cpu --engine kvplan --device-memory 1B", capsys)
    assert code == 1 and "does not fit on cpu" in error and "hint: " in error


@pytest.mark.parametrize(("count", "sizes"), [(3, ["2", "4"]), (64, ["32"])])
def test_heads_that_do_not_divide_come_with_sizes_that_do(
    count: int, sizes: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, error = run(f"estimate llama-3.1-8b --gpu {count}xh100 --ctx 1k", capsys)
    assert code == 2
    assert re.findall(r"\d+", error.partition("divides the heads:")[2]) == sizes
    for size in sizes:
        assert run(f"estimate llama-3.1-8b --gpu {size}xh100 --ctx 1k --format csv", capsys)[0] == 0


@pytest.mark.parametrize("given", ["foo=1", "num_kv_heads=4", "num_key_value_heads=8"])
def test_an_assumption_that_changes_nothing_is_said_to(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistyped key, and what the config says anyway."""
    _, out, _ = run(f"estimate llama-3.1-8b --gpu h100 --ctx 1k --assume {given}", capsys)
    assert f"--assume {given} changes nothing of what is sized." in out


def test_an_assumption_that_the_size_rests_on_is_said_to_be_one(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run("estimate llama-3.1-8b --gpu h100 --ctx 1k --assume num_key_value_heads=4", capsys)
    assert "'num_key_value_heads' = 4, because --assume says so." in out and "changes nothing" not in out


def test_architectures_are_searched_and_have_formats(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("models --architectures qwen3moe", capsys)[1].split() == ["Qwen3MoeForCausalLM"]
    assert run("models --architectures qwen3moe --format csv", capsys)[1].split() == [
        "architecture",
        "Qwen3MoeForCausalLM",
    ]
    assert "| Qwen3MoeForCausalLM |" in run("models --architectures qwen3moe --format md", capsys)[1]
    assert json.loads(run("models --architectures qwen3moe --json", capsys)[1])["architectures"] == [
        "Qwen3MoeForCausalLM"
    ]
    assert run("models --architectures zzz", capsys)[1:] == ("", "note: no architecture's name contains 'zzz'.\n")


def test_a_user_without_a_home_is_no_mistake(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a container that runs under a number of its own."""

    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nowhere)
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "KVPLAN_PROFILES_DIR", "KVPLAN_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    code, printed, _ = run("estimate gpt2 --gpu l4", capsys)
    assert code == 0
    assert "124,439,808 parameters" in printed
