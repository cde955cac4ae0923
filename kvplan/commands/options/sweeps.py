"""The options of ``kvplan sweep``, some of which ``profile`` has too: model, requests, axes, engine, goals, hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, make_dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kvplan.commands.options.groups import given_options, shown_under
from kvplan.commands.options.shared import FILE_HELP, SPECULATIVE_CONFIG_HELP, WORKLOAD_PANEL
from kvplan.errors import UsageError
from kvplan.settings import KNOBS
from kvplan.sweeps.axes import AXES, Axis, example_of
from kvplan.sweeps.engine_names import OTHER_ENGINES
from kvplan.sweeps.options import SEARCH_RUNS, SweepOptions

if TYPE_CHECKING:
    from kvplan.sweeps.cluster.connection import Cluster
    from kvplan.sweeps.hosts import SweptEngine

MODEL_PANEL: Final = "Model and device"
SETTINGS_PANEL: Final = "Engine settings"
GOAL_PANEL: Final = "Goal"
SPREAD_PANEL: Final = "Several machines"

DEFAULTS: Final = {option.name: option.default for option in fields(SweepOptions)}


@dataclass(frozen=True)
class ModelOptions:
    """What runs."""

    model: Annotated[
        str | None,
        typer.Option(help="Short name, Hugging Face id, directory, config.json or .gguf file."),
    ] = None


ModelArgument = Annotated[str | None, typer.Argument(metavar="MODEL", help="The same as --model.", show_default=False)]


def one_model(argument: str | None, option: str | None) -> str | None:
    """Return the model that was named, as argument or as option. UsageError where both name one, each another."""
    if argument is not None and option is not None and argument != option:
        raise UsageError(f"Two models are given: {argument}, and --model {option}.", hint="leave one of them out")
    return argument if option is None else option


@shown_under(MODEL_PANEL)
@dataclass(frozen=True)
class MachineOptions:
    """Where it runs, and with which weights."""

    load_format: Annotated[
        str | None,
        typer.Option(
            help="auto, dummy (random weights), none (count blocks and bytes, compute nothing), safetensors or gguf. "
            f"Default: {DEFAULTS['load_format']}."
        ),
    ] = None
    gpu: Annotated[
        str | None,
        typer.Option(help="With --load-format none: the GPUs to count on, here or not, such as h100 or 8xh200."),
    ] = None
    dummy_layers: Annotated[
        str | None,
        typer.Option(
            help="With --load-format dummy: full, or shared, so that equal layers use one copy of their weights."
        ),
    ] = None
    model_impl: Annotated[
        str | None,
        typer.Option(
            help="What computes the model: native (the engine's decoder), transformers (its class there, over the same "
            "pool), or auto: native wherever it can."
        ),
    ] = None
    activation_quantization: Annotated[
        str | None,
        typer.Option(
            help="int8: round what weights in few bits are multiplied with to 8 bits, which is faster on a CPU and "
            "changes results. Default: none."
        ),
    ] = None
    speculative_config: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help=SPECULATIVE_CONFIG_HELP,
        ),
    ] = None
    device: Annotated[
        str | None,
        typer.Option(help=f"auto, cpu or cuda. Default: {DEFAULTS['device']}."),
    ] = None
    device_memory: Annotated[
        str | None,
        typer.Option(help="Total memory of the device, such as 4GiB."),
    ] = None


@shown_under(WORKLOAD_PANEL)
@dataclass(frozen=True)
class WorkloadOptions:
    """The requests, and how they arrive."""

    num_prompts: Annotated[int | None, typer.Option(help="Requests per trial; of a file the first so many.")] = None
    input_len: Annotated[
        str | None, typer.Option(help="Prompt tokens: 128, 96..288, or lognormal:MEDIAN:SIGMA[:FIRST..LAST].")
    ] = None
    output_len: Annotated[str | None, typer.Option(help="Generated tokens, in the same notation.")] = None
    num_prefixes: Annotated[
        int | None, typer.Option(help="Number of shared prefixes that prompts start with. Default: 1.")
    ] = None
    prefix_len: Annotated[str | None, typer.Option(help="Tokens per shared prefix, in addition to --input-len.")] = None
    workload: Annotated[str | None, typer.Option(metavar="FILE", help=FILE_HELP)] = None
    request_rate: Annotated[
        float | None,
        typer.Option(
            help="Arrivals per second; traces are rescaled to this rate. Default: the file's times, or all at once."
        ),
    ] = None
    burstiness: Annotated[
        float | None,
        typer.Option(help=f"1 is a Poisson process, less is burstier. Default: {DEFAULTS['burstiness']:g}."),
    ] = None
    max_concurrency: Annotated[int | None, typer.Option(help="Maximum number of requests in flight.")] = None
    seed: Annotated[
        int | None, typer.Option(help=f"Seed of requests and random weights. Default: {DEFAULTS['seed']}.")
    ] = None


def _axis_option(axis: Axis) -> tuple[str, Any, Any]:
    """A field of AxisOptions: one value, a list or a range, as text; given again, it adds to the list."""
    knob = KNOBS[axis.name]
    what, _, _ = knob.help.partition(" Default:")
    example = example_of(axis)
    text = f"{what} {example[:1].upper()}{example[1:]}."
    option = typer.Option(axis.option, *knob.aliases, metavar="LIST", help=text, rich_help_panel=SETTINGS_PANEL)
    return axis.name, Annotated[list[str] | None, option], field(default=None)


_LISTS: Final = (
    *(name for axis in AXES.values() for name in (axis.option, *KNOBS[axis.name].aliases)),
    "--boundary",
    "--slo",
)
LIST_OPTIONS: dict[str, Callable[[str], object]] = dict.fromkeys(_LISTS, bool)
"""Options whose further values may follow after spaces (kvplan.list_words): every word, for there are no arguments."""

FLAG_OPTIONS: Final = frozenset(
    name for axis in AXES.values() if axis.kind == "flag" for name in (axis.option, *KNOBS[axis.name].aliases)
)
"""Options that mean yes without a value (kvplan.list_words)."""

AxisOptions = make_dataclass("AxisOptions", [_axis_option(axis) for axis in AXES.values()], frozen=True)


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
