"""Options of ``kvplan plan`` that say how requests of a load follow and resemble each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from kvplan.commands.options.groups import shown_under
from kvplan.commands.options.shared import WORKLOAD_PANEL
from kvplan.planner.question.pattern import SPREADS


@shown_under(WORKLOAD_PANEL)
@dataclass(frozen=True)
class PatternOptions:
    """What a load has beside its size and its lengths."""

    think_time: Annotated[
        str | None, typer.Option(help="A user's mean pause between answer and next request, such as 20s. Default: 0.")
    ] = None
    turns: Annotated[
        int | None,
        typer.Option(help="Turns of a chat: a prompt holds the turns before and a message of --input-len. Default: 1."),
    ] = None
    prefix_len: Annotated[
        str | None, typer.Option(help="Tokens per shared prefix that prompts start with, in addition to --input-len.")
    ] = None
    num_prefixes: Annotated[
        int | None, typer.Option(help="Number of shared prefixes, each used as often as the others. Default: 1.")
    ] = None
    prefix_hit_rate: Annotated[
        str | None,
        typer.Option(
            help="Share of prompt tokens that the prefix cache has, such as 0.8, where it is known; taken as given."
        ),
    ] = None
    burstiness: Annotated[
        float | None,
        typer.Option(help="Of arrivals at --request-rate: 1 is a Poisson process, less is burstier. Default: 1."),
    ] = None
    length_spread: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"How prompts and answers spread around their mean: {', '.join(SPREADS)}. Default: uniform, from two "
            "thirds of it to four thirds.",
        ),
    ] = None
