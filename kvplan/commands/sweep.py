"""``kvplan sweep``: measure settings with kvplan's own engine or another, one row per trial, and find the limits."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kvplan.commands.options.extras import CLUSTER_PACKAGES, LOAD_PACKAGES, need_packages
from kvplan.commands.options.groups import given_options, takes_groups
from kvplan.errors import UsageError
from kvplan.settings import KNOBS
from kvplan.sweeps.axes import AXES, Axis, example_of
from kvplan.sweeps.engine_names import OTHER_ENGINES
from kvplan.sweeps.options import SEARCH_RUNS, SweepOptions, with_absolute_paths

if TYPE_CHECKING:
    from kvplan.sweeps.cluster.connection import Cluster
    from kvplan.sweeps.hosts import SweptEngine
    from kvplan.sweeps.session import SweepOutcome

INTERRUPTED: Final = 130
INFEASIBLE: Final = 1

MODEL_PANEL: Final = "Model and device"
SETTINGS_PANEL: Final = "Engine settings"
WORKLOAD_PANEL: Final = "Workload"
GOAL_PANEL: Final = "Goal"
SPREAD_PANEL: Final = "Several machines"
OUTPUT_PANEL: Final = "Output"

_DEFAULTS: Final = {option.name: option.default for option in fields(SweepOptions)}


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


@dataclass(frozen=True)
class ModelOptions:
    """What runs."""

    model: Annotated[
        str | None,
        typer.Option(
            help="Short name, Hugging Face id, directory, config.json or .gguf file.", rich_help_panel=MODEL_PANEL
        ),
    ] = None


@dataclass(frozen=True)
class MachineOptions:
    """Where it runs, and with which weights."""

    load_format: Annotated[
        str | None,
        typer.Option(
            help="auto, dummy (random weights), none (count blocks and bytes, compute nothing), safetensors or gguf. "
            f"Default: {_DEFAULTS['load_format']}.",
            rich_help_panel=MODEL_PANEL,
        ),
    ] = None
    gpu: Annotated[
        str | None,
        typer.Option(help="With --load-format none: the GPU to count on, here or not.", rich_help_panel=MODEL_PANEL),
    ] = None
    dummy_layers: Annotated[
        str | None,
        typer.Option(
            help="With --load-format dummy: full, or shared, so that equal layers use one copy of their weights.",
            rich_help_panel=MODEL_PANEL,
        ),
    ] = None
    model_impl: Annotated[
        str | None,
        typer.Option(
            help="What computes the model: native (the engine's decoder), transformers (its class there, over the same "
            "pool), or auto: native wherever it can.",
            rich_help_panel=MODEL_PANEL,
        ),
    ] = None
    activation_quantization: Annotated[
        str | None,
        typer.Option(
            help="int8: round what weights in few bits are multiplied with to 8 bits, which is faster on a CPU and "
            "changes results. Default: none.",
            rich_help_panel=MODEL_PANEL,
        ),
    ] = None
    device: Annotated[
        str | None,
        typer.Option(help=f"auto, cpu or cuda. Default: {_DEFAULTS['device']}.", rich_help_panel=MODEL_PANEL),
    ] = None
    device_memory: Annotated[
        str | None,
        typer.Option(help="Total memory of the device, such as 4GiB.", rich_help_panel=MODEL_PANEL),
    ] = None


@dataclass(frozen=True)
class EngineOptions:
    """Who serves."""

    engine: Annotated[
        str | None,
        typer.Option(
            help=f"kvplan (the default), or another engine: {', '.join(OTHER_ENGINES)}.", rich_help_panel=MODEL_PANEL
        ),
    ] = None
    engine_python: Annotated[
        str | None,
        typer.Option(help="The Python that has the engine, such as ~/vllm/bin/python.", rich_help_panel=MODEL_PANEL),
    ] = None
    engine_command: Annotated[
        str | None, typer.Option(help="What starts its server, if not that Python.", rich_help_panel=MODEL_PANEL)
    ] = None
    engine_arg: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="An option of the engine's own, such as enforce-eager or max-loras=4; repeatable.",
            rich_help_panel=MODEL_PANEL,
        ),
    ] = None
    url: Annotated[
        str | None,
        typer.Option(help="With --engine openai: a server that runs already.", rich_help_panel=MODEL_PANEL),
    ] = None
    reuse_server: Annotated[
        bool | None,
        typer.Option(
            "--reuse-server",
            help="Lower max_num_seqs and max_num_batched_tokens of a running vLLM instead of starting another.",
            rich_help_panel=MODEL_PANEL,
        ),
    ] = None
    preload: Annotated[
        bool | None,
        typer.Option(
            "--preload/--no-preload",
            help="Import vLLM once and fork servers from there, or let each import it. Default: fork on a CPU.",
            rich_help_panel=MODEL_PANEL,
        ),
    ] = None


@dataclass(frozen=True)
class WorkloadOptions:
    """The requests, and how they arrive."""

    num_prompts: Annotated[int | None, typer.Option(help="Requests per trial.", rich_help_panel=WORKLOAD_PANEL)] = None
    input_len: Annotated[
        str | None,
        typer.Option(
            help="Prompt tokens: 128, 96..288, or lognormal:MEDIAN:SIGMA[:FIRST..LAST].", rich_help_panel=WORKLOAD_PANEL
        ),
    ] = None
    output_len: Annotated[
        str | None,
        typer.Option(help="Generated tokens, in the same notation.", rich_help_panel=WORKLOAD_PANEL),
    ] = None
    num_prefixes: Annotated[
        int | None,
        typer.Option(
            help="Number of shared prefixes that prompts start with. Default: 1.", rich_help_panel=WORKLOAD_PANEL
        ),
    ] = None
    prefix_len: Annotated[
        str | None,
        typer.Option(help="Tokens per shared prefix, in addition to --input-len.", rich_help_panel=WORKLOAD_PANEL),
    ] = None
    workload: Annotated[
        str | None,
        typer.Option(
            help="File with requests: JSON lines, ShareGPT, or a CSV trace (Azure, BurstGPT).",
            rich_help_panel=WORKLOAD_PANEL,
        ),
    ] = None
    request_rate: Annotated[
        float | None,
        typer.Option(
            help="Arrivals per second; a trace is rescaled to it. Default: all at once.", rich_help_panel=WORKLOAD_PANEL
        ),
    ] = None
    burstiness: Annotated[
        float | None,
        typer.Option(
            help=f"1 is a Poisson process, less is burstier. Default: {_DEFAULTS['burstiness']:g}.",
            rich_help_panel=WORKLOAD_PANEL,
        ),
    ] = None
    max_concurrency: Annotated[
        int | None, typer.Option(help="Maximum number of requests in flight.", rich_help_panel=WORKLOAD_PANEL)
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(
            help=f"Seed of requests and random weights. Default: {_DEFAULTS['seed']}.", rich_help_panel=WORKLOAD_PANEL
        ),
    ] = None


@dataclass(frozen=True)
class GoalOptions:
    """What to look for, and how carefully."""

    slo: Annotated[
        list[str] | None,
        typer.Option(
            help="Service level in ms, such as 'ttft:500 tpot:50' or mlperf:llama3.1-8b.", rich_help_panel=GOAL_PANEL
        ),
    ] = None
    search: Annotated[
        str | None,
        typer.Option(
            help="Find the largest max_concurrency or request_rate within --slo; with values to choose from: "
            "max_concurrency=1..64.",
            rich_help_panel=GOAL_PANEL,
        ),
    ] = None
    boundary: Annotated[
        list[str] | None,
        typer.Option(
            help="Find where max_model_len, gpu_memory_utilization or max_num_seqs stops working: one, a list, "
            "or a pair such as max_model_len*gpu_memory_utilization.",
            rich_help_panel=GOAL_PANEL,
        ),
    ] = None
    num_runs: Annotated[
        int | None,
        typer.Option(
            help=f"Repetitions of every setting. Default: 1, or {SEARCH_RUNS} with --search.",
            rich_help_panel=GOAL_PANEL,
        ),
    ] = None
    rerun: Annotated[
        bool | None,
        typer.Option(
            "--rerun/--no-rerun",
            help="Run outliers again: those on a busy machine, or far from the other runs.",
            rich_help_panel=GOAL_PANEL,
        ),
    ] = None
    trial_timeout: Annotated[
        float | None,
        typer.Option(
            help="Maximum time to serve one trial, in seconds. Default: from its prediction.",
            rich_help_panel=GOAL_PANEL,
        ),
    ] = None


@dataclass(frozen=True)
class SpreadOptions:
    """Several machines."""

    ray: Annotated[
        str | None,
        typer.Option(
            metavar="auto|HOST:PORT",
            help="Run the trials on the workers of a Ray cluster.",
            rich_help_panel=SPREAD_PANEL,
        ),
    ] = None
    accelerator_type: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="With --ray: the GPUs to use, as Ray names them, such as L4 or H100.",
            rich_help_panel=SPREAD_PANEL,
        ),
    ] = None
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="K/N",
            help="Run the K-th of N parts of the plan; `kvplan merge` joins the parts.",
            rich_help_panel=SPREAD_PANEL,
        ),
    ] = None


@takes_groups
def sweep(
    model: ModelOptions,
    machine: MachineOptions,
    engine: EngineOptions,
    axes: AxisOptions,  # type: ignore[valid-type]  # made from the declared settings
    workload: WorkloadOptions,
    goals: GoalOptions,
    spread: SpreadOptions,
    out: Annotated[
        Path | None,
        typer.Option(help="Directory to write. Default: kvplan-sweep-MODEL-TIME.", rich_help_panel=OUTPUT_PANEL),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Continue the sweep in this directory.", rich_help_panel=OUTPUT_PANEL)
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the trials and their predictions without running any.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON, and nothing else.", rich_help_panel=OUTPUT_PANEL)
    ] = False,
) -> int:
    """Measure throughput, block occupancy and memory limits with kvplan's own engine or another."""
    given = with_absolute_paths(
        {
            **given_options(model),
            **given_options(machine),
            **_engine(engine),
            **given_options(workload),
            **_goals(goals),
            **({} if spread.shard is None else {"shard": spread.shard}),
        }
    )
    given_axes = {name: ",".join(values) for name, values in given_options(axes).items()}
    if resume is not None:
        _refuse_together("--resume", {"--out": out is not None, "--dry-run": dry_run})
        return _resume(resume, given | given_axes, spread, as_json=as_json)
    return _new(given, given_axes, out, spread, dry_run=dry_run, as_json=as_json)


