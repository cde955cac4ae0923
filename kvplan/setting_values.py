"""Settings from values as people write them: ``32k`` tokens, ``80GiB``, ``90%``, ``bf16``, or lists of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kvplan.errors import UsageError
from kvplan.settings import FLAG_WORDS, KNOBS, Knob, ServingSettings
from kvplan.units import parse_bit_rate, parse_bytes, parse_tokens

_SHORT_NUMBER: Final = re.compile(r"-?\d{1,18}")


def read_settings(given: Mapping[str, Any]) -> ServingSettings:
    """Settings from options as written (tokens and bytes are text). UsageError names the option that is wrong."""
    settings = ServingSettings(**{name: _read(KNOBS[name], value) for name, value in given.items()})
    settings.check(as_options=True)
    return settings


def _read(knob: Knob, value: Any) -> Any:
    if value is None:
        return None
    if knob.kind == "bytes":
        return parse_bytes(value)
    if knob.kind == "rate" and isinstance(value, str):
        return parse_bit_rate(value)
    if knob.kind == "share" and isinstance(value, str):
        return parse_share(value, knob.option, example=knob.example)
    if knob.kind == "tokens":
        text = str(value).strip()  # a whole number is left to the check, which names the option
        return int(text) if _SHORT_NUMBER.fullmatch(text) else parse_tokens(text)
    if knob.kind == "flag" and value not in (True, False):
        if str(value).casefold() not in FLAG_WORDS:
            raise UsageError(f"{knob.option} is yes or no, got '{value}'.", hint=" or ".join(FLAG_WORDS))
        return FLAG_WORDS[str(value).casefold()]
    if knob.kind == "name":
        return knob.canonical_name(str(value))
    return _number(knob, value)


def _number(knob: Knob, value: Any) -> Any:
    """A count, an amount or a flag of the type that the command line makes. UsageError for anything else."""
    kinds = {"number": float, "share": float, "count": int}
    if knob.kind not in kinds:
        return value
    try:
        found = kinds[knob.kind](value)
    except (TypeError, ValueError):
        found = None
    if found is None or isinstance(value, bool) or (isinstance(value, float) and found != value):
        raise UsageError(f"{knob.option} '{value}' is not a number.", hint=f"for example {knob.option} {knob.example}")
    return found


def parse_share(text: str, option: str, *, example: str) -> float:
    """``90%`` or ``0.9`` -> 0.9. UsageError for what is no number."""
    number = text.strip()
    try:
        return float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError as error:
        raise UsageError(f"{option} '{text}' is not a share.", hint=f"for example {option} {example}") from error


def split_list(texts: Sequence[str] | None) -> tuple[str, ...]:
    """``["a,b", "c"]`` -> a, b, c: a list option takes commas and repetition alike, each value once.

    UsageError where the option was given without a value.
    """
    parts = (part.strip() for text in texts or () for part in text.split(","))
    found = tuple(dict.fromkeys(part for part in parts if part))
    if texts and not found:
        raise UsageError(f"'{','.join(texts)}' is an empty list.", hint="write values like a,b or leave the option out")
    return found
