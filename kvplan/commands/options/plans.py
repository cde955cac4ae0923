"""The options of ``kvplan plan``, in groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from kvplan.catalog.devices.gpus import parse_gpu_count
from kvplan.commands.options.groups import shown_under
from kvplan.commands.options.shared import FILE_HELP, WORKLOAD_PANEL
from kvplan.fleet.apart.rules import HAND_OVERS
from kvplan.fleet.routers.named import ROUTERS
from kvplan.planner.choices.formats import FORMAT_NAMES
from kvplan.planner.question.pattern import SPREADS
from kvplan.planner.question.prices import parse_prices
from kvplan.planner.question.request import DEFAULT_MAX_GPUS
from kvplan.planner.question.slo import DEFAULT_CONFIDENCE, parse_slo
from kvplan.settings import GPU_PANEL, KNOBS, MEMORY_PANEL, MODEL_PANEL

FLEET_PANEL: Final = "Fleet for a trace"
COST_PANEL = "Cost"


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


@shown_under(WORKLOAD_PANEL)
@dataclass(frozen=True)
class PlanLoadOptions:
    """The load: who asks, how much, how fast."""

    users: Annotated[str | None, typer.Option(metavar="NUMBER", help="Requests in progress at once.")] = None
    request_rate: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="Requests per second, instead of --users; also 720/min.")
    ] = None
    ctx_avg: Annotated[str | None, typer.Option(help="Tokens that a sequence holds on average, such as 8k.")] = None
    ctx_max: Annotated[
        str | None,
        typer.Option(
            "--ctx-max",
            "--max-model-len",
            "--ctx",
            help="Longest sequence to serve, such as 32k; alone the average too. Default: the longest that is played.",
        ),
    ] = None
    input_len: Annotated[str | None, typer.Option(help="Tokens per prompt.")] = None
    output_len: Annotated[str | None, typer.Option(help="Tokens per answer.")] = None
    workload: Annotated[Path | None, typer.Option(metavar="FILE", help=FILE_HELP)] = None
    slo: Annotated[
        list[str] | None,
        typer.Option(
            help="Bounds in ms: ttft:500 tpot:50 e2el:5000 (averages), p99_ttft:500 (or p50, p90, p95), "
            "'TTFT<1s', or mlperf:llama3.1-8b."
        ),
    ] = None
    confidence: Annotated[
        str | None, typer.Option(help=f"How sure an answer keeps --slo, such as 0.9. Default: {DEFAULT_CONFIDENCE:g}.")
    ] = None
    worst_case: Annotated[
        bool, typer.Option("--worst-case", help="Size for all users at --ctx-max instead of --ctx-avg.")
    ] = False
    headroom: Annotated[str | None, typer.Option(help="Plan for so much more load than given, such as 20%.")] = None


@shown_under(GPU_PANEL)
@dataclass(frozen=True)
class GpuOptions:
    """What it may run on, how it may be spread, and what it may cost."""

    gpu: Annotated[list[str] | None, typer.Option(metavar="NAME", help="GPU names; takes several. Default: all.")] = (
        None
    )
    max_gpus: Annotated[
        int | None,
        typer.Option(
            help="GPUs in total, over all replicas. Default: the largest count in --gpu, as many as --budget buys or "
            f"--nodes have, or {DEFAULT_MAX_GPUS}."
        ),
    ] = None
    spare_replicas: Annotated[int, typer.Option(help="Replicas beside those the load needs: 1 for N+1.")] = 0
    tensor_parallel_size: Annotated[
        list[str] | None,
        typer.Option("--tensor-parallel-size", "--tp", metavar="LIST", help="Sizes to try. Default: 1 to 16."),
    ] = None
    pipeline_parallel_size: Annotated[
        list[str] | None,
        typer.Option(
            "--pipeline-parallel-size",
            "--pp",
            metavar="LIST",
            help="Sizes to try. Default: 1, more across nodes and without NVLink.",
        ),
    ] = None
    data_parallel_size: Annotated[
        list[str] | None,
        typer.Option(
            "--data-parallel-size",
            "--dp",
            metavar="LIST",
            help="Sizes to try. Default: 1, more for mixtures of experts.",
        ),
    ] = None
    enable_expert_parallel: Annotated[
        bool | None,
        typer.Option(
            "--enable-expert-parallel/--no-enable-expert-parallel",
            "--ep/--no-ep",
            help="Whole experts on each GPU. Default: with data parallelism.",
        ),
    ] = None
    nodes: Annotated[
        int | None, typer.Option(help="Nodes that one replica may span. Default: as --max-gpus allows.")
    ] = None
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Play every layout with every token budget; up to minutes.")
    ] = False
    budget: Annotated[
        str | None, typer.Option(metavar="USD", help="US dollars per hour at most.", rich_help_panel=COST_PANEL)
    ] = None
    price: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=USD",
            help="Your price per hour of a GPU or of a cloud's instance; takes several.",
            rich_help_panel=COST_PANEL,
        ),
    ] = None
    prices: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Your prices: CSV with columns name and usd_per_hour, or JSON, of GPUs or of instances.",
            rich_help_panel=COST_PANEL,
        ),
    ] = None
    api_price: Annotated[
        str | None,
        typer.Option(
            metavar="in=USD,out=USD",
            help="An API's price per million tokens: from which load on renting is cheaper.",
            rich_help_panel=COST_PANEL,
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


@shown_under(WORKLOAD_PANEL)
@dataclass(frozen=True)
class PatternOptions:
    """What a load has beside its size and its lengths."""

    think_time: Annotated[
        str | None, typer.Option(help="A user's mean pause between answer and next request, such as 20s. Default: 0.")
    ] = None
    turns: Annotated[
        int | None,
        typer.Option(help="Turns of a chat: a prompt holds the turns before and a message of --input-len. Default: 1."),
    ] = None
    prefix_len: Annotated[
        str | None, typer.Option(help="Tokens per shared prefix that prompts start with, in addition to --input-len.")
    ] = None
    num_prefixes: Annotated[
        int | None, typer.Option(help="Number of shared prefixes, each used as often as the others. Default: 1.")
    ] = None
    prefix_hit_rate: Annotated[
        str | None,
        typer.Option(
            help="Share of prompt tokens that the prefix cache has, such as 0.8, where it is known; taken as given."
        ),
    ] = None
    burstiness: Annotated[
        float | None,
        typer.Option(help="Of arrivals at --request-rate: 1 is a Poisson process, less is burstier. Default: 1."),
    ] = None
    length_spread: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"How prompts and answers spread around their mean: {', '.join(SPREADS)}. Default: uniform, from two "
            "thirds of it to four thirds.",
        ),
    ] = None


@shown_under(FLEET_PANEL)
@dataclass(frozen=True)
class FleetOptions:
    """What keeps a service level over a trace means, and what the fleet stands behind."""

    window: Annotated[
        str | None, typer.Option(metavar="TIME", help="Keep --slo in every window of so long, such as 5m. Default: 5m.")
    ] = None
    share_of_windows: Annotated[
        str | None, typer.Option(metavar="SHARE", help="Of the windows, such as 95%. Default: all of them.")
    ] = None
    router: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help=f"Router before the replicas: {', '.join(ROUTERS)}. Default: the best of them."
        ),
    ] = None
    load_shape: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Stretch the trace over a day: CSV with hour,factor or time,factor of its rate."
        ),
    ] = None


@shown_under(FLEET_PANEL)
@dataclass(frozen=True)
class WishOptions:
    """What is held against the fleet that was found."""

    disaggregate: Annotated[
        bool,
        typer.Option("--disaggregate", help="Compare with prefill and decode apart, in every ratio on as many GPUs."),
    ] = False
    hand_over: Annotated[
        str | None,
        typer.Option(
            metavar="ENGINE", help=f"Whose rules --disaggregate follows: {', '.join(HAND_OVERS)}. Default: vllm."
        ),
    ] = None
    autoscale: Annotated[
        bool,
        typer.Option(
            "--autoscale", help="Compare with replicas that come and go as a HorizontalPodAutoscaler has them."
        ),
    ] = False
    min_replicas: Annotated[int | None, typer.Option(help="Fewest replicas of --autoscale. Default: 1.")] = None
    max_replicas: Annotated[
        int | None, typer.Option(help="Most replicas of --autoscale. Default: those of the fixed fleet.")
    ] = None
    cold_start: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="How long until a new replica serves, such as 6m. Default: its weights at 1.2 GiB/s and 4m.",
        ),
    ] = None
