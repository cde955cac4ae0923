"""Mistakes on a command line or in a file: one sentence, a hint that works when followed, and the exit code."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from data_rows import data_rows

from kvplan.cli import main
from kvplan.errors import UsageError
from kvplan.list_words import with_named_model


def test_a_config_that_is_no_text(tmp_path: Path, ran: Callable[..., tuple[int, str, str]]) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"\xff\xfe\x00")
    code, _, error = ran(f"estimate {path}")
    assert code == 1 and f"error: {path} is not text in UTF-8." in error and "hint: " in error


@pytest.mark.parametrize(("count", "sizes"), [(3, ["2", "4"]), (64, ["32"])])
def test_heads_that_do_not_divide_come_with_sizes_that_do(
    count: int, sizes: list[str], ran: Callable[..., tuple[int, str, str]]
) -> None:
    code, _, error = ran(f"estimate llama-3.1-8b --gpu {count}xh100 --ctx 1k")
    assert code == 2
    assert re.findall(r"\d+", error.partition("divides the heads:")[2]) == sizes
    for size in sizes:
        assert ran(f"estimate llama-3.1-8b --gpu {size}xh100 --ctx 1k --format csv")[0] == 0


@pytest.mark.parametrize("given", ["foo=1", "num_kv_heads=4", "num_key_value_heads=8"])
def test_an_assumption_that_changes_nothing_is_said_to(given: str, ran: Callable[..., tuple[int, str, str]]) -> None:
    """A mistyped key, and what the config says anyway."""
    _, out, _ = ran(f"estimate llama-3.1-8b --gpu h100 --ctx 1k --assume {given}")
    assert f"--assume {given} changes nothing of what is sized." in out


def test_an_assumption_that_the_size_rests_on_is_said_to_be_one(ran: Callable[..., tuple[int, str, str]]) -> None:
    _, out, _ = ran("estimate llama-3.1-8b --gpu h100 --ctx 1k --assume num_key_value_heads=4")
    assert "'num_key_value_heads' = 4, because --assume says so." in out and "changes nothing" not in out


def test_architectures_are_searched_and_have_formats(ran: Callable[..., tuple[int, str, str]]) -> None:
    assert ran("models --architectures qwen3moe")[1].split() == ["Qwen3MoeForCausalLM"]
    assert ran("models --architectures qwen3moe --format csv")[1].split() == [
        "architecture",
        "Qwen3MoeForCausalLM",
    ]
    assert "| Qwen3MoeForCausalLM |" in ran("models --architectures qwen3moe --format md")[1]
    assert json.loads(ran("models --architectures qwen3moe --json")[1])["architectures"] == ["Qwen3MoeForCausalLM"]


def test_a_slice_of_a_gpu_is_found(ran: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = ran("gpus h100-3g.40gb --format csv")
    assert code == 0 and len(out.splitlines()) == 2


def test_a_user_without_a_home_is_no_mistake(
    monkeypatch: pytest.MonkeyPatch, ran: Callable[..., tuple[int, str, str]]
) -> None:
    """As in a container that runs under a number of its own."""

    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nowhere)
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "KVPLAN_PROFILES_DIR", "KVPLAN_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    code, printed, _ = ran("estimate gpt2 --gpu l4")
    assert code == 0
    assert "124,439,808 parameters" in printed


def test_a_drafter_that_does_not_fit_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    words = "llama-3.1-8b --speculative-model llama-3.1-70b --num-speculative-tokens 3 --gpu h100 --ctx 8k"
    assert main(["estimate", *words.split()]) == 1
    printed = capsys.readouterr()
    assert "with llama-3.1-70b as its drafter does not fit on h100-sxm" in printed.err
    assert "hint: use no drafter, or --gpu 4xh100-sxm" in printed.err
    assert "3 draft tokens per step: 131.42 GiB of weights per GPU" in printed.out


def test_of_several_the_nearest_is_named(said_by: Callable[..., str]) -> None:
    words = "llama-3.1-405b llama-3.1-70b --gpu l4 t4"
    said = said_by("estimate", *words.split(), code=1)
    assert "None of these deployments fits." in said
    assert "hint: nearest is meta-llama/Llama-3.1-70B on l4: use --gpu 16xl4" in said


DRY = ("--dry-run", "--max-num-seqs", "2", "--max-model-len", "64", "--block-size", "16", "--num-prompts", "2",
       "--input-len", "8", "--output-len", "4", "--gpu-memory-utilization", "0.9", "--load-format", "none",
       "--device-memory", "2GiB")  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        ("estimate", "--gpu", "l4", "--json"),
        ("plan", "--users", "2", "--ctx-avg", "100", "--gpu", "l4", "--json"),
        ("sweep", *DRY),
    ],
    ids=lambda words: words[0],
)
def test_both_ways_say_the_same(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    answers = []
    command, *options = words
    for written in ([command, "gpt2", *options], [command, *options, "--model", "gpt2"],
                    [command, "--model=gpt2", *options]):  # fmt: skip
        assert main(written) == 0, capsys.readouterr().err
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1] == answers[2] != ""


def test_an_option_named_model_behind_the_dashes_is_the_pasted_commands() -> None:
    assert with_named_model(["estimate", "--", "vllm", "serve", "--model", "x"]) == [
        "estimate", "--", "vllm", "serve", "--model", "x",
    ]  # fmt: skip
    assert with_named_model(["estimate", "a", "--model", "b", "--ctx", "8k"]) == ["estimate", "b", "a", "--ctx", "8k"]
    for words in (["plan", "--model"], ["plan", "--model", "--json"], ["plan", "--model="]):
        with pytest.raises(UsageError, match="--model has no value"):
            with_named_model(words)


@pytest.mark.parametrize("row", data_rows("refused_commands"), ids=lambda row: row["command"][:60])
def test_a_mistake_is_one_sentence_and_a_hint(row: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(row["command"])) == row.get("code", 2)
    printed = capsys.readouterr()
    error, *hints = printed.err.splitlines()
    assert error.startswith("error: ") and row.get("error", "") in error
    assert "whole" not in row or error == f"error: {row['whole']}"
    wanted = row.get("hint", "")
    assert [hint.startswith("hint: ") and wanted in hint for hint in hints] == [True] * (wanted is not None)
    assert bool(printed.out) == row.get("shown", False)
    assert "enough" not in row or main(shlex.split(row["enough"])) == 0