def _engine(engine: EngineOptions) -> dict[str, Any]:
    given = dict(given_options(engine))
    if "engine_arg" in given:
        given["engine_args"] = tuple(given.pop("engine_arg"))
    return given


def _goals(goals: GoalOptions) -> dict[str, Any]:
    """The goals as SweepOptions has them: bounds in seconds by name, axes as a tuple."""
    given = dict(given_options(goals))
    if "slo" in given:
        given["slo_seconds"] = _slo_seconds(given.pop("slo"))
    if "boundary" in given:
        given["boundary"] = tuple(name.strip() for text in given["boundary"] for name in text.split(","))
    return given


def _swept_engine(options: SweepOptions) -> SweptEngine | None:
    """The engine that the options name; None for kvplan's own, which needs none of the packages of a load over HTTP."""
    if not options.is_foreign:
        return None
    need_packages("sweep --engine", "load", LOAD_PACKAGES)
    from kvplan.engines.registry import swept_engine

    return swept_engine(options)


def _new(
    given: Mapping[str, Any],
    axes: Mapping[str, str],
    out: Path | None,
    spread: SpreadOptions,
    *,
    dry_run: bool,
    as_json: bool,
) -> int:
    from kvplan.commands.printing import sweeps as sweep_output
    from kvplan.runs.store import free_directory
    from kvplan.sweeps.plan import make_plan
    from kvplan.sweeps.session import run_new_sweep

    if "model" not in given:
        raise UsageError("No model given.", hint="kvplan sweep --model gpt2")
    options = SweepOptions(**given, axes=axes)
    with _spread_over(spread, options) as cluster:
        elsewhere = None if cluster is None else cluster.device_for(options)
        plan = make_plan(options, _swept_engine(options), elsewhere)
        if dry_run:
            sweep_output.print_dry_run(plan, as_json=as_json)
            return 0
        directory = out if out is not None else free_directory(plan.default_directory)
        sweep_output.announce(plan, directory)
        command = shlex.join(["kvplan", *sys.argv[1:]])
        pool_of = None if cluster is None else cluster.pool_of
        outcome = run_new_sweep(plan, directory, sweep_output.make_progress(), command=command, pool_of=pool_of)
    return _finish(outcome, as_json=as_json)


