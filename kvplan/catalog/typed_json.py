"""Values of shipped JSON tables, checked against the type hints of the dataclass that names them."""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from functools import cache
from typing import Any, Final, Literal, Union, get_args, get_origin

WRONG: Final = object()
"""What a check returns of a value of another type."""

Check = Callable[[Any], Any]


class FactError(Exception):
    """A row of a shipped table that is wrong: a fact that no class has, a value of another type, no source."""


@cache
def type_text(hint: Any) -> str:
    """Write a type as tables do: ``list[str]``, ``int | null``, ``"sort" | "triton"``."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " | ".join(json.dumps(choice) for choice in arguments)
    if origin in (Union, types.UnionType):
        return " | ".join(type_text(choice) for choice in arguments)
    if origin is tuple:
        return f"list[{', '.join(type_text(item) for item in arguments if item is not Ellipsis)}]"
    if origin is not None:
        return f"map[{', '.join(type_text(item) for item in arguments)}]"
    return "null" if hint is type(None) else str(hint.__name__)


@cache
def checker(hint: Any) -> Check:
    """Return the function that gives a value as ``hint`` has it (lists become tuples), or ``WRONG``."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return lambda value: value if value in arguments else WRONG
    if origin in (Union, types.UnionType):
        choices = tuple(map(checker, arguments))
        return lambda value: next((found for check in choices if (found := check(value)) is not WRONG), WRONG)
    if origin is tuple:
        return _list_checker(tuple(checker(item) for item in arguments if item is not Ellipsis), arguments)
    if origin is not None:
        return _map_checker(checker(arguments[1]))
    if hint is float:
        return lambda value: float(value) if type(value) in (int, float) else WRONG
    return lambda value: value if type(value) is hint else WRONG


def _list_checker(checks: tuple[Check, ...], arguments: tuple[Any, ...]) -> Check:
    def check(value: Any) -> Any:
        if not isinstance(value, list):
            return WRONG
        each = checks * len(value) if arguments[-1] is Ellipsis else checks
        if len(each) != len(value):
            return WRONG
        found = tuple(check(item) for check, item in zip(each, value, strict=True))
        return WRONG if any(item is WRONG for item in found) else found

    return check


def _map_checker(inner: Check) -> Check:
    def check(value: Any) -> Any:
        if not isinstance(value, dict):
            return WRONG
        found = {key: inner(item) for key, item in value.items()}
        return WRONG if any(item is WRONG for item in found.values()) else found

    return check
