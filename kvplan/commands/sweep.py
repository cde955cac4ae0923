"""``kvplan sweep``: measure settings with kvplan's own engine, one row per trial, and show where the limits lie."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from kvplan.commands.option_groups import given_options, takes_groups
from kvplan.errors import UsageError

INTERRUPTED = 130


@dataclass(frozen=True)
class AxisOptions:
    """Engine arguments, under vLLM's names: one value, a list or a range each."""

    gpu_memory_utilization: Annotated[str | None, typer.Option(help="List or range, like 0.3,0.6,0.9.")] = None
    max_num_seqs: Annotated[str | None, typer.Option(help="List or range, like 1..64*2.")] = None
    block_size: Annotated[str | None, typer.Option(help="List or range, like 8,16,32.")] = None
    max_model_len: Annotated[str | None, typer.Option(help="List or range, like 256..1024+256 or 4k,8k.")] = None
    max_num_batched_tokens: Annotated[str | None, typer.Option(help="One value, a list or a range.")] = None
    dtype: Annotated[str | None, typer.Option(help="auto, float32, bfloat16, float16, or a list.")] = None
    kv_cache_dtype: Annotated[str | None, typer.Option(help="auto (as dtype) or a list.")] = None


@dataclass(frozen=True)
class MachineOptions:
    """What runs and where."""

    model: Annotated[str | None, typer.Option(help="Short name, hub id, directory, config.json or .gguf.")] = None
    load_format: Annotated[str | None, typer.Option(help="auto, dummy, safetensors or gguf.  [default: auto]")] = None
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.  [default: auto]")] = None
    device_memory: Annotated[str | None, typer.Option(help="The device's total memory, like 4GiB.")] = None


@dataclass(frozen=True)
class WorkloadOptions:
    """The requests and how they arrive."""

    num_prompts: Annotated[int | None, typer.Option(help="Requests per trial.")] = None
    input_len: Annotated[
        str | None, typer.Option(help="Prompt tokens: 128, 96..288, or lognormal:MEDIAN:SIGMA[:FIRST..LAST].")
    ] = None
    output_len: Annotated[str | None, typer.Option(help="Generated tokens, written likewise.")] = None
    num_prefixes: Annotated[int | None, typer.Option(help="Texts that prompts share, in turn.  [default: 1]")] = None
    prefix_len: Annotated[str | None, typer.Option(help="Tokens of a shared text, before --input-len.")] = None
    workload: Annotated[
        str | None, typer.Option(help="File with requests: JSON lines, ShareGPT, or a trace as CSV (Azure, BurstGPT).")
    ] = None
    request_rate: Annotated[
        float | None, typer.Option(help="Arrivals per second; a trace is stretched to it.  [default: all at once]")
    ] = None
    burstiness: Annotated[float | None, typer.Option(help="1 is Poisson, below 1 is burstier.  [default: 1]")] = None
    max_concurrency: Annotated[int | None, typer.Option(help="Most requests in flight.")] = None
    seed: Annotated[int | None, typer.Option(help="Seed of requests and weights.  [default: 0]")] = None


@dataclass(frozen=True)
class GoalOptions:
    """What is looked for, and how carefully."""

    slo: Annotated[
        list[str] | None, typer.Option(help="Service level in ms, like 'ttft:500 tpot:50' or mlperf:llama3.1-8b.")
    ] = None
    search: Annotated[
        str | None,
        typer.Option(
            help="Find the largest max_concurrency or request_rate within --slo; max_concurrency=1..64 to choose from."
        ),
    ] = None
    boundary: Annotated[
        str | None,
        typer.Option(
            help="Find where max_model_len, gpu_memory_utilization or max_num_seqs stops working: one, a list, "
            "or a pair like max_model_len*gpu_memory_utilization."
        ),
    ] = None
    num_runs: Annotated[
        int | None, typer.Option(help="Repetitions of every setting.  [default: 1, with --search 3]")
    ] = None
    rerun: Annotated[
        bool | None,
        typer.Option("--rerun/--no-rerun", help="Run outliers again: busy machine, or far from the other runs."),
    ] = None
    trial_timeout: Annotated[
        float | None, typer.Option(help="Longest time to serve one trial, in seconds.  [default: from its prediction]")
    ] = None


