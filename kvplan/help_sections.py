"""Commands whose help is plain text in sections: options and commands under the titles of their ``rich_help_panel``.

Typer would draw boxes with Rich, which takes twice the time that the whole of `kvplan --help` takes, and read every
value with pydantic, whose import takes longer than an estimate computes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

Entry = tuple[str, str]
"""What is typed and what it does."""

_ALL_OF_IT = 1000
"""Characters of a command's summary: it is wrapped, never cut off."""
_PYTHON_TYPE = re.compile(r"<(?:list\[(\w+)]|(\w+) range)>")
"""How Typer writes the types of options that may be given again, and of numbers within bounds."""


class SectionedCommand(TyperCommand):
    """A command whose help shows its options panel by panel, and that takes words as they are."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _take_as_typed(self.get_params(ctx))
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_parameters(self.get_params(ctx), ctx, formatter)


class SectionedGroup(TyperGroup):
    """A group whose help shows its commands panel by panel, before its own options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _take_as_typed(self.get_params(ctx))
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        self.format_commands(ctx, formatter)
        _write_parameters(self.get_params(ctx), ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        entries = (
            (getattr(command, "rich_help_panel", None) or "Commands", (name, command.get_short_help_str(_ALL_OF_IT)))
            for name, command in self.commands.items()
            if not command.hidden
        )
        _write_sections(entries, formatter)


def _take_as_typed(parameters: Iterable[Any]) -> None:
    """Have values read by ``_AsTyped`` first, where this release of Typer has a reader for each parameter."""
    for parameter in parameters:
        if hasattr(parameter, "get_runtime_param"):
            parameter.get_runtime_param = _AsTyped(parameter).reader


class _AsTyped:
    """Reads the values of a parameter that Typer would not change: none, texts, lists of texts, and defaults of the
    parameter's type. What has to be converted or refused is left to Typer."""

    def __init__(self, parameter: Any) -> None:
        self._typers = parameter.get_runtime_param
        self._annotation = parameter.type_descriptor.annotation
        self._is_parsed = parameter.type_descriptor.parameter_info.parser is not None

    def reader(self) -> _AsTyped:
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return ``value`` as the command takes it, as Typer's own method of this name does."""
        is_list = param.multiple or param.nargs == -1
        if value is None:
            return () if is_list else None
        if self._is_parsed:
            pass
        elif self._annotation == list[str] and is_list and all(type(each) is str for each in value):
            return list(value)
        elif type(value) is self._annotation and not is_list:
            return value
        elif self._annotation is str and type(value) is int:  # a default
            return str(value)
        return self._typers().coerce(value, param=param, ctx=ctx)


def _write_parameters(parameters: Iterable[Any], ctx: Any, formatter: Any) -> None:
    """Arguments, then each panel of options in the order of its first option, then the options without a panel."""
    entries: list[tuple[str, Entry]] = []
    loose: list[tuple[str, Entry]] = []
    for parameter in parameters:
        if (record := parameter.get_help_record(ctx)) is None:
            continue
        entry = (_PYTHON_TYPE.sub(_type_of_one, record[0]), record[1])
        if parameter.param_type_name == "argument":
            entries.insert(sum(title == "Arguments" for title, _ in entries), ("Arguments", entry))
        elif panel := getattr(parameter, "rich_help_panel", None):
            entries.append((panel, entry))
        else:
            loose.append(("Options", entry))
    _write_sections(entries + loose, formatter)


def _type_of_one(found: re.Match[str]) -> str:
    """``<list[Path]>`` -> ``<path>``, ``<int range>`` -> ``<int>``."""
    return f"<{(found[1] or found[2]).lower()}>"


def _write_sections(entries: Iterable[tuple[str, Entry]], formatter: Any) -> None:
    sections: dict[str, list[Entry]] = {}
    for title, entry in entries:
        sections.setdefault(title, []).append(entry)
    for title, rows in sections.items():
        with formatter.section(typer.style(title, bold=True)):
            formatter.write_dl(rows)
