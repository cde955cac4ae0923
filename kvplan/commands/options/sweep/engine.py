"""Who serves: kvplan's own engine, or another as a server."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.commands.options.groups import given_options, shown_under
from kvplan.commands.options.sweep.model import GOAL_PANEL, MODEL_PANEL, SPREAD_PANEL
from kvplan.errors import UsageError
from kvplan.sweeps.engine_names import OTHER_ENGINES
from kvplan.sweeps.options import SEARCH_RUNS, SweepOptions

if TYPE_CHECKING:
    from kvplan.sweeps.cluster.connection import Cluster
    from kvplan.sweeps.hosts import SweptEngine


@shown_under(MODEL_PANEL)
@dataclass(frozen=True)
class EngineOptions:
    """Who serves."""

    engine: Annotated[
        str | None, typer.Option(help=f"kvplan (the default), or another engine: {', '.join(OTHER_ENGINES)}.")
    ] = None
    engine_python: Annotated[
        str | None,
        typer.Option(help="Python interpreter of the environment with the engine, such as ~/vllm/bin/python."),
    ] = None
    engine_command: Annotated[
        str | None, typer.Option(help="Command that starts its server, instead of --engine-python.")
    ] = None
    engine_arg: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="An option of the engine's own, such as enforce-eager or cpu-offload-gb=4; repeatable.",
        ),
    ] = None
    url: Annotated[str | None, typer.Option(help="With --engine openai: a server that runs already.")] = None
    reuse_server: Annotated[
        bool | None,
        typer.Option(
            "--reuse-server",
            help="Lower max_num_seqs and max_num_batched_tokens of a running vLLM instead of starting another.",
        ),
    ] = None
    preload: Annotated[
        bool | None,
        typer.Option(
            "--preload/--no-preload",
            help="Import vLLM once and fork servers from there, or let each import it. Default: fork on a CPU.",
        ),
    ] = None


def given_engine(engine: EngineOptions) -> dict[str, Any]:
    """The engine as SweepOptions has it: its own options as a tuple."""
    given = dict(given_options(engine))
    if "engine_arg" in given:
        given["engine_args"] = tuple(given.pop("engine_arg"))
    return given


def settled(given: Mapping[str, Any], axes: Mapping[str, str], engine: str) -> tuple[dict[str, Any], dict[str, str]]:
    """``given`` and ``axes`` where arguments of ``engine`` that are settings of a sweep are its axes."""
    if not given.get("engine_args"):
        return dict(given), dict(axes)
    from kvplan.engines.arguments import settle_arguments

    found = settle_arguments(engine, given["engine_args"], axes)
    return {**given, "engine_args": found.arguments}, dict(found.axes)


def swept_engine(options: SweepOptions) -> SweptEngine | None:
    """The engine that the options name; None for kvplan's own, which needs none of the packages of a load over HTTP."""
    if not options.is_foreign:
        return None
    from kvplan.engines import registry

    return registry.swept_engine(options)


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