def _resume(directory: Path, given: Mapping[str, Any], spread: SpreadOptions, *, as_json: bool) -> int:
    from kvplan.commands.printing import sweeps as sweep_output
    from kvplan.runs.directory import read_sweep_manifest
    from kvplan.sweeps.options import refuse_differences
    from kvplan.sweeps.session import resume_sweep

    options = SweepOptions.from_json(read_sweep_manifest(directory)["options"])
    refuse_differences(options, given)
    with _spread_over(spread, options) as cluster:
        outcome = resume_sweep(
            directory,
            sweep_output.make_progress(),
            announce=lambda plan: sweep_output.announce(plan, directory),
            engine_of=_swept_engine,
            device_of=None if cluster is None else cluster.device_for,
            pool_of=None if cluster is None else cluster.pool_of,
        )
    return _finish(outcome, as_json=as_json)


def _spread_over(spread: SpreadOptions, options: SweepOptions) -> AbstractContextManager[Cluster | None]:
    """The cluster to run on; None for this machine. KvplanError where Ray is not installed, or nothing answers."""
    if spread.ray is None:
        if spread.accelerator_type is not None:
            raise UsageError("--accelerator-type is for --ray.", hint="leave it out")
        return nullcontext()
    from kvplan.sweeps.session import refuse_searches

    refuse_searches(options)
    need_packages("sweep --ray", "cluster", CLUSTER_PACKAGES)
    from kvplan.sweeps.cluster.connection import connected

    return connected(spread.ray, spread.accelerator_type)


