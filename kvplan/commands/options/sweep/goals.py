"""What a sweep is to look for, and how carefully."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from kvplan.commands.options.groups import given_options, shown_under
from kvplan.commands.options.sweep.panels import GOAL_PANEL
from kvplan.sweeps.options import SEARCH_RUNS


@shown_under(GOAL_PANEL)
@dataclass(frozen=True)
class GoalOptions:
    """What to look for, and how carefully."""

    slo: Annotated[
        list[str] | None, typer.Option(help="Bounds of p99 in ms, such as 'ttft:500 tpot:50', or mlperf:llama3.1-8b.")
    ] = None
    search: Annotated[
        str | None,
        typer.Option(
            help="Find the largest max_concurrency or request_rate within --slo; with values to choose from: "
            "max_concurrency=1..64."
        ),
    ] = None
    boundary: Annotated[
        list[str] | None,
        typer.Option(
            help="Find where max_model_len, gpu_memory_utilization or max_num_seqs stops working: one, a list, "
            "or a pair such as max_model_len*gpu_memory_utilization."
        ),
    ] = None
    num_runs: Annotated[
        int | None, typer.Option(help=f"Repetitions of every setting. Default: 1, or {SEARCH_RUNS} with --search.")
    ] = None
    rerun: Annotated[
        bool | None,
        typer.Option(
            "--rerun/--no-rerun", help="Run outliers again: those on a busy machine, or far from the other runs."
        ),
    ] = None
    trial_timeout: Annotated[
        float | None, typer.Option(help="Maximum time to serve one trial, in seconds. Default: from its prediction.")
    ] = None


def given_goals(goals: GoalOptions) -> dict[str, Any]:
    """The goals as SweepOptions has them: bounds in seconds by name, axes as a tuple."""
    given = dict(given_options(goals))
    if "slo" in given:
        from kvplan.planner.question.slo import measured_bounds

        given["slo_seconds"] = measured_bounds(given.pop("slo"))
    if "boundary" in given:
        given["boundary"] = tuple(name.strip() for text in given["boundary"] for name in text.split(","))
    return given
