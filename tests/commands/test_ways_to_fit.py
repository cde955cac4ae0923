"""The hint beside a deployment that does not fit: what is enough, and nothing that was asked for already."""

from __future__ import annotations

import shlex

import pytest

from kvplan.cli import main


def hint_of(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(shlex.split(f"estimate {words}")) == 1
    lines = capsys.readouterr().err.splitlines()
    return next(line for line in lines if line.startswith("hint: ")).removeprefix("hint: use ")


@pytest.mark.parametrize(
    ("words", "hint", "enough"),
    [
        (
            "deepseek-v3 --ctx 8k --quantization fp8 --gpu 8xh100",
            "fewer bits per weight (--quantization awq), or --gpu 16xh100-sxm",
            "deepseek-v3 --ctx 8k --quantization fp8 --gpu 16xh100-sxm",
        ),
        (
            "gpt-oss-120b --ctx 8k --gpu h100 --quantization fp8",
            "the weights as published (without --quantization), or --gpu 2xh100-sxm",
            "gpt-oss-120b --ctx 8k --gpu h100",
        ),
        (
            "llama-3.1-8b --gpu l4 --ctx 128k",
            "--ctx 28272, or --gpu 2xl4",
            "llama-3.1-8b --gpu l4 --ctx 28272",
        ),
        ("llama-3.1-70b --gpu l4 --ctx 4k --tp 2", "--tp 8", "llama-3.1-70b --gpu l4 --ctx 4k --tp 8"),
        (
            "llama-3.2-11b-vision --gpu h100 --ctx 8k",
            "--language-model-only, or --max-num-seqs 64",
            "llama-3.2-11b-vision --gpu h100 --ctx 8k --max-num-seqs 64",
        ),
        (
            "llama-3.1-70b --gpu h100 --ctx 4k --engine kvplan",
            "fewer bits per weight (--quantization awq), or --gpu 2xh100-sxm",
            "llama-3.1-70b --gpu h100 --ctx 4k --engine kvplan --quantization awq",
        ),
    ],
)
def test_what_is_named_is_enough(words: str, hint: str, enough: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert hint_of(words, capsys) == hint
    assert main(["estimate", *enough.split()]) == 0


def test_a_drafter_that_does_not_fit_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    words = "llama-3.1-8b --speculative-model llama-3.1-70b --num-speculative-tokens 3 --gpu h100 --ctx 8k"
    assert main(["estimate", *words.split()]) == 1
    printed = capsys.readouterr()
    assert "with llama-3.1-70b as its drafter does not fit on h100-sxm" in printed.err
    assert "hint: use no drafter, or --gpu 4xh100-sxm" in printed.err
    assert "3 draft tokens per step: 131.42 GiB of weights per GPU" in printed.out


def test_of_several_the_nearest_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    words = "llama-3.1-405b llama-3.1-70b --gpu l4 t4"
    assert main(["estimate", *words.split()]) == 1
    said = capsys.readouterr().err
    assert "None of these deployments fits." in said
    assert "hint: nearest is meta-llama/Llama-3.1-70B on l4: use --gpu 16xl4" in said
