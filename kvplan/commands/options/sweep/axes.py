"""The axes of a sweep as options: each takes one value, a list or a range."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, make_dataclass
from typing import Annotated, Any, Final

import typer

from kvplan.commands.options.sweep.model import SETTINGS_PANEL
from kvplan.settings import KNOBS
from kvplan.sweeps.axes import AXES, Axis, example_of


def _axis_option(axis: Axis) -> tuple[str, Any, Any]:
    """A field of AxisOptions: one value, a list or a range, as text; given again, it adds to the list."""
    knob = KNOBS[axis.name]
    what, _, _ = knob.help.partition(" Default:")
    example = example_of(axis)
    text = f"{what} {example[:1].upper()}{example[1:]}."
    option = typer.Option(axis.option, *knob.aliases, metavar="LIST", help=text, rich_help_panel=SETTINGS_PANEL)
    return axis.name, Annotated[list[str] | None, option], field(default=None)


_LISTS: Final = (
    *(name for axis in AXES.values() for name in (axis.option, *KNOBS[axis.name].aliases)),
    "--boundary",
    "--slo",
)
LIST_OPTIONS: dict[str, Callable[[str], object]] = dict.fromkeys(_LISTS, bool)
"""Options whose further values may follow after spaces (kvplan.list_words): every word, for there are no arguments."""

FLAG_OPTIONS: Final = frozenset(
    name for axis in AXES.values() if axis.kind == "flag" for name in (axis.option, *KNOBS[axis.name].aliases)
)
"""Options that mean yes without a value (kvplan.list_words)."""

AxisOptions = make_dataclass("AxisOptions", [_axis_option(axis) for axis in AXES.values()], frozen=True)
