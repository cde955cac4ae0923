"""``kvplan estimate`` with a drafter, as users ask for it and read it."""

from __future__ import annotations

import json

import pytest

from kvplan.cli import main

CONFIG = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}'


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["estimate", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_second_model_by_two_options(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--ctx", "8k", "--gpu", "4xh100", "--speculative-model", "llama-3.2-1b", "--num-speculative-tokens", "4")
    code, out, err = run(capsys, "llama-3.1-70b", *options)
    assert (code, err) == (0, "")
    assert "Drafter   llama-3.2-1b (draft_model), 4 draft tokens per step: 606.13 MiB of weights per GPU" in out
    assert "32,768 B per token of KV cache" in out
    rates = [line.split()[1] for line in out.splitlines() if line.strip().startswith("h100-sxm ")][1:]
    assert rates == ["0.5", "0.7", "0.9"]


def test_the_json_of_vllm_and_a_rate(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--ctx", "8k", "--gpu", "h100", "--speculative-config", CONFIG, "--acceptance-rate", "0.5", "--json")
    code, out, _ = run(capsys, "llama-3.1-8b", *options)
    assert code == 0
    found = json.loads(out)["speculation"]
    assert (found["method"], found["num_speculative_tokens"], found["bytes_per_token"]) == ("ngram", 4, 0)
    (deployment,) = found["deployments"]
    assert deployment["weight_bytes"] == 0
    assert deployment["gains"][0]["tokens_per_step"] == 1.938


@pytest.mark.parametrize("output", ["table", "md"])
def test_a_method_without_weights_says_so(capsys: pytest.CaptureFixture[str], output: str) -> None:
    options = ("--ctx", "8k", "--gpu", "h100", "--speculative-config", CONFIG, "--format", output)
    _, out, _ = run(capsys, "llama-3.1-8b", *options)
    assert "Drafter   n-grams of the text so far, 4 draft tokens per step: no weights and no cache" in out


def test_gpus_of_several_counts_are_one_answer(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--ctx", "8k", "--gpu", "2xh100,h200", "--num-speculative-tokens", "1", "--json")
    _, out, _ = run(capsys, "mimo-7b-base", *options)
    found = json.loads(out)
    assert [each["gpu"] for each in found["speculation"]["deployments"]] == ["h100-sxm", "h200"]
    assert len(found["deployments"]) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--num-speculative-tokens", "2"), "has no layers for multi-token prediction"),
        (("--speculative-model", "llama-3.2-1b"), "draft_model needs a number of tokens"),
        (("--speculative-config", "mtp"), "is not JSON"),
        (("--acceptance-rate", "0.5"), "An acceptance rate needs a drafter"),
        (("--acceptance-rate", "1.5"), "--acceptance-rate must be above 0 and at most 1"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    capsys: pytest.CaptureFixture[str], options: tuple[str, str], message: str
) -> None:
    code, out, err = run(capsys, "llama-3.1-8b", "--ctx", "8k", *options)
    assert (code, out) == (2, "")
    assert message in err
    assert "hint: " in err
