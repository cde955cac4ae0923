"""``kvplan sweep``: measure settings with kvplan's own engine or another, one row per trial, and find the limits."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kvplan.commands.options.extras import need_extra
from kvplan.commands.options.groups import given_options, takes_groups
from kvplan.commands.options.shared import OUTPUT_PANEL, TraceOptions
from kvplan.commands.options.sweeps import (
    FLAG_OPTIONS,
    LIST_OPTIONS,
    AxisOptions,
    EngineOptions,
    GoalOptions,
    MachineOptions,
    ModelArgument,
    ModelOptions,
    SpreadOptions,
    WorkloadOptions,
    given_engine,
    given_goals,
    one_model,
    settled,
    spread_over,
    swept_engine,
)
from kvplan.errors import UsageError
from kvplan.sweeps.consent import note_started, refuse_links, refuse_unasked
from kvplan.sweeps.drafting import with_drafts
from kvplan.sweeps.engine_names import OWN_ENGINE
from kvplan.sweeps.options import SweepOptions, with_absolute_paths
from kvplan.sweeps.worker.early import EarlyWorker

if TYPE_CHECKING:
    from kvplan.sweeps.session import SweepOutcome

__all__ = ["FLAG_OPTIONS", "LIST_OPTIONS", "sweep"]

INTERRUPTED: Final = 130
INFEASIBLE: Final = 1


@takes_groups
def sweep(
    model: ModelOptions,
    machine: MachineOptions,
    engine: EngineOptions,
    axes: AxisOptions,  # type: ignore[valid-type]  # made from the declared settings
    workload: WorkloadOptions,
    trace: TraceOptions,
    goals: GoalOptions,
    spread: SpreadOptions,
    named_model: ModelArgument = None,
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
    chosen_model = one_model(named_model, model.model)
    given = with_absolute_paths(
        {
            **({} if chosen_model is None else {"model": chosen_model}),
            **given_options(machine),
            **given_engine(engine),
            **given_options(workload),
            **given_options(trace),
            **given_goals(goals),
            **({} if spread.shard is None else {"shard": spread.shard}),
        }
    )
    written = {name: ",".join(values) for name, values in given_options(axes).items()}
    given_axes = with_drafts(written, machine.speculative_config)
    if resume is not None:
        _refuse_together("--resume", {"--out": out is not None, "--dry-run": dry_run})
        return _resume(resume, given, given_axes, spread, as_json=as_json)
    return _new(given, given_axes, out, spread, dry_run=dry_run, as_json=as_json)


def _new(
    given: Mapping[str, Any],
    axes: Mapping[str, str],
    out: Path | None,
    spread: SpreadOptions,
    *,
    dry_run: bool,
    as_json: bool,
) -> int:
    if "model" not in given:
        raise UsageError("No model given.", hint="kvplan sweep gpt2")
    given, axes = settled(given, axes, given.get("engine", OWN_ENGINE))
    options = SweepOptions(**given, axes=axes)
    _need_packages(options, spread, dry_run=dry_run)
    runs_here = not dry_run and not options.is_foreign and spread.ray is None
    with EarlyWorker() if runs_here else nullcontext() as early, spread_over(spread, options) as cluster:
        from kvplan.commands.printing import sweeps as sweep_output  # half a second, beside the worker's own imports
        from kvplan.runs.storage.store import free_directory
        from kvplan.sweeps.plan import make_plan
        from kvplan.sweeps.session import run_new_sweep

        elsewhere = None if cluster is None else cluster.device_for(options)
        ask = None if early is None else early.ask_device  # a dry run opens nothing
        plan = make_plan(options, swept_engine(options), elsewhere, ask)
        if dry_run:
            sweep_output.print_dry_run(plan, as_json=as_json)
            return 0
        directory = out if out is not None else free_directory(plan.default_directory)
        command = shlex.join(["kvplan", *sys.argv[1:]])
        pool_of = None if cluster is None else cluster.pool_of
        progress = sweep_output.make_progress()
        note_started(options, plan.run_id, directory)
        outcome = run_new_sweep(
            plan,
            directory,
            progress,
            command=command,
            pool_of=pool_of,
            early=early,
            announce=lambda plan: sweep_output.announce(plan, directory),
        )
    return _finish(outcome, as_json=as_json)


def _resume(
    directory: Path, given: Mapping[str, Any], axes: Mapping[str, str], spread: SpreadOptions, *, as_json: bool
) -> int:
    from kvplan.commands.printing import sweeps as sweep_output
    from kvplan.runs.directory import read_sweep_manifest
    from kvplan.sweeps.options import refuse_differences
    from kvplan.sweeps.session import resume_sweep

    manifest = read_sweep_manifest(directory)
    options = SweepOptions.from_json(manifest["options"])
    given, axes = settled(given, axes, options.engine)
    refuse_differences(options, {**given, **axes})
    _need_packages(options, spread)
    run_id = str(manifest.get("run_id"))
    refuse_unasked(options, given, run_id, directory)
    refuse_links(directory)
    note_started(options, run_id, directory)
    with spread_over(spread, options) as cluster:
        outcome = resume_sweep(
            directory,
            sweep_output.make_progress(),
            announce=lambda plan: sweep_output.announce(plan, directory),
            engine_of=swept_engine,
            device_of=None if cluster is None else cluster.device_for,
            pool_of=None if cluster is None else cluster.pool_of,
        )
    return _finish(outcome, as_json=as_json)


def _need_packages(options: SweepOptions, spread: SpreadOptions, *, dry_run: bool = False) -> None:
    """Ask for the packages of what is swept: kvplan's engine here or on a cluster, or another one over HTTP."""
    if options.is_foreign:
        need_extra("sweep --engine", "load")
    elif spread.ray is not None:
        need_extra("sweep --ray", "cluster")
    else:
        need_extra("sweep", "report" if dry_run else "engine")


def _finish(outcome: SweepOutcome, *, as_json: bool) -> int:
    from kvplan.commands.printing import sweeps as sweep_output
    from kvplan.reports import write_reports
    from kvplan.runs.rows import is_measured

    sweep_output.print_outcome(outcome, as_json=as_json)
    if outcome.interrupted:
        if outcome.rows:
            sweep_output.print_undrawn(outcome.directory)
        return INTERRUPTED
    if outcome.rows:
        sweep_output.print_written(outcome.directory, write_reports(outcome.directory))
    if outcome.is_shard:  # of another part's trials some may be served
        return 0
    return 0 if any(is_measured(row) for row in outcome.rows) else INFEASIBLE


def _refuse_together(option: str, others: Mapping[str, bool]) -> None:
    for other, is_given in others.items():
        if is_given:
            raise UsageError(f"{option} cannot be used with {other}.", hint=f"leave {other} out")
