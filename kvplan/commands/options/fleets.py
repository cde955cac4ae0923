"""Options of ``kvplan plan`` about a trace that is played as it is: windows, router, the shape of a day."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from kvplan.commands.options.groups import shown_under
from kvplan.fleet.routers.named import ROUTERS

FLEET_PANEL: Final = "Fleet for a trace"


@shown_under(FLEET_PANEL)
@dataclass(frozen=True)
class FleetOptions:
    """What keeps a service level over a trace means, and what the fleet stands behind."""

    window: Annotated[
        str | None, typer.Option(metavar="TIME", help="Keep --slo in every window of so long, such as 5m. Default: 5m.")
    ] = None
    share_of_windows: Annotated[
        str | None, typer.Option(metavar="SHARE", help="Of the windows, such as 95%. Default: all of them.")
    ] = None
    router: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help=f"Router before the replicas: {', '.join(ROUTERS)}. Default: the best of them."
        ),
    ] = None
    load_shape: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Stretch the trace over a day: CSV with hour,factor or time,factor of its rate."
        ),
    ] = None
