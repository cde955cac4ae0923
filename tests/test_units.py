"""Amounts as people write them."""

from __future__ import annotations

import pytest

from kvplan.errors import UsageError
from kvplan.units import GIB, MIB, parse_bit_rate, parse_bytes, parse_tokens


def test_amounts_of_memory_are_read_as_they_say() -> None:
    assert [parse_bytes(text) for text in ("80GiB", "80 GB", "1048576", "64B")] == [80 * GIB, 80 * 10**9, MIB, 64]


@pytest.mark.parametrize("text", ["64", "79.19", "1048575"])
def test_a_small_amount_without_a_unit_is_not_taken_for_bytes(text: str) -> None:
    with pytest.raises(UsageError, match=f"'{text}' has no unit") as caught:
        parse_bytes(text)
    assert caught.value.hint is not None and f"did you mean {text}GiB?" in caught.value.hint


def test_large_amounts_are_exact() -> None:
    assert parse_tokens("999999999999") == 999_999_999_999
    assert parse_bytes("9007199254740993") == 2**53 + 1
    assert [parse_bytes("0.29GB"), parse_bytes("1048576TiB")] == [290_000_000, 2**60]


@pytest.mark.parametrize("digits", ["9" * 20, "9" * 400, "9" * 5000], ids=len)
def test_an_amount_beyond_all_machines_is_one_sentence(digits: str) -> None:
    with pytest.raises(UsageError, match="is more than 1,000,000,000,000 tokens"):
        parse_tokens(digits)
    with pytest.raises(UsageError, match=r"is more than 1,048,576\.00 TiB"):
        parse_bytes(digits)


@pytest.mark.parametrize(
    ("text", "gigabytes"), [("400", 50), ("400Gb/s", 50), ("400 Gbps", 50), ("50GB/s", 50), ("12.5gb/s", 1.5625)]
)
def test_a_network_is_in_bits_unless_it_says_bytes(text: str, gigabytes: float) -> None:
    assert parse_bit_rate(text) == gigabytes * 1e9


@pytest.mark.parametrize("text", ["fast", "-400", "0", "400GiB", "400 Tb/s", ""])
def test_what_is_no_network_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not the speed of a network"):
        parse_bit_rate(text)
