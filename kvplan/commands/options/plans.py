"""The options of ``kvplan plan``, in groups, and the question that they ask."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, TypeVar

import typer

from kvplan.catalog.devices.gpus import GpuCount, GpuProfile, load_gpus, parse_gpu_count
from kvplan.catalog.engines import EngineChoice
from kvplan.commands.options.settings import parse_share
from kvplan.commands.options.shared import (
    WORKLOAD_PANEL,
    split_list,
)
from kvplan.errors import UsageError
from kvplan.planner.choices.formats import FORMAT_NAMES
from kvplan.planner.question.prices import parse_prices, with_prices
from kvplan.planner.question.request import ParallelSizes, PlanRequest
from kvplan.planner.question.slo import parse_slo
from kvplan.settings import GPU_PANEL, KNOBS, MEMORY_PANEL, MODEL_PANEL, ServingSettings
from kvplan.units import parse_tokens

DEFAULTS = PlanRequest()
COST_PANEL = "Cost"
_COUNT: Final = re.compile(r"\d{1,9}")


def is_format(text: str) -> bool:
    """Whether ``text`` is a value of --quantization."""
    return text.casefold() in FORMAT_NAMES


LIST_OPTIONS: dict[str, Callable[[str], object]] = {
    "--slo": lambda text: parse_slo([text]),
    "--gpu": parse_gpu_count,
    "--quantization": is_format,
    "--kv-cache-dtype": KNOBS["kv_cache_dtype"].canonical_name,
    "--price": lambda text: parse_prices([text]),
    "--tp": int,
    "--pp": int,
    "--dp": int,
}
"""Options whose further values may follow after spaces, and what reads one of them (kvplan.list_words)."""


@dataclass(frozen=True)
class LoadOptions:
    """The load: who asks, how much, how fast."""

    users: Annotated[int | None, typer.Option(help="Requests in progress at once.", rich_help_panel=WORKLOAD_PANEL)] = (
        None
    )
    request_rate: Annotated[
        float | None, typer.Option(help="Requests per second, instead of --users.", rich_help_panel=WORKLOAD_PANEL)
    ] = None
    ctx_avg: Annotated[
        str | None,
        typer.Option(help="Tokens that a sequence holds on average, such as 8k.", rich_help_panel=WORKLOAD_PANEL),
    ] = None
    ctx_max: Annotated[
        str | None,
        typer.Option(help="Longest sequence that must be served, such as 32k.", rich_help_panel=WORKLOAD_PANEL),
    ] = None
    input_len: Annotated[str | None, typer.Option(help="Tokens per prompt.", rich_help_panel=WORKLOAD_PANEL)] = None
    output_len: Annotated[str | None, typer.Option(help="Tokens per answer.", rich_help_panel=WORKLOAD_PANEL)] = None
    slo: Annotated[
        list[str] | None,
        typer.Option(
            help="Bounds in ms: ttft:500 tpot:50 e2el:5000 (averages), p99_ttft:500, or mlperf:llama3.1-8b.",
            rich_help_panel=WORKLOAD_PANEL,
        ),
    ] = None
    worst_case: Annotated[
        bool,
        typer.Option(
            "--worst-case", help="Size for all users at --ctx-max instead of --ctx-avg.", rich_help_panel=WORKLOAD_PANEL
        ),
    ] = False
    headroom: Annotated[
        str | None,
        typer.Option(help="Plan for so much more load than given, such as 20%.", rich_help_panel=WORKLOAD_PANEL),
    ] = None


@dataclass(frozen=True)
class GpuOptions:
    """What it may run on, how it may be spread, and what it may cost."""

    gpu: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="GPU names; takes several. Default: all.", rich_help_panel=GPU_PANEL),
    ] = None
    max_gpus: Annotated[
        int | None,
        typer.Option(
            help=f"GPUs in total, over all replicas. Default: the largest count in --gpu, or {DEFAULTS.max_gpus}.",
            rich_help_panel=GPU_PANEL,
        ),
    ] = None
    spare_replicas: Annotated[
        int, typer.Option(help="Replicas beside those the load needs: 1 for N+1.", rich_help_panel=GPU_PANEL)
    ] = 0
    tensor_parallel_size: Annotated[
        list[str] | None,
        typer.Option(
            "--tensor-parallel-size",
            "--tp",
            metavar="LIST",
            help="Sizes to try. Default: 1 to 16.",
            rich_help_panel=GPU_PANEL,
        ),
    ] = None
    pipeline_parallel_size: Annotated[
        list[str] | None,
        typer.Option(
            "--pipeline-parallel-size",
            "--pp",
            metavar="LIST",
            help="Sizes to try. Default: 1, more across nodes and without NVLink.",
            rich_help_panel=GPU_PANEL,
        ),
    ] = None
    data_parallel_size: Annotated[
        list[str] | None,
        typer.Option(
            "--data-parallel-size",
            "--dp",
            metavar="LIST",
            help="Sizes to try. Default: 1, more for mixtures of experts.",
            rich_help_panel=GPU_PANEL,
        ),
    ] = None
    enable_expert_parallel: Annotated[
        bool | None,
        typer.Option(
            "--enable-expert-parallel/--no-enable-expert-parallel",
            "--ep/--no-ep",
            help="Whole experts on each GPU. Default: with data parallelism.",
            rich_help_panel=GPU_PANEL,
        ),
    ] = None
    nodes: Annotated[
        int | None,
        typer.Option(help="Nodes that one replica may span. Default: as --max-gpus allows.", rich_help_panel=GPU_PANEL),
    ] = None
    budget: Annotated[float | None, typer.Option(help="US dollars per hour at most.", rich_help_panel=COST_PANEL)] = (
        None
    )
    price: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=USD", help="Your price of a GPU per hour; takes several.", rich_help_panel=COST_PANEL
        ),
    ] = None


@dataclass(frozen=True)
class FormatOptions:
    """How weights and KV cache may be stored."""

    quantization: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help=f"Weight formats to try: {', '.join(FORMAT_NAMES)}; takes several. "
            "Default: published, others beside it.",
            rich_help_panel=MODEL_PANEL,
        ),
    ] = None
    kv_cache_dtype: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="KV cache formats to try, such as auto or fp8; takes several. Default: auto, fp8 beside it.",
            rich_help_panel=MEMORY_PANEL,
        ),
    ] = None


def plan_request(
    load: LoadOptions, gpus: GpuOptions, formats: FormatOptions, settings: ServingSettings, engine: EngineChoice
) -> PlanRequest:
    """The question that the options ask. UsageError for a value that cannot be read."""
    if load.users is not None and load.request_rate is not None:
        raise UsageError("--users cannot be used with --request-rate.", hint="give one of them")
    named = [parse_gpu_count(name) for name in split_list(gpus.gpu)]
    kv_cache_dtypes = map(KNOBS["kv_cache_dtype"].canonical_name, split_list(formats.kv_cache_dtype))
    return PlanRequest(
        num_users=_positive(load.users, "--users"),
        requests_per_second=_positive(load.request_rate, "--request-rate"),
        average_context=_tokens(load.ctx_avg),
        longest_context=_tokens(load.ctx_max),
        input_tokens=_tokens(load.input_len),
        output_tokens=_tokens(load.output_len),
        slo=parse_slo([word for text in load.slo or [] for word in text.replace(",", " ").split()]),
        gpus=with_prices(_gpus(named), parse_prices(split_list(gpus.price))),
        max_gpus=_positive(gpus.max_gpus, "--max-gpus") or _largest_count(named),
        sizes=_parallel_sizes(gpus),
        quantizations=tuple(name.casefold() for name in split_list(formats.quantization)) or None,
        kv_cache_dtypes=tuple(kv_cache_dtypes) or None,
        worst_case=load.worst_case,
        headroom=_headroom(load.headroom),
        num_spare_replicas=_not_negative(gpus.spare_replicas, "--spare-replicas"),
        usd_per_hour=_positive(gpus.budget, "--budget"),
        engine=engine,
        settings=settings,
    )


def _parallel_sizes(gpus: GpuOptions) -> ParallelSizes:
    return ParallelSizes(
        tensor=_sizes(gpus.tensor_parallel_size, "--tensor-parallel-size"),
        pipeline=_sizes(gpus.pipeline_parallel_size, "--pipeline-parallel-size"),
        data=_sizes(gpus.data_parallel_size, "--data-parallel-size"),
        enable_expert_parallel=gpus.enable_expert_parallel,
        num_nodes=_positive(gpus.nodes, "--nodes"),
    )


def _gpus(named: Sequence[GpuCount]) -> tuple[GpuProfile, ...]:
    if named:
        return tuple(dict.fromkeys(each.gpu for each in named))
    return tuple(gpu for gpu in load_gpus() if not gpu.is_cpu)


def _largest_count(named: Sequence[GpuCount]) -> int:
    """``8xh200`` allows as many; names alone as many as the default."""
    largest = max((each.num_gpus for each in named), default=1)
    return largest if largest > 1 else DEFAULTS.max_gpus


def _tokens(text: str | None) -> int | None:
    return None if text is None else parse_tokens(text)


def _sizes(texts: list[str] | None, option: str) -> tuple[int, ...] | None:
    """``["1,2", "4"]`` -> (1, 2, 4)."""
    words = split_list(texts)
    if not words:
        return None
    if not all(_COUNT.fullmatch(word) and int(word) > 0 for word in words):
        raise UsageError(f"{option} takes numbers of GPUs, got '{', '.join(words)}'.", hint=f"for example {option} 2,4")
    return tuple(map(int, words))


def _headroom(text: str | None) -> float:
    """``20%`` or ``0.2`` -> 0.2; nothing -> 0. UsageError below 0 or above 1000 %."""
    if text is None:
        return 0.0
    share = parse_share(text, "--headroom", example="20%")
    if not 0 <= share <= 10:
        hint = f"for 20 % say --headroom 20%, or 0.2; {text.strip()} is {100 * share:g} %"
        raise UsageError("--headroom must be from 0 to 1000 %.", hint=hint)
    return share


Number = TypeVar("Number", int, float)


def _positive(number: Number | None, option: str) -> Number | None:
    if number is not None and not 0 < number < float("inf"):
        wanted = "finite" if number == float("inf") else "above 0"
        raise UsageError(f"{option} must be {wanted}, got {number}.", hint=f"for example {option} 8")
    return number


def _not_negative(number: int, option: str) -> int:
    if number < 0:
        raise UsageError(f"{option} must be 0 or more, got {number}.", hint=f"for example {option} 1")
    return number
