"""``kvplan plan``: parse, search, print. The arithmetic is in kvplan.planner."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

import typer

from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.gpus import GpuProfile, find_gpu, load_gpus
from kvplan.catalog.measured import load_measured
from kvplan.catalog.models import provenance_note, resolve_model
from kvplan.commands.render import print_json, print_notes, print_table
from kvplan.commands.setting_options import takes_settings
from kvplan.commands.shared_options import (
    ENGINE_PANEL,
    OUTPUT_PANEL,
    WORKLOAD_PANEL,
    Calibration,
    Model,
    NoCalibration,
    calibration_name,
)
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate.speed.latency import Range
from kvplan.planner.candidate import Deployment
from kvplan.planner.document import USERS_ASSUMPTION, calibration_notes, plan_document
from kvplan.planner.formats import FORMAT_NAMES
from kvplan.planner.launch import launch_commands
from kvplan.planner.request import PlanRequest
from kvplan.planner.rule_of_thumb import RuleOfThumb, users_by_rule
from kvplan.planner.search import Plan, make_plan
from kvplan.planner.slo import parse_slo
from kvplan.settings import GPU_PANEL, KNOBS, MEMORY_PANEL, MODEL_PANEL, ServingSettings
from kvplan.units import format_bytes, format_gib, parse_tokens

DEFAULTS = PlanRequest()
_SHOWN = 10


More = Annotated[
    list[str] | None,
    typer.Argument(help="Further values of --slo (with a colon) and --gpu.", metavar="[VALUES]", show_default=False),
]
Users = Annotated[int | None, typer.Option(help="Requests in progress at once.", rich_help_panel=WORKLOAD_PANEL)]
Rate = Annotated[
    float | None, typer.Option(help="Requests per second, instead of --users.", rich_help_panel=WORKLOAD_PANEL)
]
AverageContext = Annotated[
    str | None,
    typer.Option(help="Tokens that a sequence holds on average, such as 8k.", rich_help_panel=WORKLOAD_PANEL),
]
LongestContext = Annotated[
    str | None,
    typer.Option(help="Longest sequence that must be served, such as 32k.", rich_help_panel=WORKLOAD_PANEL),
]
InputLength = Annotated[str | None, typer.Option(help="Tokens per prompt.", rich_help_panel=WORKLOAD_PANEL)]
OutputLength = Annotated[str | None, typer.Option(help="Tokens per answer.", rich_help_panel=WORKLOAD_PANEL)]
Levels = Annotated[
    list[str] | None,
    typer.Option(
        help="ttft:500 tpot:50 e2el:5000 in ms, or mlperf:llama3.1-8b; takes several.", rich_help_panel=WORKLOAD_PANEL
    ),
]
WorstCase = Annotated[
    bool,
    typer.Option(
        "--worst-case", help="Size for all users at --ctx-max instead of --ctx-avg.", rich_help_panel=WORKLOAD_PANEL
    ),
]
Gpus = Annotated[
    list[str] | None, typer.Option(help="GPU names; takes several. Default: all.", rich_help_panel=GPU_PANEL)
]
MaxGpus = Annotated[int, typer.Option(help="GPUs in total, over all replicas.", rich_help_panel=GPU_PANEL)]
Formats = Annotated[
    list[str] | None,
    typer.Option(help=f"Weight formats to try, repeatable: {', '.join(FORMAT_NAMES)}.", rich_help_panel=MODEL_PANEL),
]
KvFormats = Annotated[
    list[str] | None,
    typer.Option(help="KV cache formats to try, repeatable: auto, fp8.", rich_help_panel=MEMORY_PANEL),
]
Engine = Annotated[str, typer.Option(help="Memory model: vllm or vllm@VERSION.", rich_help_panel=ENGINE_PANEL)]
Plot = Annotated[
    Path | None, typer.Option(help="Draw memory and concurrency to this PNG file.", rich_help_panel=OUTPUT_PANEL)
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON document, schema kvplan.plan/1.", rich_help_panel=OUTPUT_PANEL)
]


@takes_settings("gpu_memory_utilization", "dtype")
def plan(
    model: Model,
    more: More = None,
    users: Users = None,
    request_rate: Rate = None,
    ctx_avg: AverageContext = None,
    ctx_max: LongestContext = None,
    input_len: InputLength = None,
    output_len: OutputLength = None,
    slo: Levels = None,
    worst_case: WorstCase = False,
    gpu: Gpus = None,
    max_gpus: MaxGpus = DEFAULTS.max_gpus,
    quantization: Formats = None,
    kv_cache_dtype: KvFormats = None,
    settings: ServingSettings = ServingSettings(),
    engine: Engine = "vllm",
    calibration: Calibration = None,
    no_calibration: NoCalibration = False,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Find the GPUs and settings that serve a given load."""
    levels, names = _sort_words(slo or [], gpu or [], more or [])
    request = PlanRequest(
        num_users=_positive(users, "--users"),
        requests_per_second=_positive(request_rate, "--request-rate"),
        average_context=_tokens(ctx_avg),
        longest_context=_tokens(ctx_max),
        input_tokens=_tokens(input_len),
        output_tokens=_tokens(output_len),
        slo=parse_slo(levels),
        gpus=_gpus(names),
        max_gpus=_positive(max_gpus, "--max-gpus") or DEFAULTS.max_gpus,
        quantizations=tuple(quantization) if quantization else None,
        kv_cache_dtypes=tuple(map(KNOBS["kv_cache_dtype"].canonical_name, kv_cache_dtype or ["auto"])),
        worst_case=worst_case,
        engine=EngineChoice.parse(engine, known=("vllm",)),
        settings=settings,
    )
    spec = resolve_model(model)
    measured = load_measured(calibration_name(calibration, no_calibration))
    found = make_plan(spec, request, measured)
    print_notes(*measured.notices, provenance_note(spec))
    _answer(found, plot, as_json=as_json)


