"""Commands with many options take dataclasses: each field is an option, a dataclass is a group of them.

    @shown_under("Load")
    @dataclass(frozen=True)
    class Load:
        num_prompts: Annotated[int | None, typer.Option(help="Requests per trial.")] = None

    @takes_groups
    def sweep(load: Load, dry_run: Annotated[bool, typer.Option("--dry-run")] = False) -> int: ...

What typer sees is one flat list of options; what the function gets are the groups. ``--help`` shows the options of a
group under its panel, except those that name their own.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

Result = TypeVar("Result")
Group = TypeVar("Group")
_PANELS: dict[type[Any], str] = {}
"""The panel of each group that has one."""


def takes_groups(function: Callable[..., Result]) -> Callable[..., Result]:
    """Let typer see the fields of every dataclass parameter as options of their own. Every field needs a default."""
    hints = annotations_of(function)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    options: dict[str, inspect.Parameter] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        for option in _options_of(groups[name]) if name in groups else [parameter.replace(annotation=hints[name])]:
            assert option.name not in options, f"two options are called {option.name}"
            options[option.name] = option.replace(kind=inspect.Parameter.KEYWORD_ONLY)

    @functools.wraps(function)
    def with_groups(**given: Any) -> Result:
        made = {name: group(**{field.name: given.pop(field.name) for field in fields(group)})
                for name, group in groups.items()}  # fmt: skip
        return function(**made, **given)

    with_groups.__signature__ = inspect.Signature(list(options.values()))  # type: ignore[attr-defined]
    with_groups.__annotations__ = {name: option.annotation for name, option in options.items()}
    del with_groups.__wrapped__
    return with_groups


def annotations_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the evaluated annotation of each parameter.

    Before Python 3.11 ``get_type_hints`` makes Optional[Annotated[...]] of a parameter whose default is None.
    """
    return {name: each.annotation for name, each in inspect.signature(function, eval_str=True).parameters.items()}


def shown_under(panel: str) -> Callable[[type[Group]], type[Group]]:
    """Return a decorator of a group: ``--help`` shows its options under ``panel``, except those that name their own."""

    def decorate(group: type[Group]) -> type[Group]:
        _PANELS[group] = panel
        return group

    return decorate


def _options_of(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    kind = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(
            field.name, kind, default=_default_of(field), annotation=_on_panel(hints[field.name], _PANELS.get(group))
        )
        for field in fields(group)
    ]


def _on_panel(hint: Any, panel: str | None) -> Any:
    """The option of ``hint`` under ``panel``, unless it names one."""
    written, option = get_args(hint)
    if panel is None or option.rich_help_panel is not None:
        return hint
    option = copy(option)
    option.rich_help_panel = panel
    return Annotated[written, option]


def _default_of(field: Field[Any]) -> Any:
    assert field.default is not MISSING, f"the option {field.name} needs a default"
    return field.default


def given_options(group: Any) -> Mapping[str, Any]:
    """The options of a group that the user wrote: those that are not None."""
    values = {field.name: getattr(group, field.name) for field in fields(group)}
    return {name: value for name, value in values.items() if value is not None}