def _finish(outcome: SweepOutcome, *, as_json: bool) -> int:
    from kvplan.commands.printing import sweeps as sweep_output
    from kvplan.reports import write_reports
    from kvplan.runs.rows import is_measured

    sweep_output.print_outcome(outcome, as_json=as_json)
    if outcome.rows:
        sweep_output.print_written(outcome.directory, write_reports(outcome.directory))
    if outcome.interrupted:
        return INTERRUPTED
    if outcome.is_shard:  # of another part's trials some may be served
        return 0
    return 0 if any(is_measured(row) for row in outcome.rows) else INFEASIBLE


def _slo_seconds(texts: list[str]) -> dict[str, float]:
    """``["ttft:500 tpot:50"]`` -> bounds in seconds by name."""
    from kvplan.planner.slo import parse_slo

    slo = parse_slo([word for text in texts for word in text.replace(",", " ").split()])
    bounds = {"ttft": slo.ttft_seconds, "tpot": slo.tpot_seconds, "e2el": slo.e2el_seconds}
    return {name: seconds for name, seconds in bounds.items() if seconds is not None}


def _refuse_together(option: str, others: Mapping[str, bool]) -> None:
    for other, is_given in others.items():
        if is_given:
            raise UsageError(f"{option} cannot be used with {other}.", hint=f"leave {other} out")
