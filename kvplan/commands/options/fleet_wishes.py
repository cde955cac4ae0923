"""Options of ``kvplan plan`` about a trace's fleet: prefill and decode apart, replicas that come and go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from kvplan.commands.options.fleets import FLEET_PANEL
from kvplan.commands.options.groups import shown_under
from kvplan.fleet.apart.rules import HAND_OVERS


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
