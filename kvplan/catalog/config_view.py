"""Checked reading of a published config.json: every value is validated, every error names its key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvplan.errors import KvplanError

_LARGEST = 2**40
_LARGEST_LAYERS = 1024
_LONGEST_LIST = 4096
_ABSENT = object()


class ConfigView:
    """One JSON object of a config. Keys that are null count as absent, as transformers treats them.

    ``path`` is where the object sits in the file (``text_config.``), for messages. ``assumptions`` collects one
    sentence for every default that was taken because the config is silent; sections share their parent's list.
    """

    def __init__(self, config: Mapping[str, Any], *, path: str = "", assumptions: list[str] | None = None) -> None:
        self.config = config
        self.path = path
        self.assumptions: list[str] = [] if assumptions is None else assumptions

    def has(self, key: str) -> bool:
        return self.config.get(key) is not None

    def names(self, key: str) -> bool:
        """True when the config has the key, even if its value is null."""
        return key in self.config

    def _first(self, keys: tuple[str, ...]) -> tuple[str, Any]:
        for key in keys:
            value = self.config.get(key)
            if value is not None:
                return key, value
        return keys[0], _ABSENT

    def _missing(self, key: str) -> KvplanError:
        return KvplanError(
            f"The config has no '{self.path}{key}', which is needed to size the model.",
            hint=f"give it with --assume {self.path}{key}=VALUE",
        )

    def _wrong(self, key: str, value: object, expected: str) -> KvplanError:
        shown = repr(value)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return KvplanError(
            f"The config's '{self.path}{key}' is {shown}; expected {expected}.",
            hint="correct the config.json, or pass the published one",
        )

    def integer(self, *keys: str, default: int | None = None, minimum: int = 1, maximum: int = _LARGEST) -> int:
        """The first of ``keys`` that is present, as a whole number in range; ``default`` when all are absent."""
        key, value = self._first(keys)
        if value is _ABSENT:
            if default is None:
                raise self._missing(key)
            return default
        return self._checked_integer(key, value, minimum, maximum)

    def _checked_integer(self, key: str, value: Any, minimum: int, maximum: int) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, value, "a whole number")
        if not minimum <= value <= maximum:
            raise self._wrong(key, value, f"a whole number from {minimum:,} to {maximum:,}")
        return value

    def optional_integer(self, *keys: str, minimum: int = 1) -> int | None:
        key, value = self._first(keys)
        if value is _ABSENT:
            return None
        return self._checked_integer(key, value, minimum, _LARGEST)

    def layers(self, *keys: str, default: int | None = None, minimum: int = 1) -> int:
        """A number of layers: as ``integer``, with a bound that keeps a misprint from filling the memory."""
        return self.integer(*keys, default=default, minimum=minimum, maximum=_LARGEST_LAYERS)

    def number(self, *keys: str, default: float) -> float:
        key, value = self._first(keys)
        if value is _ABSENT:
            return default
        return self._checked_number(key, value)

    def _checked_number(self, key: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e15:
            raise self._wrong(key, value, "a number that is not negative")
        return float(value)

    def flag(self, *keys: str, default: bool) -> bool:
        key, value = self._first(keys)
        if value is _ABSENT:
            return default
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def text(self, *keys: str, default: str | None = None) -> str:
        key, value = self._first(keys)
        if value is _ABSENT:
            if default is None:
                raise self._missing(key)
            return default
        if not isinstance(value, str):
            raise self._wrong(key, value, "a text")
        return value

    def items(self, key: str) -> list[Any] | None:
        """A list, or None when absent."""
        value = self.config.get(key)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self._wrong(key, value, "a list")
        if len(value) > _LONGEST_LIST:
            raise self._wrong(key, f"a list of {len(value):,}", f"a list of at most {_LONGEST_LIST:,}")
        return value

    def integers(self, key: str, *, minimum: int = 0) -> list[int] | None:
        values = self.items(key)
        if values is None:
            return None
        return [self._checked_integer(key, value, minimum, _LARGEST) for value in values]

    def numbers(self, key: str) -> list[float] | None:
        """A list of numbers that are not negative, null as 0; None where the config has no list there."""
        if not isinstance(self.config.get(key), list):
            return None
        return [self._checked_number(key, 0 if value is None else value) for value in self.items(key) or []]

    def texts(self, key: str) -> list[str] | None:
        values = self.items(key)
        if values is None:
            return None
        for value in values:
            if not isinstance(value, str):
                raise self._wrong(key, value, "a list of texts")
        return values

    def per_layer(self, key: str, num_layers: int, *, default: int | None = None, minimum: int = 1) -> list[int]:
        """A value per layer, from a list with one entry per layer or from one number for all."""
        value = self.config.get(key)
        if not isinstance(value, list):
            return [self.integer(key, default=default, minimum=minimum)] * num_layers
        values = self.integers(key, minimum=minimum) or []
        if len(values) != num_layers:
            raise self._wrong(key, f"a list of {len(values)}", f"one entry for each of {num_layers} layers")
        return values

    def section(self, key: str) -> ConfigView | None:
        """A nested object as a view of its own, or None when absent."""
        value = self.config.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self._wrong(key, value, "an object")
        return ConfigView(value, path=f"{self.path}{key}.", assumptions=self.assumptions)

    def changed(self, values: Mapping[str, Any]) -> ConfigView:
        """The same object with ``values`` for some of its keys, as a reader needs them."""
        return ConfigView({**self.config, **values}, path=self.path, assumptions=self.assumptions)

    def assume(self, sentence: str) -> None:
        if sentence not in self.assumptions:
            self.assumptions.append(sentence)

    def reject(self, key: str, expected: str) -> KvplanError:
        """The error that says what is wrong with ``key``; for rules that go beyond one value."""
        return self._wrong(key, self.config.get(key), expected)
