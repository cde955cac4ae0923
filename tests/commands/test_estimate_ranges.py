"""How ``kvplan estimate`` prints the interval around a deployment's KV cache."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.cli import main
from kvplan.commands.printing.ranges import range_cell
from kvplan.estimate.deployments import place
from kvplan.settings import ServingSettings


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["estimate", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("models", [["llama-3.1-8b"], ["llama-3.1-8b", "qwen3-8b"]])
def test_tables_say_how_far_the_tokens_can_lie_from_the_prediction(
    capsys: pytest.CaptureFixture[str], models: list[str]
) -> None:
    lines = printed(capsys, *models, "--gpu", "h100", "--ctx", "8k").splitlines()
    title = next(line for line in lines if "fit at once" in line)
    assert "+/- is a 90 % interval" in title
    head, row = lines[lines.index(title) + 1], lines[lines.index(title) + 3]
    assert head[: head.index("+/-")].split()[-2:] == ["KV", "tokens"]
    share = row[: head.index("+/-") + 3].split()[-2:]
    assert share[1] == "%" and 0 < float(share[0]) < 5


def test_a_deployment_that_fits_only_if_all_goes_well_is_said_to(capsys: pytest.CaptureFixture[str]) -> None:
    assert "may not fit: at the low end" in printed(capsys, "qwen3-30b-a3b", "--gpu", "h100", "--ctx", "120k")
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


def test_an_interval_from_nothing_is_said_in_tokens() -> None:
    """``+/- 305.8 %`` of few tokens says less than that there may be none."""
    spec = resolve_model("llama-3.1-8b")
    found = place(spec, find_gpu("l40s"), EngineChoice("vllm"), ServingSettings(max_model_len=4096)).deployment
    assert range_cell(found).endswith(" %")
    assert found.kv_range is not None
    empty = replace(found, kv_range=replace(found.kv_range, tokens=(0, 37000)))
    assert range_cell(empty) == "0 to 37,000"


def test_a_headline_shows_what_vllm_keeps(capsys: pytest.CaptureFixture[str]) -> None:
    """DeepSeek-V3.2: 61 layers of 576 numbers of 2 B, and of 132 B of index keys."""
    shown = printed(capsys, "deepseek-v3.2", "--gpu", "8xh200", "--ctx", "64k")
    assert "KV cache  78,324 B per token" in shown and "85,888" not in shown
    assert 70272 + 61 * 132 == 78324
    assert "One sequence of 64k tokens: 4.78 GiB (4.78 GiB in whole blocks; 4.78 GiB must be free to admit it)" in shown
    assert main(["estimate", "deepseek-v3.2", "--gpu", "8xh200", "--ctx", "64k", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kv_cache"]["logical_bytes"] == 85888 * 65536
