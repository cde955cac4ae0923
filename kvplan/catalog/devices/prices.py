"""A price of one's own, as the command line has it: ``h100-sxm=2.1``; and what tokens cost by it."""

from __future__ import annotations

from kvplan.errors import UsageError


def parse_price(text: str) -> tuple[str, float]:
    """``"h100-sxm=2.1"`` -> the name as written, and US dollars per hour of one. UsageError for anything else."""
    name, equals, amount = text.partition("=")
    usd = read_usd(amount)
    if not equals or not name.strip() or usd is None:
        raise UsageError(f"--price '{text}' is not NAME=USD_PER_HOUR.", hint="for example --price h100-sxm=2.1")
    return name.strip(), usd


def read_usd(text: str) -> float | None:
    """``2.1`` or ``$2.1``; None for what is no amount of 0 or more."""
    try:
        usd = float(text.strip().removeprefix("$"))
    except ValueError:
        return None
    return usd if 0 <= usd < float("inf") else None


def usd_per_million_tokens(usd_per_hour: float, tokens_per_second: float) -> float:
    """Return what a million tokens cost where so many are made in a second."""
    return usd_per_hour / 3600 / tokens_per_second * 1e6
