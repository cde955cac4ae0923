"""Options of ``kvplan plan`` about a trace that is played as it is: windows, router, the shape of a day."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from kvplan.commands.options.groups import shown_under
from kvplan.fleet.apart.rules import HAND_OVERS
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


@shown_under(FLEET_PANEL)
@dataclass(frozen=True)
class WishOptions:
    """What is held against the fleet that was found."""

    disaggregate: Annotated[
        bool,
        typer.Option("--disaggregate", help="Compare with prefill and decode apart, in every ratio on as many GPUs."),
    ] = False
    hand_over: Annotated[
        str | None,
        typer.Option(
            metavar="ENGINE", help=f"Whose rules --disaggregate follows: {', '.join(HAND_OVERS)}. Default: vllm."
        ),
    ] = None
    autoscale: Annotated[
        bool,
        typer.Option(
            "--autoscale", help="Compare with replicas that come and go as a HorizontalPodAutoscaler has them."
        ),
    ] = False
    min_replicas: Annotated[int | None, typer.Option(help="Fewest replicas of --autoscale. Default: 1.")] = None
    max_replicas: Annotated[
        int | None, typer.Option(help="Most replicas of --autoscale. Default: those of the fixed fleet.")
    ] = None
    cold_start: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="How long until a new replica serves, such as 6m. Default: its weights at 1.2 GiB/s and 4m.",
        ),
    ] = None
