"""Commands with many options take dataclasses: each field is an option, a dataclass is a group of them.

    @dataclass(frozen=True)
    class Load:
        num_prompts: Annotated[int | None, typer.Option(help="Requests per trial.")] = None

    @takes_groups
    def sweep(load: Load, dry_run: Annotated[bool, typer.Option("--dry-run")] = False) -> int: ...

What typer sees is one flat list of options; what the function gets are the groups.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, TypeVar, get_type_hints

Result = TypeVar("Result")


def takes_groups(function: Callable[..., Result]) -> Callable[..., Result]:
    """Let typer see the fields of every dataclass parameter as options of their own. Every field needs a default."""
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if name != "return" and is_dataclass(hint)}
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


def _options_of(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=_default_of(field), annotation=hints[field.name]
        )
        for field in fields(group)
    ]


def _default_of(field: Field[Any]) -> Any:
    assert field.default is not MISSING, f"the option {field.name} needs a default"
    return field.default


def given_options(group: Any) -> Mapping[str, Any]:
    """The options of a group that the user wrote: those that are not None."""
    values = {field.name: getattr(group, field.name) for field in fields(group)}
    return {name: value for name, value in values.items() if value is not None}
