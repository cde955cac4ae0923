"""Reading JSON that others wrote: typed values, and one sentence where a file is not what it should be."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvplan.errors import KvplanError


@dataclass(frozen=True, slots=True)
class Fields:
    """One object of a file. source: how messages call it."""

    values: Mapping[str, Any]
    source: str

    def has(self, *names: str) -> bool:
        return all(name in self.values for name in names)

    def number(self, name: str) -> float:
        """KvplanError where it is missing or not a finite number."""
        found = self.optional_number(name)
        if found is None:
            raise self.malformed(name, "a number")
        return found

    def optional_number(self, name: str) -> float | None:
        """None where it is missing, null or not a number."""
        value = self.values.get(name)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        return float(value) if is_number else None  # type: ignore[arg-type]

    def seconds(self, name: str) -> float | None:
        """A figure in milliseconds, in seconds; None where it is missing or 0."""
        found = self.optional_number(name)
        return found / 1000 if found else None

    def text(self, name: str) -> str | None:
        value = self.values.get(name)
        return value if isinstance(value, str) and value else None

    def inner(self, *names: str) -> Fields:
        """The object at a path of names; an empty one where there is none."""
        value: Any = self.values
        for name in names:
            value = value.get(name) if isinstance(value, Mapping) else None
        return Fields(value if isinstance(value, Mapping) else {}, self.source)

    def objects(self, name: str) -> list[Fields]:
        """A list of objects. KvplanError where it is anything else."""
        found = self.values.get(name)
        if not isinstance(found, list) or not all(isinstance(each, Mapping) for each in found):
            raise self.malformed(name, "a list of objects")
        return [Fields(each, self.source) for each in found]

    def numbers(self, name: str) -> list[float]:
        """A list of numbers. KvplanError where it is anything else."""
        found = self.values.get(name)
        if not isinstance(found, list) or not all(isinstance(each, (int, float)) for each in found):
            raise self.malformed(name, "a list of numbers")
        return [float(each) for each in found]

    def malformed(self, name: str, wanted: str) -> KvplanError:
        return KvplanError(
            f"'{name}' in {self.source} is missing or not {wanted}.", hint="save the benchmark's result again"
        )


def read_json(path: Path) -> Any:
    """The file's document: one, or the list of those that stand one after another in it. KvplanError otherwise."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise KvplanError(f"{path} cannot be read: {reason}.", hint="give a benchmark's JSON file") from error
    if not text.strip():
        raise KvplanError(f"{path} is empty.", hint="the benchmark that should have written it did not end")
    try:
        documents = list(_documents(text))
    except ValueError as error:
        raise KvplanError(f"{path} is not JSON.", hint="give the JSON file that the benchmark saved") from error
    return documents[0] if len(documents) == 1 else documents


def _documents(text: str) -> Iterator[Any]:
    decoder, left = json.JSONDecoder(), text.strip()
    while left:
        found, end = decoder.raw_decode(left)
        yield found
        left = left[end:].lstrip()


def objects_of(document: Any) -> Sequence[Mapping[str, Any]] | None:
    """The objects of a list, or one object as a list; None for anything else."""
    if isinstance(document, Mapping):
        return [document]
    is_list = isinstance(document, list) and document and all(isinstance(each, Mapping) for each in document)
    return document if is_list else None
