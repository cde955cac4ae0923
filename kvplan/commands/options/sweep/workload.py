"""The requests of each trial, and how they arrive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from kvplan.commands.options.groups import shown_under
from kvplan.commands.options.sweep.panels import DEFAULTS, WORKLOAD_PANEL
from kvplan.commands.options.trace import FILE_HELP


@shown_under(WORKLOAD_PANEL)
@dataclass(frozen=True)
class WorkloadOptions:
    """The requests, and how they arrive."""

    num_prompts: Annotated[int | None, typer.Option(help="Requests per trial; of a file the first so many.")] = None
    input_len: Annotated[
        str | None, typer.Option(help="Prompt tokens: 128, 96..288, or lognormal:MEDIAN:SIGMA[:FIRST..LAST].")
    ] = None
    output_len: Annotated[str | None, typer.Option(help="Generated tokens, in the same notation.")] = None
    num_prefixes: Annotated[
        int | None, typer.Option(help="Number of shared prefixes that prompts start with. Default: 1.")
    ] = None
    prefix_len: Annotated[str | None, typer.Option(help="Tokens per shared prefix, in addition to --input-len.")] = None
    workload: Annotated[str | None, typer.Option(metavar="FILE", help=FILE_HELP)] = None
    request_rate: Annotated[
        float | None,
        typer.Option(
            help="Arrivals per second; traces are rescaled to this rate. Default: the file's times, or all at once."
        ),
    ] = None
    burstiness: Annotated[
        float | None,
        typer.Option(help=f"1 is a Poisson process, less is burstier. Default: {DEFAULTS['burstiness']:g}."),
    ] = None
    max_concurrency: Annotated[int | None, typer.Option(help="Maximum number of requests in flight.")] = None
    seed: Annotated[
        int | None, typer.Option(help=f"Seed of requests and random weights. Default: {DEFAULTS['seed']}.")
    ] = None
