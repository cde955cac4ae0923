"""``kvplan models``: the models known by name, with their main figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from kvplan.catalog.registry import known_architectures
from kvplan.catalog.vllm_registry import registered_models, registry_release
from kvplan.commands.printing.known import print_models, print_registered
from kvplan.commands.printing.render import (
    OutputFormat,
    chosen_format,
    print_csv,
    print_json,
    print_markdown,
)
from kvplan.errors import check
from kvplan.estimate.known_models import known_models


def models(
    search: Annotated[str | None, typer.Argument(help="Only models whose name contains this.")] = None,
    architectures: Annotated[bool, typer.Option("--architectures", help="List known architectures instead.")] = False,
    vllm: Annotated[
        bool, typer.Option("--vllm", help="List vLLM's architectures instead: sized or not, and why.")
    ] = False,
    output_format: Annotated[OutputFormat, typer.Option("--format", help="Output format.")] = OutputFormat.table,
    as_json: Annotated[bool, typer.Option("--json", help="Same as --format json.")] = False,
) -> None:
    """List the models known by name."""
    chosen = chosen_format(output_format, as_json=as_json)
    if architectures:
        _print_architectures(chosen, search)
        return
    if vllm:
        asked = [each for each in registered_models() if _matches(each.architecture, search)]
        _check_found(asked, search)
        print_registered(asked, registry_release(), chosen)
        return
    print_models(known_models(search), chosen)


def _matches(name: str, search: str | None) -> bool:
    return search is None or search.casefold() in name.casefold()


def _check_found(found: Sequence[object], search: str | None) -> None:
    """UsageError where no architecture's name contains ``search``."""
    hint = "`kvplan models --architectures` and `--vllm` list the known ones"
    check(bool(found), f"No architecture's name contains '{search}'", hint)


def _print_architectures(chosen: OutputFormat, search: str | None) -> None:
    found = [name for name in known_architectures() if _matches(name, search)]
    _check_found(found, search)
    if chosen is OutputFormat.json:
        print_json({"schema": "kvplan.architectures/1", "architectures": found})
    elif chosen is OutputFormat.csv:
        print_csv([{"architecture": name} for name in found])
    elif chosen is OutputFormat.md:
        print_markdown(["architecture"], [[name] for name in found])
    else:
        print("\n".join(found))
