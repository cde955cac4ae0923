"""Bytes and tokens as people write them, turned into integers and back. Inside kvplan all are bytes and tokens."""

from __future__ import annotations

import re
from decimal import Context, Decimal
from typing import Final

from kvplan.errors import UsageError

KIB = 1024
MIB = 1024**2
GIB = 1024**3
TIB = 1024**4

_BYTE_UNITS = {
    "": 1,
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": TIB,
}
_TOKEN_UNITS = {"": 1, "k": 1024, "m": 1024**2}
_LEAST_PLAIN_BYTES = MIB
"""The smallest amount of memory that is believed without a unit: below it, ``64`` was meant to be 64 GiB."""
LARGEST: Final = 1024**6
"""Of any setting: 1 EiB, and more than anything that is counted."""
_MOST_TOKENS: Final = 10**12
_EXACT: Final = Context(prec=60)
_MOST_GIGABITS: Final = 1e6
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:[Gg](bps|b/s|bit/s|bits/s|BPS|Bps|B/s)?)?")
_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str) -> int:
    """``80GiB`` -> 85899345920, ``80GB`` -> 80000000000, ``8589934592`` -> itself. UsageError otherwise.

    A number without a unit is bytes, and refused below 1 MiB.
    """
    match = _NUMBER.fullmatch(text)
    unit = match.group(2).lower() if match else None
    if match is None or unit not in _BYTE_UNITS:
        raise UsageError(f"'{text}' is not an amount of memory.", hint="write it like 80GiB, 80GB or 512MiB")
    number = int(_exact(match.group(1), _BYTE_UNITS[unit]))
    if number > LARGEST:
        raise UsageError(f"'{text}' is more than {format_bytes(LARGEST)}.", hint="write it like 80GiB or 512MiB")
    if number <= 0:
        raise UsageError(f"'{text}' is not a positive amount of memory.", hint="write it like 80GiB, 80GB or 512MiB")
    if not unit and number < _LEAST_PLAIN_BYTES:
        written = text.strip()
        raise UsageError(f"'{written}' has no unit.", hint=f"did you mean {written}GiB? Bytes are written {written}B")
    return number


def parse_bit_rate(text: str) -> float:
    """``400`` or ``400Gb/s`` -> 50e9 bytes per second, ``50GB/s`` likewise. UsageError for anything else."""
    match = _RATE.fullmatch(text.strip())
    if match is None or not 0 < float(match.group(1)) < _MOST_GIGABITS:
        raise UsageError(
            f"'{text}' is not the speed of a network.", hint="write it like 400 or 400Gb/s (bits), or 50GB/s (bytes)"
        )
    number, unit = float(match.group(1)), match.group(2) or ""
    return number * (1e9 if "B" in unit else 1e9 / 8)


def parse_tokens(text: str) -> int:
    """``32k`` -> 32768, ``1m`` -> 1048576, ``4096`` -> 4096 (k is 1,024). UsageError otherwise."""
    match = _NUMBER.fullmatch(text)
    unit = match.group(2).lower() if match else None
    if match is None or unit not in _TOKEN_UNITS:
        raise UsageError(f"'{text}' is not a number of tokens.", hint="write it like 4096, 32k or 1m (k is 1,024)")
    number = _exact(match.group(1), _TOKEN_UNITS[unit])
    if number > _MOST_TOKENS:
        raise UsageError(f"'{text}' is more than {_MOST_TOKENS:,} tokens.", hint="write it like 4096, 32k or 1m")
    if number < 1 or number != int(number):
        raise UsageError(f"'{text}' is not a whole, positive number of tokens.", hint="write it like 4096 or 32k")
    return int(number)


def _exact(number: str, unit: int) -> Decimal:
    """Their product; a float would round what lies above 2^53."""
    return _EXACT.multiply(_EXACT.create_decimal(number), Decimal(unit))


def format_bytes(number: float, *, digits: int = 2) -> str:
    """Binary units under their own names: 1610612736 -> '1.50 GiB'. Exact small numbers stay plain bytes."""
    sign = "-" if number < 0 else ""
    size = abs(number)
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{sign}{size / unit:,.{digits}f} {name}"
    return f"{sign}{size:,.0f} B"


def format_gib(number: float, *, digits: int = 2) -> str:
    """A number of bytes in GiB without the unit, for a column headed GiB."""
    return f"{number / GIB:,.{digits}f}"


def format_tokens(number: int) -> str:
    """32768 -> '32k', 1000 -> '1,000': the short form only where it is exact."""
    if number >= 1024**2 and number % 1024**2 == 0:
        return f"{number // 1024**2}m"
    if number >= 1024 and number % 1024 == 0:
        return f"{number // 1024}k"
    return f"{number:,}"


def plural(number: int, noun: str) -> str:
    """``1 trial``, ``2 trials``, ``1,024 trials``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
