"""The declaration of a setting, and what it refuses. No torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, SupportsIndex

from kvplan_engine.errors import SettingsError

_COUNTED = ("tokens", "sequences", "adapters")
_MOST_COUNTED = 2**31 - 1
"""What kernels index by; the size of a buffer for as many is still a number that torch knows."""
_MOST_BITS_SHOWN = 128


@dataclass(frozen=True, slots=True)
class Range:
    """The values a number may have. text: what completes "must be ..."."""

    text: str
    contains: Callable[[float], bool]


@dataclass(frozen=True, slots=True)
class Knob:
    """The declaration of one setting; its name, type and default are those of the field that carries it.

    unit: of a number. choices: all values of a word. range: of a number, where it is limited; None is always allowed.
    in_vllm: vLLM has a setting of this name. reconfigurable: a loaded engine may change it.
    """

    help: str
    unit: str | None = None
    choices: tuple[str, ...] = ()
    range: Range | None = None
    in_vllm: bool = True
    reconfigurable: bool = False

    def check(self, name: str, value: Any) -> None:
        """SettingsError when ``value`` is out of range or not one of the choices."""
        refuse_beyond_64_bits(name, value)
        if (
            self.unit is not None
            and value is not None
            and (isinstance(value, bool) or not isinstance(value, SupportsIndex))
        ):
            raise SettingsError(f"{name} must be a whole number of {self.unit}, got {value!r}.")
        if self.range is not None and value is not None and not self.range.contains(value):
            raise SettingsError(f"{name} must be {self.range.text}, got {value}.")
        if self.unit in _COUNTED and value is not None and value > _MOST_COUNTED:
            raise SettingsError(f"{name} must be at most {_MOST_COUNTED:,}, got {value:,}.")
        if self.choices and value is not None and value not in self.choices:
            raise SettingsError(f"{name} '{value}' is not known.", hint="one of " + ", ".join(self.choices))


def refuse_beyond_64_bits(name: str, value: object) -> None:
    """SettingsError for an integer that neither torch nor a message to another process could hold."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        got = f"{value.bit_length():,} of them" if value.bit_length() > _MOST_BITS_SHOWN else value
        raise SettingsError(f"{name} must fit 64 bits, got {got}.")
