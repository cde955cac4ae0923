"""``kvplan models``: the models known by name, with their main figures."""

from __future__ import annotations

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
    print_notes,
)
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
        print_registered(registered_models(), registry_release(), chosen, search)
        return
    found = list(known_models(search))
    print_notes(None if found else f"no model's name contains '{search}'.")
    print_models(found, chosen)


def _print_architectures(chosen: OutputFormat, search: str | None) -> None:
    found = [name for name in known_architectures() if search is None or search.casefold() in name.casefold()]
    print_notes(None if found else f"no architecture's name contains '{search}'.")
    if chosen is OutputFormat.json:
        print_json({"schema": "kvplan.architectures/1", "architectures": found})
    elif chosen is OutputFormat.csv:
        print_csv([{"architecture": name} for name in found])
    elif chosen is OutputFormat.md:
        print_markdown(["architecture"], [[name] for name in found])
    else:
        print("\n".join(found), end="\n" if found else "")
