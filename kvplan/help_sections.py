"""Plain-text help in sections: options and commands stand under the title that their ``rich_help_panel`` names.

Typer would draw boxes with Rich, which takes twice the time that the whole of `kvplan --help` takes.
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
    """A command whose help shows its options panel by panel."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_parameters(self.get_params(ctx), ctx, formatter)


class SectionedGroup(TyperGroup):
    """A group whose help shows its commands panel by panel, before its own options."""

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
