"""MODEL as an argument and as --model, in every command that has one."""

from __future__ import annotations

import pytest

from kvplan.cli import main
from kvplan.errors import UsageError
from kvplan.list_words import with_named_model

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


@pytest.mark.parametrize("command", ["sweep", "bench"])
def test_two_models_are_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "gpt2", "--model", "llama-3.1-8b"]) == 2
    assert "Two models are given: gpt2, and --model llama-3.1-8b." in capsys.readouterr().err


def test_an_option_named_model_behind_the_dashes_is_the_pasted_commands() -> None:
    assert with_named_model(["estimate", "--", "vllm", "serve", "--model", "x"]) == [
        "estimate", "--", "vllm", "serve", "--model", "x",
    ]  # fmt: skip
    assert with_named_model(["estimate", "a", "--model", "b", "--ctx", "8k"]) == ["estimate", "b", "a", "--ctx", "8k"]
    for words in (["plan", "--model"], ["plan", "--model", "--json"], ["plan", "--model="]):
        with pytest.raises(UsageError, match="--model has no value"):
            with_named_model(words)