@takes_groups
def sweep(
    machine: MachineOptions,
    axes: AxisOptions,
    workload: WorkloadOptions,
    goals: GoalOptions,
    out: Annotated[Path | None, typer.Option(help="Directory to write.  [default: kvplan-sweep-MODEL-TIME]")] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the sweep in this directory.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the trials and their prediction, run none.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON and nothing else.")] = False,
) -> int:
    """Measure throughput, block occupancy and memory limits with kvplan's own engine."""
    from kvplan.sweeps.options import with_absolute_paths

    given = {**given_options(machine), **given_options(workload), **_goals(goals)}
    given = with_absolute_paths(given)
    given_axes = dict(given_options(axes))
    if resume is not None:
        _refuse_together("--resume", {"--out": out is not None, "--dry-run": dry_run})
        return _resume(resume, given | given_axes, as_json=as_json)
    return _new(given, given_axes, out, dry_run=dry_run, as_json=as_json)


def _goals(goals: GoalOptions) -> dict[str, Any]:
    """The goals as SweepOptions has them: bounds in ms by name, axes as a tuple."""
    given = dict(given_options(goals))
    if "slo" in given:
        given["slo_ms"] = _objectives(given.pop("slo"))
    if "boundary" in given:
        given["boundary"] = tuple(name.strip() for name in given["boundary"].split(","))
    return given


def _new(given: dict[str, Any], axes: dict[str, str], out: Path | None, *, dry_run: bool, as_json: bool) -> int:
    from kvplan.commands import sweep_output
    from kvplan.sweeps.options import SweepOptions
    from kvplan.sweeps.plan import make_plan
    from kvplan.sweeps.session import run_new_sweep

    if "model" not in given:
        raise UsageError("No model is given.", hint="kvplan sweep --model gpt2")
    plan = make_plan(SweepOptions(**given, axes=axes))
    if dry_run:
        sweep_output.print_dry_run(plan, as_json=as_json)
        return 0
    directory = out if out is not None else plan.default_directory
    sweep_output.announce(plan, directory)
    command = shlex.join(["kvplan", *sys.argv[1:]])
    outcome = run_new_sweep(plan, directory, sweep_output.make_progress(), command=command)
    return _finish(outcome, as_json=as_json)


def _resume(directory: Path, given: dict[str, Any], *, as_json: bool) -> int:
    from kvplan.commands import sweep_output
    from kvplan.runs.directory import read_manifest
    from kvplan.sweeps.options import SweepOptions, refuse_differences
    from kvplan.sweeps.session import resume_sweep

    refuse_differences(SweepOptions.from_json(read_manifest(directory)["options"]), given)
    outcome = resume_sweep(
        directory,
        sweep_output.make_progress(),
        announce=lambda plan: sweep_output.announce(plan, directory),
    )
    return _finish(outcome, as_json=as_json)


def _finish(outcome: Any, *, as_json: bool) -> int:
    from kvplan.commands import sweep_output
    from kvplan.reports import write_reports

    sweep_output.print_outcome(outcome, as_json=as_json)
    if outcome.rows:
        sweep_output.print_written(outcome.directory, write_reports(outcome.directory))
    return INTERRUPTED if outcome.interrupted else 0


def _objectives(texts: list[str]) -> dict[str, float]:
    """``["ttft:500 tpot:50"]`` -> bounds in ms by name."""
    from kvplan.planner.slo import parse_slo

    bounds = parse_slo([word for text in texts for word in text.replace(",", " ").split()])
    seconds = {"ttft": bounds.ttft_seconds, "tpot": bounds.tpot_seconds, "e2el": bounds.e2el_seconds}
    return {name: 1000 * bound for name, bound in seconds.items() if bound is not None}


def _refuse_together(option: str, others: dict[str, bool]) -> None:
    for other, is_given in others.items():
        if is_given:
            raise UsageError(f"{option} and {other} exclude each other.", hint=f"leave {other} out")
