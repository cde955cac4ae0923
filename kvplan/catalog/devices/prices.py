"""A price of one's own, as the command line has it: ``h100-sxm=2.1``; and what tokens cost by it."""

from __future__ import annotations

from kvplan.errors import UsageError


def parse_price(text: str) -> tuple[str, float]:
    """``"h100-sxm=2.1"`` -> the name as written, and US dollars per hour of one. UsageError for anything else."""
    name, equals, amount = text.partition("=")
    try:
        usd = float(amount.strip().removeprefix("$"))
    except ValueError:
        usd = -1.0
    if not equals or not name.strip() or not 0 <= usd < float("inf"):
        raise UsageError(f"--price '{text}' is not NAME=USD_PER_HOUR.", hint="for example --price h100-sxm=2.1")
    return name.strip(), usd


def usd_per_million_tokens(usd_per_hour: float, tokens_per_second: float) -> float:
    """Return what a million tokens cost where so many are made in a second."""
    return usd_per_hour / 3600 / tokens_per_second * 1e6