def _answer(found: Plan, plot: Path | None, *, as_json: bool) -> None:
    if as_json:
        print_json(plan_document(found))
    else:
        _print_plan(found)
    if plot is not None and found.deployments:
        from kvplan.planner.picture import draw_plan

        draw_plan(found, plot)
    if not found.deployments:
        raise _nothing_fits(found)


def _sort_words(slo: list[str], gpu: list[str], more: list[str]) -> tuple[list[str], list[str]]:
    """``--slo ttft:500 tpot:50`` leaves the second value behind: words with a colon are levels, others GPUs."""
    levels = [word for text in slo for word in text.replace(",", " ").split()]
    names = [part.strip() for text in gpu for part in text.split(",")]
    for word in more:
        if ":" in word:
            levels.append(word)
        elif gpu:
            names.append(word)
        else:
            raise UsageError(f"Unexpected argument '{word}'.", hint="GPU names follow --gpu")
    return levels, names


def _gpus(names: list[str]) -> tuple[GpuProfile, ...]:
    if names:
        return tuple(dict.fromkeys(find_gpu(name) for name in names))
    return tuple(gpu for gpu in load_gpus() if not gpu.is_cpu)


def _tokens(text: str | None) -> int | None:
    return None if text is None else parse_tokens(text)


Number = TypeVar("Number", int, float)


def _positive(number: Number | None, option: str) -> Number | None:
    if number is not None and number <= 0:
        raise UsageError(f"{option} must be above 0, got {number}.", hint=f"for example {option} 8")
    return number


def _nothing_fits(found: Plan) -> KvplanError:
    miss = found.nearest_miss
    if miss is None:
        return KvplanError("Nothing fits.")
    where = f"{miss.choice.tensor_parallel_size} x {miss.choice.gpu.id}"
    lacks = f" ({format_bytes(miss.missing_bytes)} missing on each GPU)" if miss.missing_bytes else ""
    hint = None
    if found.fix is not None:
        answer = found.fix.deployment
        hint = f"{found.fix.sentence}: then {answer.num_gpus} x {answer.choice.gpu.id} serve it"
    return KvplanError(f"No deployment serves this load. Nearest: {where}{lacks}. {miss.sentence}", hint=hint)


_HEAD = (
    "deployment",
    "weights",
    "KV",
    "weights GiB",
    "KV pool GiB",
    "at ctx-avg",
    "at ctx-max",
    "by rule",
    "TTFT ms",
    "TPOT ms",
    "tokens/s",
    "$/h",
    "$/Mtok",
    "SLO",
    "limit",
)


