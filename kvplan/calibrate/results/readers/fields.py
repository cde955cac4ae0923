"""Reading JSON that others wrote: typed values, and one sentence where a file is not what it should be."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvplan.errors import KvplanError
from kvplan.files import read_text
from kvplan.units import GIB


@dataclass(frozen=True, slots=True)
class Fields:
    """One object of a file. source: how messages call it; place: the names that lead to it, each followed by a dot."""

    values: Mapping[str, Any]
    source: str
    place: str = ""

    def has(self, *names: str) -> bool:
        return all(name in self.values for name in names)

    def number(self, name: str) -> float:
        """KvplanError where it is missing or not a finite number."""
        found = self.optional_number(name)
        if found is None:
            raise self.malformed(name, "a number")
        return found

    def optional_number(self, name: str) -> float | None:
        """None where it is missing, null or not a finite number."""
        return _finite(self.values.get(name))

    def positive(self, name: str) -> float:
        """KvplanError where it is missing or not a number above 0."""
        found = self.optional_number(name)
        if found is None or found <= 0:
            raise self.malformed(name, "a number above 0")
        return found

    def optional_positive(self, name: str) -> float | None:
        """None where ``optional_number`` is None. KvplanError for a number that is not above 0."""
        return None if self.optional_number(name) is None else self.positive(name)

    def count(self, name: str) -> int:
        """KvplanError where it is missing or not a number from 0 on that something can be counted by."""
        found = self.optional_number(name)
        if found is None or not 0 <= found <= _MOST:
            raise self.malformed(name, _COUNT)
        return int(found)

    def seconds(self, name: str) -> float | None:
        """A figure in milliseconds, in seconds; None where it is missing or 0. KvplanError where it is below."""
        return self.positive(name) / 1000 if self.optional_number(name) else None

    def text(self, name: str) -> str | None:
        value = self.values.get(name)
        return value if isinstance(value, str) and value else None

    def inner(self, *names: str) -> Fields:
        """The object at a path of names; an empty one where there is none."""
        value: Any = self.values
        for name in names:
            value = value.get(name) if isinstance(value, Mapping) else None
        place = self.place + "".join(f"{name}." for name in names)
        return Fields(value if isinstance(value, Mapping) else {}, self.source, place)

    def entries(self) -> list[Fields]:
        """The objects among its values, whatever their names."""
        return [self.inner(name) for name, value in self.values.items() if isinstance(value, Mapping)]

    def objects(self, name: str) -> list[Fields]:
        """A list of objects. KvplanError where it is anything else."""
        found = self.values.get(name)
        if not isinstance(found, list) or not all(isinstance(each, Mapping) for each in found):
            raise self.malformed(name, "a list of objects")
        return [Fields(each, self.source) for each in found]

    def numbers(self, name: str) -> list[float]:
        """A list of numbers. KvplanError where it is anything else."""
        found = _numbers(self.values.get(name))
        if found is None:
            raise self.malformed(name, "a list of numbers")
        return found

    def counts(self, name: str) -> list[int]:
        """A list of numbers from 0 on. KvplanError where it is anything else."""
        found = _numbers(self.values.get(name))
        if found is None or not all(0 <= each <= _MOST for each in found):
            raise self.malformed(name, f"a list of {_COUNTS}")
        return [int(each) for each in found]

    def number_lists(self, name: str) -> list[list[float]]:
        """A list of lists of numbers. KvplanError where it is anything else."""
        value = self.values.get(name)
        found = [_numbers(each) for each in value] if isinstance(value, list) else [None]
        lists = [each for each in found if each is not None]
        if len(lists) < len(found):
            raise self.malformed(name, "a list of lists of numbers")
        return lists

    def malformed(self, name: str, wanted: str) -> KvplanError:
        message = f"'{self.place}{name}' in {self.source} is missing or not {wanted}."
        return KvplanError(message, hint="save the benchmark's result again")


_MOST: Final = 10**12
"""Tokens or requests of one result."""
_COUNTS: Final = f"numbers from 0 to {_MOST:,}"
_COUNT: Final = f"a number from 0 to {_MOST:,}"


def _finite(value: object) -> float | None:
    """The finite number that ``value`` is, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _numbers(value: object) -> list[float] | None:
    """The finite numbers of a list, None for anything else."""
    found = [_finite(each) for each in value] if isinstance(value, list) else [None]
    numbers = [each for each in found if each is not None]
    return numbers if len(numbers) == len(found) else None


LARGEST_RESULT_BYTES: Final = GIB
_BLANK: Final = re.compile(r"\s*")


def read_json(path: Path) -> Any:
    """The file's document: one, or the list of those that stand one after another in it. KvplanError otherwise."""
    text = read_text(path, LARGEST_RESULT_BYTES, hint="give a benchmark's JSON file")
    if not text.strip():
        raise KvplanError(f"{path} is empty.", hint="the benchmark that should have written it did not end")
    try:
        documents = list(_documents(text))
    except (ValueError, RecursionError) as error:
        raise KvplanError(f"{path} is not JSON.", hint="give the JSON file that the benchmark saved") from error
    return documents[0] if len(documents) == 1 else documents


def _documents(text: str) -> Iterator[Any]:
    decoder, start, end = json.JSONDecoder(), 0, len(text.rstrip())
    while start < end:
        found, start = decoder.raw_decode(text, _BLANK.match(text, start).end())  # type: ignore[union-attr]
        yield found


def objects_of(document: Any) -> Sequence[Mapping[str, Any]] | None:
    """The objects of a list, or one object as a list; None for anything else."""
    if isinstance(document, Mapping):
        return [document]
    is_list = isinstance(document, list) and document and all(isinstance(each, Mapping) for each in document)
    return document if is_list else None
