"""What ``kvplan models`` says of a token: in layers with a window, and past it."""

from __future__ import annotations

import json

import pytest

from kvplan.cli import main


def last_cells(name: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Those of the row's KV columns."""
    assert main(["models", name, "--format", "md"]) == 0
    return [cell.strip() for cell in capsys.readouterr().out.splitlines()[-1].split("|")[-3:-1]]


@pytest.mark.parametrize(
    ("name", "within", "past"),
    [
        ("zephyr", 32 * 2 * 8 * 128 * 2, "0"),
        ("gemma-3-1b", 26 * 2 * 256 * 2, f"{4 * 2 * 256 * 2:,}"),
        ("llama-3.1-8b", 32 * 2 * 8 * 128 * 2, ""),
    ],
)
def test_a_token_within_the_windows_counts_in_all_layers(
    name: str, within: int, past: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert last_cells(name, capsys) == [f"{within:,}", past]


def test_the_columns_are_explained_where_a_model_has_windows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "zephyr"]) == 0
    assert "past windows: of one more" in capsys.readouterr().out
    assert main(["models", "llama-3.1-8b"]) == 0
    assert "of one more" not in capsys.readouterr().out


def test_json_has_both(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "gemma-3-1b", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["models"]
    assert (row["kv_bytes_per_token"], row["kv_window_bytes_per_token"]) == (4096, 26624 - 4096)
