"""Command-line options made from the settings' one declaration (kvplan.settings): name, aliases, help, panel, range.

    @takes_settings("gpu_memory_utilization", "block_size")
    def estimate(model: Model, settings: ServingSettings, explain: Explain = False) -> None: ...

What typer sees in the place of ``settings`` is one option for each name; what the function gets is one checked
ServingSettings.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

import typer

from kvplan.commands.options.groups import annotations_of
from kvplan.setting_values import read_settings
from kvplan.settings import KNOBS, Knob, option_of

Result = TypeVar("Result")
_WRITTEN = {
    "share": str,
    "count": int,
    "number": float,
    "tokens": str,
    "bytes": str,
    "rate": str,
    "name": str,
    "text": str,
    "flag": bool,
}
"""What typer reads of each kind."""
_METAVARS = {"tokens": "TOKENS", "bytes": "BYTES", "rate": "GBPS", "share": "SHARE", "name": "NAME", "text": "NAME"}


def takes_settings(
    *names: str, helps: Mapping[str, str] | None = None
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Replace the parameter ``settings`` by one option for each of ``names``; ``helps`` replaces their texts."""

    def decorate(function: Callable[..., Result]) -> Callable[..., Result]:
        hints = annotations_of(function)
        parameters: list[inspect.Parameter] = []
        for name, parameter in inspect.signature(function).parameters.items():
            if name == "settings":
                parameters.extend(_parameter(KNOBS[each], (helps or {}).get(each)) for each in names)
            else:
                parameters.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))

        @functools.wraps(function)
        def with_settings(**given: Any) -> Result:
            settings = read_settings({name: given.pop(name) for name in names})
            return function(settings=settings, **given)

        with_settings.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_settings.__annotations__ = {each.name: each.annotation for each in parameters}
        del with_settings.__wrapped__
        return with_settings

    return decorate


def _parameter(knob: Knob, help: str | None) -> inspect.Parameter:
    """The knob's option as typer reads it from a signature; ``help`` replaces the knob's text and its choices."""
    text = help or knob.help
    if help is None and knob.choices:
        text = f"{knob.help} One of {', '.join(knob.choices)}."
    # Of a flag that the engine decides where nothing is said, both answers can be given.
    both = knob.kind == "flag" and knob.default is None
    option = typer.Option(
        f"{knob.option}/{option_of('no_' + knob.name)}" if both else knob.option,
        *knob.aliases,
        help=text,
        metavar=_METAVARS.get(knob.kind),
        rich_help_panel=knob.panel,
    )
    written: Any = _WRITTEN[knob.kind]
    return inspect.Parameter(
        knob.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=knob.default,
        annotation=Annotated[written if knob.default is not None else written | None, option],
    )
