"""How ``kvplan estimate`` prints the interval around a deployment's KV cache."""

from __future__ import annotations

import csv
import io

import pytest

from kvplan.cli import main


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["estimate", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("models", [["llama-3.1-8b"], ["llama-3.1-8b", "qwen3-8b"]])
def test_tables_say_how_far_the_tokens_can_lie_from_the_prediction(
    capsys: pytest.CaptureFixture[str], models: list[str]
) -> None:
    lines = printed(capsys, *models, "--gpu", "h100", "--ctx", "8k").splitlines()
    title = next(line for line in lines if "fit at once" in line)
    assert "9 of 10 start-ups within +/-" in title
    head, row = lines[lines.index(title) + 1], lines[lines.index(title) + 3]
    assert head[: head.index("+/-")].split()[-2:] == ["KV", "tokens"]
    share = row[: head.index("+/-") + 3].split()[-2:]
    assert share[1] == "%" and 0 < float(share[0]) < 5


def test_a_deployment_that_fits_only_if_all_goes_well_is_said_to(capsys: pytest.CaptureFixture[str]) -> None:
    assert "may not fit: the low end" in printed(capsys, "qwen3-30b-a3b", "--gpu", "h100", "--ctx", "120k")
    assert "may not fit" not in printed(capsys, "qwen3-30b-a3b", "--gpu", "h200", "--ctx", "120k")


def test_explain_lists_the_causes_with_their_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "llama-3.1-8b", "--gpu", "gb10", "--ctx", "8k", "--explain")
    assert "GiB of KV pool" in text
    causes = [line.split()[1] for line in text.splitlines() if line.startswith("    +/- ")]
    assert len(causes) == 7
    assert causes == sorted(causes, key=float, reverse=True)
    assert "memory that is the host's" in text


def test_an_engine_without_start_ups_has_no_column(capsys: pytest.CaptureFixture[str]) -> None:
    assert "+/-" not in printed(capsys, "gpt2", "--gpu", "h100", "--engine", "kvplan")


def test_csv_has_both_ends(capsys: pytest.CaptureFixture[str]) -> None:
    row = next(csv.DictReader(io.StringIO(printed(capsys, "gpt2", "--gpu", "h100", "--format", "csv"))))
    assert int(row["kv_cache_tokens_low"]) < int(row["kv_cache_tokens"]) < int(row["kv_cache_tokens_high"])
