"""A table of facts by release: rows of JSON, checked against the dataclass that names and types them.

    {"fact": "gpu_memory_utilization", "type": "float", "what": "...", "values": {"0.0.0": 0.9, "0.20.0": 0.92},
     "sources": ["vllm/config/cache.py: CacheConfig.gpu_memory_utilization"], "read_through": "0.33.0"}

A value holds from its release on until the next. Where a row ``grows``, a release's list or map is added to the older
ones'. Releases between those that were read have the older one's facts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Generic, TypeVar, get_type_hints

from kvplan.catalog.typed_json import WRONG, FactError, checker, type_text
from kvplan.paths import profiles_dir

Number = tuple[int, int, int]
"""(major, minor, patch)."""

_VERSION: Final = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,6}))?", re.ASCII)
Release = TypeVar("Release")
_KEYS = frozenset({"fact", "type", "what", "values", "sources", "read_through"})


@dataclass(frozen=True, slots=True)
class Fact:
    """One row. ``values``: each with the release that it holds from, oldest first."""

    name: str
    type: str
    what: str
    values: tuple[tuple[Number, Any], ...]
    sources: tuple[str, ...]
    read_through: Number

    def at(self, number: Number) -> Any:
        """Return the value that holds in a release."""
        return next(value for since, value in reversed(self.values) if number >= since)


@dataclass(frozen=True)
class ReleaseTable(Generic[Release]):
    """Every fact of an engine. ``kind``: the dataclass of one release, whose fields are the facts and ``version``."""

    kind: Callable[..., Release]
    oldest: Number
    newest: Number
    facts: tuple[Fact, ...]
    _known: dict[Number, Release] = field(default_factory=dict, repr=False)

    def at(self, number: Number | None) -> Release:
        """Return what holds in release ``number``; None stands for the newest that was read."""
        number = self.newest if number is None else number
        if number not in self._known:
            values = {fact.name: fact.at(number) for fact in self.facts}
            self._known[number] = self.kind(version=number, **values)
        return self._known[number]


def load_releases(engine: str, kind: type[Release]) -> ReleaseTable[Release]:
    """Read ``profiles/releases/ENGINE.json``. FactError where it does not fit ``kind`` in every name and type."""
    path = profiles_dir() / "releases" / f"{engine}.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    try:
        return table_of(document, kind)
    except FactError as error:
        raise FactError(f"{Path(path.parent.name, path.name)}: {error}") from error


def table_of(document: Mapping[str, Any], kind: type[Release]) -> ReleaseTable[Release]:
    """Return the table of a document as ``load_releases`` reads it."""
    newest, hints = _number(document["newest"]), get_type_hints(kind)
    named = {each.name for each in fields(kind)} - {"version"}  # type: ignore[arg-type]
    rows = [_fact(row, newest, hints) for row in document["facts"]]
    names = [row.name for row in rows]
    for name in sorted(named.symmetric_difference(names)):
        place = kind.__name__ if name in names else "the table"
        raise FactError(f"{place} has no fact '{name}'.")
    if len(names) != len(named):
        raise FactError(f"'{next(name for name in names if names.count(name) > 1)}' has two rows.")
    return ReleaseTable(kind, _number(document["oldest"]), newest, tuple(rows))


def _fact(row: Mapping[str, Any], newest: Number, hints: Mapping[str, Any]) -> Fact:
    name = row.get("fact", "(a row without a name)")
    if _KEYS - set(row) or set(row) - _KEYS - {"grows"}:
        raise FactError(f"'{name}' must have {', '.join(sorted(_KEYS))}, and may have grows.")
    if name not in hints:
        raise FactError(f"no class has a fact '{name}'.")
    if row["type"] != type_text(hints[name]):
        raise FactError(f"'{name}' is said to be {row['type']}, and its class says {type_text(hints[name])}.")
    read_through = _number(row["read_through"])
    if not row["sources"] or not row["what"] or read_through > newest:
        raise FactError(f"'{name}' needs a source, what it says, and the release in which that was read.")
    values = tuple(_values(name, row, hints[name]))
    if not values or values[0][0] != (0, 0, 0):
        raise FactError(f"'{name}' has no value from 0.0.0 on.")
    if any(before >= after for (before, _), (after, _) in pairwise(values)):
        raise FactError(f"releases of '{name}' do not rise.")
    return Fact(name, row["type"], row["what"], values, tuple(row["sources"]), read_through)


def _values(name: str, row: Mapping[str, Any], hint: Any) -> Iterator[tuple[Number, Any]]:
    before: Any = WRONG
    check = checker(hint)
    for since, written in row["values"].items():
        value = check(written)
        if value is WRONG:
            raise FactError(f"'{name}' is {written!r} from {since} on, which is no {row['type']}.")
        if row.get("grows") and before is not WRONG:
            value = (*before, *value) if isinstance(value, tuple) else {**before, **value}
        if value == before:
            raise FactError(f"'{name}' does not change in {since}.")
        before = value
        yield _number(since), value


def _number(text: str) -> Number:
    number = release_number(text)
    if number is None:
        raise FactError(f"'{text}' is no release.")
    return number


def release_number(version: str) -> Number | None:
    """Return (0, 4, 3) of ``0.4.3.post2``; None of ``latest`` and of what is no number, which stand for the newest."""
    match = _VERSION.match(version.strip().lower())
    if match is None:
        return None
    major, minor, patch = (int(part or 0) for part in match.groups())
    return major, minor, patch


def release_text(number: Number) -> str:
    """Return ``0.19.0`` of (0, 19, 0)."""
    return ".".join(map(str, number))
