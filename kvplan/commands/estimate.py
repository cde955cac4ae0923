"""``kvplan estimate``: parse, ask, print. The arithmetic is in kvplan.estimate."""

from __future__ import annotations

from typing import Annotated

import typer

from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.gpus import DEFAULT_GPUS, find_gpu
from kvplan.catalog.measured import load_measured
from kvplan.catalog.models import provenance_note, resolve_model
from kvplan.commands.estimate_output import print_estimate
from kvplan.commands.render import OutputFormat, print_notes
from kvplan.commands.setting_options import takes_settings
from kvplan.commands.shared_options import (
    ENGINE_PANEL,
    OUTPUT_PANEL,
    Calibration,
    Model,
    NoCalibration,
    calibration_name,
)
from kvplan.errors import UsageError
from kvplan.estimate.answer import EstimateRequest, make_estimate
from kvplan.estimate.weights import NAMED_FORMATS
from kvplan.settings import GPU_PANEL, MODEL_PANEL, ServingSettings
from kvplan.units import parse_tokens

DEFAULT_ENGINE = "vllm"

Context = Annotated[
    str | None,
    typer.Option(help="Tokens per sequence; 32k is 32,768. Default: the model's longest.", rich_help_panel=MODEL_PANEL),
]
Assumptions = Annotated[
    list[str] | None,
    typer.Option(help="KEY=VALUE for a key missing from the config; repeatable.", rich_help_panel=MODEL_PANEL),
]
Gpus = Annotated[list[str] | None, typer.Option(help="GPU name; repeatable.", rich_help_panel=GPU_PANEL)]
Engine = Annotated[str, typer.Option(help="Memory model: vllm, vllm@VERSION or kvplan.", rich_help_panel=ENGINE_PANEL)]
Explain = Annotated[
    bool, typer.Option("--explain", help="Show every formula and every assumption.", rich_help_panel=OUTPUT_PANEL)
]
Format = Annotated[OutputFormat, typer.Option("--format", help="Output format.", rich_help_panel=OUTPUT_PANEL)]
AsJson = Annotated[bool, typer.Option("--json", help="Same as --format json.", rich_help_panel=OUTPUT_PANEL)]

_QUANTIZATION_HELP = "Weight format: auto (as published), none, " + ", ".join(NAMED_FORMATS) + "."


@takes_settings(
    "dtype",
    "quantization",
    "language_model_only",
    "encoder_tokens",
    "device_memory_bytes",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "gpu_memory_utilization",
    "kv_cache_dtype",
    "block_size",
    "max_num_seqs",
    "max_num_batched_tokens",
    helps={"quantization": _QUANTIZATION_HELP},
)
def estimate(
    model: Model,
    ctx: Context = None,
    assume: Assumptions = None,
    gpu: Gpus = None,
    settings: ServingSettings = ServingSettings(),
    engine: Engine = DEFAULT_ENGINE,
    calibration: Calibration = None,
    no_calibration: NoCalibration = False,
    explain: Explain = False,
    output_format: Format = OutputFormat.table,
    as_json: AsJson = False,
) -> None:
    """Size a model: weights, KV cache, and how many sequences fit on which GPU."""
    request = EstimateRequest(
        context_tokens=parse_tokens(ctx) if ctx is not None else None,
        gpus=tuple(find_gpu(name) for name in gpu or DEFAULT_GPUS),
        engine=EngineChoice.parse(engine),
        settings=settings,
    )
    spec = resolve_model(model, assumptions=parse_assumptions(assume or []))
    measured = load_measured(calibration_name(calibration, no_calibration))
    answer = make_estimate(spec, request, measured)
    print_notes(*measured.notices, provenance_note(spec))
    print_estimate(answer, OutputFormat.json if as_json else output_format, explain=explain)


def parse_assumptions(texts: list[str]) -> dict[str, str]:
    """``["head_dim=128"]`` -> ``{"head_dim": "128"}``. UsageError for anything without a ``=``."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise UsageError(f"--assume '{text}' is not KEY=VALUE.", hint="for example --assume head_dim=128")
        found[key.strip()] = value.strip()
    return found
