"""``kvplan sweep``: measure settings with kvplan's own engine, one row per trial, and show where the limits lie."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from kvplan.errors import UsageError

INTERRUPTED = 130


def sweep(
    model: Annotated[str | None, typer.Option(help="Short name, hub id, directory, config.json or .gguf.")] = None,
    gpu_memory_utilization: Annotated[str | None, typer.Option(help="List or range, like 0.3,0.6,0.9.")] = None,
    max_num_seqs: Annotated[str | None, typer.Option(help="List or range, like 1..64*2.")] = None,
    block_size: Annotated[str | None, typer.Option(help="List or range, like 8,16,32.")] = None,
    max_model_len: Annotated[str | None, typer.Option(help="List or range, like 256..1024+256 or 4k,8k.")] = None,
    max_num_batched_tokens: Annotated[str | None, typer.Option(help="One value, a list or a range.")] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32, bfloat16, float16, or a list.")] = None,
    kv_cache_dtype: Annotated[str | None, typer.Option(help="auto (as dtype) or a list.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.  [default: auto]")] = None,
    device_memory: Annotated[str | None, typer.Option(help="The device's total memory, like 4GiB.")] = None,
    num_prompts: Annotated[int | None, typer.Option(help="Requests per trial.")] = None,
    input_len: Annotated[str | None, typer.Option(help="Prompt tokens, like 128 or 96..288.")] = None,
    output_len: Annotated[str | None, typer.Option(help="Generated tokens, like 32 or 16..48.")] = None,
    request_rate: Annotated[float | None, typer.Option(help="Arrivals per second.  [default: all at once]")] = None,
    burstiness: Annotated[float | None, typer.Option(help="1 is Poisson, below 1 is burstier.  [default: 1]")] = None,
    max_concurrency: Annotated[int | None, typer.Option(help="Most requests in flight.")] = None,
    workload: Annotated[str | None, typer.Option(help="File with requests (JSON lines, ShareGPT, CSV trace).")] = None,
    slo: Annotated[
        list[str] | None, typer.Option(help="Service level in ms, like 'ttft:500 tpot:50' or mlperf:llama3.1-8b.")
    ] = None,
    boundary: Annotated[
        str | None,
        typer.Option(
            help="Find where max_model_len, gpu_memory_utilization or max_num_seqs (or a list) stops working."
        ),
    ] = None,
    num_runs: Annotated[int | None, typer.Option(help="Repetitions of every setting.  [default: 1]")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of requests and weights.  [default: 0]")] = None,
    load_format: Annotated[str | None, typer.Option(help="auto, dummy, safetensors or gguf.  [default: auto]")] = None,
    trial_timeout: Annotated[
        float | None, typer.Option(help="Longest time to serve one trial, in seconds.  [default: from its prediction]")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Directory to write.  [default: kvplan-sweep-MODEL-TIME]")] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the sweep in this directory.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the trials and their prediction, run none.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON and nothing else.")] = False,
) -> int:
    """Measure throughput, block occupancy and memory limits with kvplan's own engine."""
    from kvplan.sweeps.options import with_absolute_paths

    axes = {
        "gpu_memory_utilization": gpu_memory_utilization,
        "max_num_seqs": max_num_seqs,
        "block_size": block_size,
        "max_model_len": max_model_len,
        "max_num_batched_tokens": max_num_batched_tokens,
        "dtype": dtype,
        "kv_cache_dtype": kv_cache_dtype,
    }
    options = {
        "model": model,
        "device": device,
        "device_memory": device_memory,
        "num_prompts": num_prompts,
        "input_len": input_len,
        "output_len": output_len,
        "request_rate": request_rate,
        "burstiness": burstiness,
        "max_concurrency": max_concurrency,
        "workload": workload,
        "num_runs": num_runs,
        "seed": seed,
        "load_format": load_format,
        "trial_timeout": trial_timeout,
        "slo_ms": None if slo is None else _objectives(slo),
        "boundary": None if boundary is None else tuple(name.strip() for name in boundary.split(",")),
    }
    given = with_absolute_paths({name: value for name, value in options.items() if value is not None})
    given_axes = {name: value for name, value in axes.items() if value is not None}
    if resume is not None:
        _refuse_together("--resume", {"--out": out is not None, "--dry-run": dry_run})
        return _resume(resume, given | given_axes, as_json=as_json)
    return _new(given, given_axes, out, dry_run=dry_run, as_json=as_json)


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
    from kvplan.sweeps.options import SweepOptions, refuse_differences
    from kvplan.sweeps.session import resume_sweep
    from kvplan.sweeps.store import read_manifest

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
