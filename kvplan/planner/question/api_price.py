"""What an API charges for the same tokens: ``--api-price in=0.6,out=2.4``, US dollars per million."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvplan.catalog.devices.prices import read_usd
from kvplan.errors import UsageError

_SIDES: Final = {"in": "input", "input": "input", "prompt": "input", "out": "output", "output": "output"}
_HINT: Final = "US dollars per million tokens, for example --api-price in=0.6,out=2.4"


@dataclass(frozen=True, slots=True)
class ApiPrice:
    """Per million tokens, of prompts and of answers."""

    usd_per_million_input: float
    usd_per_million_output: float

    def usd_per_request(self, input_tokens: float, output_tokens: float) -> float:
        return (input_tokens * self.usd_per_million_input + output_tokens * self.usd_per_million_output) / 1e6


def parse_api_price(text: str) -> ApiPrice:
    """``in=0.6,out=2.4``, in any order; a number alone is the price of both. UsageError for anything else."""
    found: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.replace(";", ",").split(","))):
        name, equals, amount = part.replace(":", "=").rpartition("=")
        sides = [_SIDES.get(name.strip().casefold())] if equals else ["input", "output"]
        usd = read_usd(amount)
        if usd is None or None in sides or any(side in found for side in sides):
            raise UsageError(f"--api-price '{text}' is not in=USD,out=USD.", hint=_HINT)
        found |= {side: usd for side in sides if side is not None}
    if set(found) != {"input", "output"}:
        raise UsageError(f"--api-price '{text}' needs the price of prompts and that of answers.", hint=_HINT)
    if not any(found.values()):
        raise UsageError("--api-price must be above 0.", hint=_HINT)
    return ApiPrice(found["input"], found["output"])
