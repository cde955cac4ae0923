"""Options that say which part of a workload's file is used, and how it is read: the same in every command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

import typer

from kvplan.commands.options.groups import shown_under

FILE_PANEL: Final = "Workload file"
FILE_HELP: Final = (
    "File with requests: Mooncake, Bailian, Azure, BurstGPT, ServeGen, AIPerf, ShareGPT, OpenAI batch, prompts of vllm "
    "bench, or CSV with input_len,output_len[,arrival_s]."
)


@shown_under(FILE_PANEL)
@dataclass(frozen=True)
class TraceOptions:
    """Which part of the workload's file, and how fast."""

    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="TIME", help="Use its requests from here on, such as 10m, counted from the first."
        ),
    ] = None
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Use its requests up to here, such as 20m.")
    ] = None
    speed: Annotated[float | None, typer.Option(help="Make its times so many times as fast. Default: 1.")] = None
    sample: Annotated[int | None, typer.Option(help="Use so many of its requests, drawn at random.")] = None
    trace_unit: Annotated[
        str | None,
        typer.Option(
            metavar="UNIT", help="Unit of its times: s, ms, us or ns. Default: decided by the file, and said."
        ),
    ] = None
    spread_ticks: Annotated[
        bool,
        typer.Option(
            "--spread-ticks", help="Spread requests of one moment until the next one: for files of a coarse clock."
        ),
    ] = False
