"""``kvplan plan``: parse, search, print. The arithmetic is in kvplan.planner."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from kvplan.catalog.devices.measured import load_measured
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import provenance_note, resolve_model
from kvplan.catalog.releases.vllm import version_note
from kvplan.catalog.speculation.config import with_speculative_config
from kvplan.catalog.vllm_models import service_note
from kvplan.commands.options.groups import takes_groups
from kvplan.commands.options.patterns import PatternOptions
from kvplan.commands.options.plans import LIST_OPTIONS, FormatOptions, GpuOptions, LoadOptions
from kvplan.commands.options.settings import takes_settings
from kvplan.commands.options.shared import (
    ENGINE_PANEL,
    OUTPUT_PANEL,
    Calibration,
    Model,
    NoCalibration,
    SpeculativeConfig,
    calibration_name,
)
from kvplan.commands.printing.plans import print_answer
from kvplan.commands.printing.render import chosen_format, print_notes
from kvplan.planner.question.asking import PLAN_SETTINGS, plan_request
from kvplan.planner.search.fixes import cheapest_fix
from kvplan.planner.search.plan import make_plan
from kvplan.settings import ServingSettings

__all__ = ["LIST_OPTIONS", "plan"]


class PlanFormat(str, Enum):
    """What ``plan --format`` takes."""

    table = "table"
    json = "json"
    csv = "csv"
    compose = "compose"
    kubernetes = "kubernetes"


Engine = Annotated[str, typer.Option(help="Memory model: vllm or vllm@VERSION.", rich_help_panel=ENGINE_PANEL)]
Plot = Annotated[
    Path | None, typer.Option(help="Draw memory, concurrency and steps to this PNG file.", rich_help_panel=OUTPUT_PANEL)
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
        help="Output format; compose and kubernetes start the best deployment.",
        rich_help_panel=OUTPUT_PANEL,
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Same as --format json, schema kvplan.plan/1.", rich_help_panel=OUTPUT_PANEL)
]


@takes_groups
@takes_settings(*PLAN_SETTINGS)
def plan(
    model: Model,
    load: LoadOptions,
    pattern: PatternOptions,
    gpus: GpuOptions,
    formats: FormatOptions,
    settings: ServingSettings = ServingSettings(),
    speculative_config: SpeculativeConfig = None,
    engine: Engine = "vllm",
    calibration: Calibration = None,
    no_calibration: NoCalibration = False,
    plot: Plot = None,
    explain: Explain = False,
    output_format: Format = PlanFormat.table,
    as_json: AsJson = False,
) -> None:
    """Find the GPUs and settings that serve a given load."""
    shown = chosen_format(output_format, as_json=as_json)
    request = plan_request(
        EngineChoice.parse(engine, known=("vllm",)),
        with_speculative_config(settings, speculative_config),
        **vars(load),
        **vars(pattern),
        **vars(gpus),
        **vars(formats),
    )
    spec = resolve_model(model)
    measured = load_measured(calibration_name(calibration, no_calibration))
    found = make_plan(spec, request, measured)
    version = request.engine.version
    print_notes(
        *measured.notices, provenance_note(spec), version_note(version), service_note(spec.architecture, version)
    )
    print_answer(found, cheapest_fix(found, measured), shown.value, plot, explain=explain)
