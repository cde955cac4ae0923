"""Whether a JSON value has the shape that a type declares: what a run directory holds may be anybody's.

Declarations are those that the code is checked against anyway: TypedDicts, dataclasses, and what these are made of.
Keys beyond a TypedDict's are let pass, as later versions write them; keys beyond a dataclass's are not.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

_LARGEST: Final = sys.float_info.max
_LONGEST_SHOWN: Final = 40


class ShapeError(ValueError):
    """A value of another shape; its text says which, and what it is: ``trials[3].number is 'x'``."""


def check_shape(value: object, kind: Any, where: str) -> None:
    """ShapeError unless ``value`` is of this type. where: its name. A number is finite, and no boolean is one."""
    kinds = _alternatives(kind)
    if value is None and NoneType in kinds:
        return
    found = next((each for each in kinds if _is_of(value, each)), None)
    if found is None:
        raise ShapeError(f"{where} is {_shown(value)}")
    if isinstance(value, Mapping):
        _check_entries(value, found, where)
    elif isinstance(value, (list, tuple)):
        inner = (*get_args(found), Any)[0]
        for place, item in enumerate(value):
            check_shape(item, inner, f"{where}[{place}]")


def without_misfits(entries: Mapping[str, Any], kind: Any) -> tuple[dict[str, Any], list[str]]:
    """The entries that have the shape of a TypedDict's, or that it does not know; and the names of the others."""
    kept, misfits = dict(entries), []
    for name, value in entries.items():
        try:
            check_shape(value, (_hints(kind) or {}).get(name, Any), name)
        except ShapeError:
            misfits.append(name)
            del kept[name]
    return kept, misfits


def _check_entries(entries: Mapping[Any, Any], kind: Any, where: str) -> None:
    hints = _hints(kind)
    inner = get_args(kind)[1] if len(get_args(kind)) == 2 else Any
    for name, value in entries.items():
        if hints is None:
            check_shape(value, inner, f"{where}.{name[:_LONGEST_SHOWN]}")
        elif name in hints:
            check_shape(value, hints[name], f"{where}.{name}")
        elif is_dataclass(kind):
            raise ShapeError(f"{where} has {name[:_LONGEST_SHOWN]!r}")
        else:
            check_shape(value, Any, f"{where}.{name[:_LONGEST_SHOWN]}")
    if missing := _needed(kind) - entries.keys():
        raise ShapeError(f"{where} lacks {min(missing)}")


@cache
def _alternatives(kind: Any) -> tuple[Any, ...]:
    """The types of a union; of anything else itself."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


@cache
def _hints(kind: Any) -> Mapping[str, Any] | None:
    return get_type_hints(kind) if is_typeddict(kind) or is_dataclass(kind) else None


@cache
def _needed(kind: Any) -> frozenset[str]:
    """Needed fields of a dataclass; which entries of a TypedDict are needed is for those to say who read it."""
    if not is_dataclass(kind):
        return frozenset()
    return frozenset(
        field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING
    )


def _is_of(value: object, kind: Any) -> bool:
    """Whether the value itself, not what is in it, is of a type that is no union."""
    origin = get_origin(kind) or kind
    if kind in (Any, object):  # any JSON value: NaN and infinity are none
        return not isinstance(value, float) or _is_number(value)
    if origin is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if is_typeddict(kind) or is_dataclass(kind) or origin in (dict, Mapping):
        return isinstance(value, Mapping)
    if origin in (list, tuple):
        return isinstance(value, (list, tuple))
    if kind in (int, float):
        return _is_number(value) and (kind is float or value == int(value))  # type: ignore[call-overload]
    return isinstance(value, kind)


def _shown(value: object) -> str:
    if isinstance(value, int) and not _is_number(value) and not isinstance(value, bool):
        return "a number too large"
    return repr(value)[:_LONGEST_SHOWN]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -_LARGEST <= value <= _LARGEST


_LARGEST_WHOLE: Final = 2**63 - 1
"""Of a column of whole numbers in a table."""


def bounded_numbers(value: Any) -> Any:
    """Return a document with None for numbers that are not finite, or wider than a table's whole numbers."""
    if isinstance(value, dict):
        return {name: bounded_numbers(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [bounded_numbers(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return None if isinstance(value, int) and abs(value) > _LARGEST_WHOLE else value
