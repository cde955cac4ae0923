"""Running the trials on several machines: over a Ray cluster, or a part of the plan on each."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.commands.options.groups import shown_under
from kvplan.commands.options.sweep.panels import SPREAD_PANEL
from kvplan.errors import UsageError
from kvplan.sweeps.options import SweepOptions

if TYPE_CHECKING:
    from kvplan.sweeps.cluster.connection import Cluster


@shown_under(SPREAD_PANEL)
@dataclass(frozen=True)
class SpreadOptions:
    """Several machines."""

    ray: Annotated[
        str | None, typer.Option(metavar="auto|HOST:PORT", help="Run the trials on the workers of a Ray cluster.")
    ] = None
    accelerator_type: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="With --ray: the GPUs to use, as Ray names them, such as L4 or H100."),
    ] = None
    shard: Annotated[
        str | None,
        typer.Option(metavar="K/N", help="Run the K-th of N parts of the plan; `kvplan merge` joins the parts."),
    ] = None


def spread_over(spread: SpreadOptions, options: SweepOptions) -> AbstractContextManager[Cluster | None]:
    """The cluster to run on; None for this machine. KvplanError where Ray is not installed, or nothing answers."""
    if spread.ray is None:
        if spread.accelerator_type is not None:
            raise UsageError("--accelerator-type is for --ray.", hint="leave it out")
        return nullcontext()
    from kvplan.sweeps.session import refuse_searches

    refuse_searches(options)
    from kvplan.sweeps.cluster.connection import connected

    return connected(spread.ray, spread.accelerator_type)
