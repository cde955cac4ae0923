"""Structures of C and CUDA for ctypes, read from the sources that declare them: a field is declared in one place.

The compilers and ctypes lay fields out alike; tests compare offsets and sizes with what compiled sources say.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, TypeVar

from kvplan_engine.errors import EngineError
from kvplan_engine.paths import source_dir

_NUMBERS = {
    **dict.fromkeys(("int", "int32_t"), ctypes.c_int32),
    **dict.fromkeys(("i64", "int64_t"), ctypes.c_int64),
    "u64": ctypes.c_uint64,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}
READ: dict[str, type[ctypes.Structure]] = {}
"""The structures read so far, by their names in the sources."""

_STATEMENT = re.compile(r"\s*(?:const )?(?:struct )?(\w+)\b(.*?)\s*", re.DOTALL)
_FIELD = re.compile(r"\s*(\*?)\s*(\w+)(?:\[(\w+)\])?")

S = TypeVar("S", bound=ctypes.Structure)


class KernelStructureError(EngineError):
    """Sources and Python declare a struct differently: no call would be safe, so none is made."""


def declared_in(source: str, name: str | None = None, **types: Any) -> Callable[[type[S]], type[S]]:
    """Give the decorated class the fields of ``struct name`` (else of its own name) in ``source``, a file of csrc.

    A pointer to a structure that was read before has its type, any other is an address. types: of fields that are
    neither. KernelStructureError where the file declares no such struct.
    """

    def with_fields(structure: type[S]) -> type[S]:
        declared = name or structure.__name__
        READ[declared] = structure
        structure._fields_ = tuple(
            (field, types.get(field, kind)) for field, kind in _fields(_text(source), declared, source)
        )
        return structure

    return with_fields


@cache
def _text(source: str) -> str:
    """The file without its comments."""
    return re.sub(r"//[^\n]*", "", (source_dir() / source).read_text(encoding="utf-8"))


def _fields(text: str, name: str, source: str) -> Iterator[tuple[str, Any]]:
    found = re.search(rf"\bstruct (?:alignas\(\d+\) )?{name} \{{(.*?)\}}", text, re.DOTALL)
    if found is None:
        raise KernelStructureError(f"{source} declares no struct {name}.", hint="reinstall kvplan")
    for statement in found[1].split(";")[:-1]:
        kind, declarators = _STATEMENT.fullmatch(statement).groups()  # type: ignore[union-attr]
        for declarator in declarators.split(","):
            star, field, count = _FIELD.fullmatch(declarator).groups()  # type: ignore[union-attr]
            yield field, _type(text, kind, count, is_pointer=bool(star))


def _type(text: str, kind: str, count: str | None, *, is_pointer: bool) -> Any:
    if is_pointer:
        return ctypes.POINTER(READ[kind]) if kind in READ else ctypes.c_void_p
    one: Any = _NUMBERS.get(kind) or READ[kind]
    return one if count is None else one * _number(text, count)


def _number(text: str, count: str) -> int:
    """A number of elements, or the constant of the same file that says it."""
    return int(count) if count.isdecimal() else int(re.search(rf"\b{count} = (\d+);", text)[1])  # type: ignore[index]