def _print_plan(found: Plan) -> None:
    workload = found.workload
    who = f"{workload.num_users:,} users" if workload.num_users else f"{workload.requests_per_second:g} requests/s"
    lengths = f"{workload.average_context:,} tokens on average, {workload.longest_context:,} at most"
    print(f"{found.spec.id}: {who}, {lengths}; prompts {workload.input_tokens:,}, answers {workload.output_tokens:,}")
    for note in workload.assumptions:
        print(f"  {note}")
    if found.rule is not None:
        total = found.rule.total_bytes / 1e9
        print(f"  rule of thumb (weights + 1.2 GB x users + 5 GB): {total:,.0f} GB in all")
    if not found.deployments:
        return
    print()
    rows = [_row(deployment, found.rule) for deployment in found.deployments[:_SHOWN]]
    print_table(None, _HEAD, rows, text_columns=(0, 1, 2, 13, 14))
    left = len(found.deployments) - _SHOWN
    if left > 0:
        print(f"  ... and {left} more (--json lists all)")
    print(f"\n  {_origin_sentence(found)} {USERS_ASSUMPTION}")
    for note in calibration_notes(found.deployments[:_SHOWN]):
        print(f"  {note}")
    best = found.deployments[0]
    print(f"\nbest: {_settings_line(best)}")
    if best.choice.gpu.price is not None:
        print(f"  price: {best.choice.gpu.price.source}")
    for engine, command in launch_commands(best, found.spec.id).items():
        print(f"  {engine + ':':14s}{command}")


def _origin_sentence(found: Plan) -> str:
    """Where the shown speeds come from."""
    origins = dict.fromkeys(deployment.speed.origin for deployment in found.deployments[:_SHOWN])
    words = {
        "roofline": "roofline estimates",
        "measured": "based on measurements of this model",
        "calibrated": "based on measurements of another model or dtype",
    }
    if len(origins) == 1:
        return f"TTFT, TPOT and tokens/s are {words[next(iter(origins))]}."
    return "TTFT, TPOT and tokens/s are roofline estimates unless noted below."


def _settings_line(deployment: Deployment) -> str:
    settings = deployment.prediction.settings.serving
    return (
        f"{deployment.name}, gpu_memory_utilization {settings.gpu_memory_utilization}, "
        f"max_num_seqs {settings.max_num_seqs}, max_model_len {settings.max_model_len}, "
        f"max_num_batched_tokens {settings.max_num_batched_tokens}, block_size {deployment.prediction.block_size}"
    )


def _row(deployment: Deployment, rule: RuleOfThumb | None) -> tuple[str, ...]:
    rank, speed, capacity = deployment.prediction.rank, deployment.speed, deployment.capacity
    throughput, cost = deployment.output_tokens_per_second, deployment.usd_per_million_output_tokens()
    return (
        deployment.name,
        deployment.choice.weights.name,
        deployment.prediction.settings.serving.kv_cache_dtype,
        format_gib(rank.weight_bytes),
        format_gib(max(rank.available_kv_bytes, 0)),
        f"{capacity.average_sequences * deployment.replicas:,}",
        f"{capacity.worst_sequences * deployment.replicas:,}",
        "-" if rule is None else f"{users_by_rule(rule, deployment):,}",
        _milliseconds(speed.ttft_seconds),
        _milliseconds(speed.tpot_seconds),
        f"{throughput[0]:,.0f}-{throughput[1]:,.0f}",
        "-" if deployment.usd_per_hour is None else f"{deployment.usd_per_hour:,.2f}",
        "-" if cost is None else f"{cost[0]:.2f}-{cost[1]:.2f}",
        _slo_word(deployment),
        deployment.limit,
    )


def _slo_word(deployment: Deployment) -> str:
    """met: by the whole range; likely: by its middle."""
    if deployment.slo.num_bounds == 0:
        return "-"
    return "met" if deployment.slo.sure else "likely"


def _milliseconds(found: Range) -> str:
    return f"{found.low * 1000:,.0f}-{found.high * 1000:,.0f}"
