"""``kvplan gpus``: the devices known by name, with the memory their drivers report."""

from __future__ import annotations

from typing import Annotated

import typer

from kvplan.catalog.devices.gpus import known_gpus
from kvplan.commands.printing.known import print_gpus
from kvplan.commands.printing.render import OutputFormat, chosen_format


def gpus(
    search: Annotated[str | None, typer.Argument(help="Only devices whose name contains this.")] = None,
    output_format: Annotated[OutputFormat, typer.Option("--format", help="Output format.")] = OutputFormat.table,
    as_json: Annotated[bool, typer.Option("--json", help="Same as --format json.")] = False,
) -> None:
    """List the GPUs known by name."""
    chosen = chosen_format(output_format, as_json=as_json)
    print_gpus(known_gpus(search), chosen)
