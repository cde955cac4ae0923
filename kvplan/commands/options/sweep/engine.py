"""Who serves: kvplan's own engine, or another as a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.commands.options.groups import given_options, shown_under
from kvplan.commands.options.sweep.panels import MODEL_PANEL
from kvplan.sweeps.engine_names import OTHER_ENGINES
from kvplan.sweeps.options import SweepOptions

if TYPE_CHECKING:
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
