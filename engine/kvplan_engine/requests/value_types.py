"""Types of what a user gives for a request, checked before anything is queued. No torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from numbers import Real
from operator import index
from typing import Any, SupportsIndex

from kvplan_engine.errors import EngineError

_LONGEST_SHOWN = 60
_LIMIT = 2**63


def whole_number(what: str, value: Any) -> int:
    """``value`` as an int of 64 bits: numpy's are converted. EngineError for anything else, a bool too."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise _wrong(what, "a whole number", value)
    try:
        number = index(value)
    except TypeError:  # an array, a tensor of floats
        raise _wrong(what, "a whole number", value) from None
    if not -_LIMIT <= number < _LIMIT:
        raise EngineError(f"{what} must fit 64 bits.")
    return number


def real_number(what: str, value: Any) -> float:
    """``value`` as an int or a float. EngineError for anything else, a bool too."""
    if isinstance(value, (bool, complex)) or not isinstance(value, Real):
        raise _wrong(what, "a number", value)
    try:
        return float(value)
    except OverflowError:
        raise EngineError(f"{what} is too large for a number.") from None


def truth(what: str, value: Any) -> bool:
    """EngineError unless ``value`` is True or False."""
    if not isinstance(value, bool):
        raise _wrong(what, "True or False", value)
    return value


def checked_token_ids(what: str, values: Any) -> list[int]:
    """``values`` as a list of ints, itself where it is one. EngineError where one of them is none."""
    if isinstance(values, list) and all(kind is int for kind in set(map(type, values))):
        return values
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Collection):
        raise _wrong(what, "a list of token ids", values)
    return [whole_number(f"a token of {what}", value) for value in values]


def texts(what: str, values: Any) -> tuple[str, ...]:
    """``values``, one text or several, as a tuple."""
    if isinstance(values, str):
        return (values,)
    if isinstance(values, (bytes, Mapping)) or not isinstance(values, Collection):
        raise _wrong(what, "a text or a list of texts", values)
    for value in values:
        if not isinstance(value, str):
            raise _wrong(what, "a text or a list of texts", value)
    return tuple(values)


def entries(what: str, values: Any) -> dict[int, float]:
    """``values``, a number for each of some tokens."""
    if not isinstance(values, Mapping):
        raise _wrong(what, "numbers by token id", values)
    return {
        whole_number(f"a token of {what}", token): real_number(f"a value of {what}", value)
        for token, value in values.items()
    }


def _wrong(what: str, wanted: str, value: Any) -> EngineError:
    shown = repr(value)
    if len(shown) > _LONGEST_SHOWN:
        shown = shown[: _LONGEST_SHOWN - 4] + " ..."
    return EngineError(f"{what} must be {wanted}, got {shown} ({type(value).__name__}).")
