"""Amounts as people write them."""

from __future__ import annotations

import pytest

from kvplan.cli import main
from kvplan.errors import UsageError
from kvplan.units import GIB, MIB, parse_bytes


def test_amounts_of_memory_are_read_as_they_say() -> None:
    assert [parse_bytes(text) for text in ("80GiB", "80 GB", "1048576", "64B")] == [80 * GIB, 80 * 10**9, MIB, 64]


@pytest.mark.parametrize("text", ["64", "79.19", "1048575"])
def test_a_small_amount_without_a_unit_is_not_taken_for_bytes(text: str) -> None:
    with pytest.raises(UsageError, match=f"'{text}' has no unit") as caught:
        parse_bytes(text)
    assert caught.value.hint is not None and f"did you mean {text}GiB?" in caught.value.hint


def test_device_memory_64_is_asked_about(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "gpt2", "--device-memory", "64"]) == 2
    assert "64GiB?" in capsys.readouterr().err
