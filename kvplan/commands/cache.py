"""``kvplan cache``: parse, ask, print. The arithmetic is in kvplan.fleet.tiers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from kvplan.catalog.devices.gpus import parse_gpu_count
from kvplan.catalog.devices.measured import load_measured
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import pooling_note, provenance_note, resolve_model
from kvplan.catalog.releases.vllm import version_note
from kvplan.commands.options.extras import need_extra
from kvplan.commands.options.groups import shown_under, takes_groups
from kvplan.commands.options.settings import takes_settings
from kvplan.commands.options.shared import (
    ENGINE_PANEL,
    MODEL_HELP,
    OUTPUT_PANEL,
    WORKLOAD_PANEL,
    Calibration,
    NoCalibration,
    TraceOptions,
    calibration_name,
)
from kvplan.commands.printing.caches import print_cache
from kvplan.commands.printing.render import OutputFormat, chosen_format, print_notes
from kvplan.errors import UsageError
from kvplan.fleet.tiers.answering import Progress, answer_cache
from kvplan.fleet.tiers.question import CACHE_SETTINGS, DEFAULT_GPU, cache_question
from kvplan.fleet.tiers.splits import SPLITS
from kvplan.foreign_text import unguarded
from kvplan.settings import GPU_PANEL, KNOBS, MEMORY_PANEL, ServingSettings
from kvplan.units import plural
from kvplan.workload.part import file_part

__all__ = ["LIST_OPTIONS", "cache"]

TIER_PANEL: Final = "Tiers"

LIST_OPTIONS: dict[str, Callable[[str], object]] = {
    "--gpu": parse_gpu_count,
    "--kv-cache-dtype": KNOBS["kv_cache_dtype"].canonical_name,
}
"""Options whose further values may follow after spaces, and what reads one of them (kvplan.list_words)."""

Trace = Annotated[Path, typer.Argument(help="Workload file that says what its prompts share.", metavar="TRACE")]
Model = Annotated[str, typer.Argument(help=MODEL_HELP, metavar="MODEL")]
Gpus = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help=f"GPUs of one replica, such as h100 or 4xh100; takes several. Default: {DEFAULT_GPU}.",
        rich_help_panel=GPU_PANEL,
    ),
]
Caches = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="KV cache formats; takes several. Default: auto and fp8.", rich_help_panel=MEMORY_PANEL
    ),
]
LongestSequences = Annotated[
    str | None,
    typer.Option(
        metavar="TOKENS",
        help="Longest sequence; longer requests are left out. Default: the model's longest.",
        rich_help_panel=WORKLOAD_PANEL,
    ),
]
Engine = Annotated[str, typer.Option(help="Engine: vllm or vllm@VERSION.", rich_help_panel=ENGINE_PANEL)]
Plot = Annotated[Path | None, typer.Option(help="Draw the curves to this PNG file.", rich_help_panel=OUTPUT_PANEL)]
Html = Annotated[
    Path | None, typer.Option(help="Write the answer with its curves as one HTML page.", rich_help_panel=OUTPUT_PANEL)
]
Format = Annotated[OutputFormat, typer.Option("--format", help="Output format.", rich_help_panel=OUTPUT_PANEL)]
AsJson = Annotated[
    bool, typer.Option("--json", help="Same as --format json, schema kvplan.cache/1.", rich_help_panel=OUTPUT_PANEL)
]


@shown_under(TIER_PANEL)
@dataclass(frozen=True)
class TierOptions:
    """How large the tiers may be, how fast, and who shares them."""

    host_memory: Annotated[
        str | None,
        typer.Option(metavar="BYTES", help="Host memory for KV of one replica, such as 512GiB. Default: proposed."),
    ] = None
    nvme: Annotated[str | None, typer.Option(metavar="BYTES", help="Drives below host memory, such as 4TB.")] = None
    host_bandwidth: Annotated[
        float | None, typer.Option(metavar="GBPS", help="GB/s from host memory to one GPU. Default: 70 % of its PCIe.")
    ] = None
    nvme_bandwidth: Annotated[
        float | None, typer.Option(metavar="GBPS", help="GB/s of all drives of a host. Default: 6.5, one drive.")
    ] = None
    replicas: Annotated[int, typer.Option(help="Replicas that the trace is split over.")] = 1
    router: Annotated[
        str,
        typer.Option(metavar="NAME", help=f"How it is split: {', '.join(SPLITS)} (one tier for all, of this size)."),
    ] = SPLITS[0]


@takes_groups
@takes_settings(*CACHE_SETTINGS)
def cache(
    trace: Trace,
    model: Model,
    *,
    gpu: Gpus = None,
    kv_cache_dtype: Caches = None,
    max_model_len: LongestSequences = None,
    tiers: TierOptions,
    part: TraceOptions,
    settings: ServingSettings = ServingSettings(),
    engine: Engine = "vllm",
    calibration: Calibration = None,
    no_calibration: NoCalibration = False,
    plot: Plot = None,
    html: Html = None,
    output_format: Format = OutputFormat.table,
    as_json: AsJson = False,
) -> None:
    """Size a prefix cache: what HBM, host memory and NVMe of any size find of a trace, and what that saves."""
    shown = chosen_format(output_format, as_json=as_json)
    if not trace.exists() and Path(model).is_file():
        raise UsageError(f"There is no trace '{trace}'.", hint=f"the trace comes first: kvplan cache {model} {trace}")
    for option, path in (("--plot", plot), ("--html", html)):
        if path is not None:
            need_extra(f"cache {option}", "report")
    question = cache_question(
        EngineChoice.parse(engine, known=("vllm",)),
        settings,
        gpu=gpu,
        kv_cache_dtype=kv_cache_dtype,
        max_model_len=max_model_len,
        **vars(tiers),
    )
    spec, measured = resolve_model(model), load_measured(calibration_name(calibration, no_calibration))
    used = file_part(**vars(part))
    with _progress() as progress:
        answer = answer_cache(trace, spec, question, used, measured, progress)
    left_out = f"{plural(answer.num_left_out, 'request')} longer than --max-model-len left out"
    print_notes(
        *measured.notices,
        provenance_note(spec),
        pooling_note(spec),
        version_note(question.engine.version),
        *answer.notes,
        left_out if answer.num_left_out else None,
    )
    print_cache(answer, shown.value)
    if plot is not None or html is not None:
        from kvplan.reports.caches import write_cache_report

        write_cache_report(answer, plot, html)


@contextmanager
def _progress() -> Iterator[Progress]:
    """Say on a terminal what is under way."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(file=unguarded(sys.stderr)).status("reading the trace") as status:
        yield status.update
