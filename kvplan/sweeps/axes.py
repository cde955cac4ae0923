"""The axes of a sweep, and how values are written: ``0.3,0.6,0.9``, ``1..64*2``, ``256..1024+256``, ``4k..32k*2``,
``false,true``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Final, Literal, cast, get_args

from kvplan.errors import UsageError
from kvplan.runs.trials import SETTING_NAMES
from kvplan.settings import FLAG_WORDS, KNOBS, Knob, option_of
from kvplan.units import LARGEST, parse_bytes, parse_tokens
from kvplan.workload.requests import LOWEST_RATE

AxisValue = float | int | str
AxisKind = Literal["share", "count", "tokens", "bytes", "name", "rate", "flag"]
_AXIS_KINDS: Final = get_args(AxisKind)

MOST_VALUES: Final = 1000
_END_OF_RANGE = re.compile(r"(?P<last>[^+*]+)(?:(?P<operator>[+*])(?P<step>.+))?")


@dataclass(frozen=True, slots=True)
class Axis:
    """A setting or a load that a sweep can vary. ``minimum``: of counts and tokens; ``choices``: of names; ``example``:
    of numbers, a list or a range.

    written: as the user wrote it, where that is not its own option. of_others: only engines other than kvplan's have
    it.
    """

    name: str
    kind: AxisKind
    minimum: int = 1
    choices: tuple[str, ...] = ()
    of_others: bool = False
    example: str = ""
    written: str = ""

    @property
    def option(self) -> str:
        return self.written or option_of(self.name)


def _axis_of(knob: Knob) -> Axis:
    assert knob.sweep_axis is not None and knob.kind in _AXIS_KINDS, f"{knob.name} cannot be an axis"
    return Axis(
        knob.name,
        cast(AxisKind, knob.kind),
        knob.sweep_axis.minimum,
        knob.sweep_axis.choices,
        knob.sweep_axis.of_others,
        knob.sweep_axis.example,
    )


AXES: Final[dict[str, Axis]] = {name: _axis_of(KNOBS[name]) for name in SETTING_NAMES}
"""The settings that are declared as axes in kvplan.settings."""
OWN_AXES: Final = {name: axis for name, axis in AXES.items() if not axis.of_others}
"""Those that kvplan's own engine has."""


def parse_values(axis: Axis, text: str) -> tuple[AxisValue, ...]:
    """The values of an axis as written in ``text``: in that order, each once. UsageError for anything else."""
    values: list[AxisValue] = []
    for part in text.split(","):
        values.extend(_parse_part(axis, part.strip()))
        if len(values) > MOST_VALUES:
            raise UsageError(f"{axis.option} '{text}' has more than {MOST_VALUES} values.", hint="take larger steps")
    return tuple(dict.fromkeys(values))


def _parse_part(axis: Axis, part: str) -> list[AxisValue]:
    if not part:
        raise UsageError(f"{axis.option} has an empty value.", hint=example_of(axis))
    if axis.kind == "name":
        if part not in axis.choices:
            raise UsageError(f"Unknown {axis.option} '{part}'.", hint="one of " + ", ".join(axis.choices))
        return [part]
    if axis.kind == "flag":
        if part not in FLAG_WORDS:
            raise UsageError(f"{axis.option} '{part}' is neither true nor false.", hint=example_of(axis))
        return [FLAG_WORDS[part]]
    if ".." not in part:
        return [_checked(axis, _number(axis, part), part)]
    first, rest = part.split("..", 1)
    match = _END_OF_RANGE.fullmatch(rest)
    if match is None:
        raise UsageError(f"{axis.option} '{part}' is not a range.", hint=example_of(axis))
    return list(_range_values(axis, part, first, match))


def _range_values(axis: Axis, part: str, first_text: str, match: re.Match[str]) -> list[AxisValue]:
    first, last = _number(axis, first_text), _number(axis, match["last"])
    _checked(axis, first, first_text)
    _checked(axis, last, match["last"])
    operator = match["operator"] or "+"
    step = _step(axis, part, operator, match["step"])
    if last < first:
        raise UsageError(f"{axis.option} '{part}': a range must be ascending.", hint="write the smaller end first")
    values: list[AxisValue] = []
    value = first
    while value <= last and len(values) <= MOST_VALUES:
        values.append(_checked(axis, value, part))
        value = value + step if operator == "+" else value * step
    return values


def _step(axis: Axis, part: str, operator: str, text: str | None) -> Decimal:
    if text is None:
        if axis.kind in ("share", "rate"):
            raise UsageError(f"{axis.option} '{part}' has no step.", hint=example_of(axis))
        return Decimal(1)
    step = _decimal(text) if operator == "*" or axis.kind in ("share", "rate") else _number(axis, text)
    if step is None or step <= 0 or (operator == "*" and step <= 1):
        raise UsageError(f"{axis.option} '{part}' has a step that never reaches the end.", hint=example_of(axis))
    return step


def _decimal(text: str) -> Decimal | None:
    try:
        number = Decimal(text.strip())
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _number(axis: Axis, text: str) -> Decimal:
    """A value of the axis. Tokens accept k and m, bytes their units; zero and less are left to the range check."""
    number = _decimal(text)
    if number is not None and number.copy_abs() > LARGEST:
        raise UsageError(f"{axis.option} '{text.strip()}' is more than {LARGEST:,}.", hint=example_of(axis))
    if number is not None:
        return number
    try:
        if axis.kind == "tokens":
            return Decimal(parse_tokens(text.strip()))
        if axis.kind == "bytes":
            return Decimal(parse_bytes(text.strip()))
    except UsageError:
        pass  # reported below, with the option's name
    raise UsageError(f"{axis.option} '{text.strip()}' is not a number.", hint=example_of(axis))


def _checked(axis: Axis, number: Decimal, text: str) -> float | int:
    if axis.kind == "share":
        if not 0 < float(number) <= 1:
            raise UsageError(
                f"{axis.name} must be above 0 and at most 1, got {number}.",
                hint="it is the share of device memory the engine may use, for example 0.9",
            )
        return float(number)
    if axis.kind == "rate":
        if float(number) < LOWEST_RATE:
            raise UsageError(f"{axis.name} must be at least {LOWEST_RATE:g}, got {number}.", hint=example_of(axis))
        return float(number)
    if number != number.to_integral_value():
        raise UsageError(f"{axis.name} must be a whole number, got {number} in '{text}'.", hint=example_of(axis))
    if number < axis.minimum:
        raise UsageError(f"{axis.name} must be at least {axis.minimum}, got {number}.", hint=example_of(axis))
    return int(number)


def example_of(axis: Axis) -> str:
    """How to write values of the axis, as a hint."""
    if axis.kind == "name":
        return "one or more of " + ", ".join(axis.choices)
    if axis.kind == "flag":
        return "without a value, or false,true for both"
    return f"a list or a range, such as {axis.example}"
