"""``kvplan plan``: parse, search, print. The arithmetic is in kvplan.planner."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from kvplan.catalog.devices.measured import MeasuredProfiles, load_measured
from kvplan.catalog.models import pooling_note, provenance_note, resolve_model
from kvplan.catalog.releases.vllm import version_note
from kvplan.catalog.spec import ModelSpec
from kvplan.catalog.vllm_refusals import service_note
from kvplan.commands.options.groups import takes_groups
from kvplan.commands.options.plans import (
    LIST_OPTIONS,
    FleetOptions,
    FormatOptions,
    GpuOptions,
    PatternOptions,
    PlanLoadOptions,
    WishOptions,
)
from kvplan.commands.options.settings import takes_settings
from kvplan.commands.options.shared import (
    ENGINE_PANEL,
    MODEL_HELP,
    OUTPUT_PANEL,
    Calibration,
    MeasuredResults,
    NoCalibration,
    SpeculativeConfig,
    TraceOptions,
    calibration_name,
)
from kvplan.commands.printing.plan_page import plan_page, write_page
from kvplan.commands.printing.plans import print_answer, print_unlike
from kvplan.commands.printing.render import chosen_format, print_notes
from kvplan.foreign_text import unguarded
from kvplan.planner.likeness import AskedPlan, likened
from kvplan.planner.question.asking import PLAN_SETTINGS
from kvplan.planner.question.request import PlanRequest
from kvplan.planner.search.fixes import cheapest_fix
from kvplan.planner.search.frontier import Progress
from kvplan.planner.search.plan import make_plan
from kvplan.settings import ServingSettings

__all__ = ["LIST_OPTIONS", "plan"]


class PlanFormat(str, Enum):
    """What ``plan --format`` takes."""

    table = "table"
    json = "json"
    csv = "csv"
    md = "md"
    docker = "docker"
    compose = "compose"
    kubernetes = "kubernetes"
    helm = "helm"
    html = "html"


Model = Annotated[str | None, typer.Argument(help=MODEL_HELP, metavar="MODEL")]
Like = Annotated[
    str | None,
    typer.Option(
        metavar="COMMAND",
        help="A vLLM command in quotes: its model and settings are kept, its layout is tried first.",
        rich_help_panel=ENGINE_PANEL,
    ),
]
Engine = Annotated[str, typer.Option(help="Memory model: vllm or vllm@VERSION.", rich_help_panel=ENGINE_PANEL)]
Plot = Annotated[
    Path | None, typer.Option(help="Draw memory, concurrency and steps to this PNG file.", rich_help_panel=OUTPUT_PANEL)
]
Html = Annotated[
    Path | None,
    typer.Option(
        help="Write the answer with its pictures as one HTML page to this file.", rich_help_panel=OUTPUT_PANEL
    ),
]
Explain = Annotated[
    bool,
    typer.Option(
        "--explain", help="Show what the steps of the best deployment consist of.", rich_help_panel=OUTPUT_PANEL
    ),
]
Format = Annotated[
    PlanFormat,
    typer.Option(
        "--format",
        help="Output format; docker, compose, kubernetes and helm start the best deployment, html is one page.",
        rich_help_panel=OUTPUT_PANEL,
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Same as --format json, schema kvplan.plan/1.", rich_help_panel=OUTPUT_PANEL)
]


@contextmanager
def _playing(*, shows: bool) -> Iterator[Progress | None]:
    """Say on a terminal how many loads were played."""
    if not shows or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(file=unguarded(sys.stderr)).status("sizing layouts") as status:
        yield lambda num_played, _: status.update(f"{num_played:,} loads played")


@takes_groups
@takes_settings(*PLAN_SETTINGS)
def plan(
    model: Model = None,
    *,
    load: PlanLoadOptions,
    pattern: PatternOptions,
    trace: TraceOptions,
    fleet: FleetOptions,
    wishes: WishOptions,
    gpus: GpuOptions,
    formats: FormatOptions,
    settings: ServingSettings = ServingSettings(),
    like: Like = None,
    speculative_config: SpeculativeConfig = None,
    engine: Engine = "vllm",
    calibration: Calibration = None,
    no_calibration: NoCalibration = False,
    measured_results: MeasuredResults = None,
    plot: Plot = None,
    html: Html = None,
    explain: Explain = False,
    output_format: Format = PlanFormat.table,
    as_json: AsJson = False,
) -> None:
    """Find the GPUs and settings that serve a given load.

    --like keeps the settings of a vLLM command, and tells what would be better without them.
    """
    shown = chosen_format(output_format, as_json=as_json)
    options: dict[str, Any] = {}
    for group in (load, pattern, trace, fleet, wishes, gpus, formats):
        options |= vars(group)
    asked = AskedPlan(model, settings, options, engine, speculative_config)
    kept, notes = (asked, []) if like is None else likened(asked, like)
    spec, request = resolve_model(kept.named_model), kept.request()
    measured = load_measured(calibration_name(calibration, no_calibration))
    if measured_results:
        from kvplan.calibrate.own_server import of_plan, with_results

        measured = with_results(measured, measured_results, of_plan(spec, request))
    if request.trace is not None:
        if like is not None:
            notes = [*notes, "what would be better without the command's settings is not searched for a trace"]
        said = (*measured.notices, *notes)
        _plan_trace(spec, request, measured, said, shown.value, html, plot, explain=explain)
        return
    with _playing(shows=request.thorough) as progress:
        found = make_plan(spec, request, measured, progress)
    version = request.engine.version
    print_notes(
        *measured.notices,
        *notes,
        provenance_note(spec),
        pooling_note(spec),
        version_note(version),
        service_note(spec.architecture, version),
    )
    if html is not None and found.deployments:
        write_page(plan_page(found), html)
    try:
        print_answer(found, cheapest_fix(found, measured), shown.value, plot, explain=explain)
    finally:
        if like is not None and shown is PlanFormat.table:
            free = asked.without_command(kept, request.longest_context).request()
            print_unlike(found, make_plan(spec, free, measured))


def _plan_trace(
    spec: ModelSpec,
    request: PlanRequest,
    measured: MeasuredProfiles,
    notes: Sequence[str],
    shown: str,
    html: Path | None,
    plot: Path | None,
    *,
    explain: bool,
) -> None:
    """Search the fleet of a trace, with what is found on stderr meanwhile."""
    # Other plans need none of these rooms, which take a tenth of a second to import.
    from kvplan.commands.printing.fleet_progress import searching
    from kvplan.commands.printing.fleets import draw_picture, fleet_as_page, print_fleet
    from kvplan.planner.fleets.answering import plan_fleet

    with searching() as listener:
        answer = plan_fleet(spec, request, measured, listener)
    version = request.engine.version
    print_notes(
        *notes,
        provenance_note(spec),
        pooling_note(spec),
        version_note(version),
        service_note(spec.architecture, version),
    )
    if html is not None and answer.best is not None:
        write_page(fleet_as_page(answer, answer.best), html)
    if plot is not None and answer.best is not None:
        draw_picture(answer, plot)
    print_fleet(answer, shown, explain=explain)
