"""``kvplan cache``: parse, ask, print. The arithmetic is in kvplan.fleet.tiers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
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
    calibration_name,
)
from kvplan.commands.options.trace import TraceOptions
from kvplan.commands.printing.caches import print_cache
from kvplan.commands.printing.render import OutputFormat, chosen_format, print_notes
from kvplan.errors import UsageError
from kvplan.fleet.tiers.answering import Progress, answer_cache
from kvplan.fleet.tiers.question import CacheQuestion
from kvplan.fleet.tiers.splits import SPLITS
from kvplan.foreign_text import unguarded
from kvplan.setting_values import split_list
from kvplan.settings import GPU_PANEL, KNOBS, MEMORY_PANEL, ServingSettings
from kvplan.units import parse_bytes, parse_tokens, plural
from kvplan.workload.part import file_part

__all__ = ["LIST_OPTIONS", "cache"]

TIER_PANEL: Final = "Tiers"
DEFAULT_GPU: Final = "h100"
_GB: Final = 1e9
_CACHE_SETTINGS: Final = (
    "dtype",
    "quantization",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "enable_expert_parallel",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "block_size",
    "max_num_seqs",
    "max_num_batched_tokens",
    "speculative_model",
    "num_speculative_tokens",
)

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
@takes_settings(*_CACHE_SETTINGS)
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
    for option, path in (("--plot", plot), ("--html", html)):
        if path is not None:
            need_extra(f"cache {option}", "report")
    question = _question(gpu, kv_cache_dtype, max_model_len, tiers, settings, engine)
    spec, measured = resolve_model(model), load_measured(calibration_name(calibration, no_calibration))
    used = file_part(start=part.start, end=part.end, speed=part.speed, sample=part.sample, trace_unit=part.trace_unit)
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


def _question(
    gpus: Sequence[str] | None,
    kv_cache_dtypes: Sequence[str] | None,
    max_model_len: str | None,
    tiers: TierOptions,
    settings: ServingSettings,
    engine: str,
) -> CacheQuestion:
    read = KNOBS["kv_cache_dtype"].canonical_name
    return CacheQuestion(
        gpus=tuple(parse_gpu_count(name) for name in split_list(gpus) or (DEFAULT_GPU,)),
        engine=EngineChoice.parse(engine, known=("vllm",)),
        settings=settings,
        kv_cache_dtypes=tuple(read(name) for name in split_list(kv_cache_dtypes) or ("auto", "fp8")),
        longest_context=None if max_model_len is None else parse_tokens(max_model_len),
        num_replicas=tiers.replicas,
        split=tiers.router,
        host_bytes=_size("--host-memory", tiers.host_memory),
        nvme_bytes=_size("--nvme", tiers.nvme),
        host_bytes_per_second=_bandwidth("--host-bandwidth", tiers.host_bandwidth),
        nvme_bytes_per_second=_bandwidth("--nvme-bandwidth", tiers.nvme_bandwidth),
    )


def _size(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return parse_bytes(text)
    except UsageError as error:
        raise UsageError(f"{option}: {error.message}", hint=error.hint) from error


def _bandwidth(option: str, number: float | None) -> float | None:
    if number is None:
        return None
    if not 0 < number < 1e6:
        raise UsageError(f"{option} must be above 0, got {number:g}.", hint="in GB/s, such as 50")
    return number * _GB


@contextmanager
def _progress() -> Iterator[Progress]:
    """Say on a terminal what is under way."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(file=unguarded(sys.stderr)).status("reading the trace") as status:
        yield status.update
