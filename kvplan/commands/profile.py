"""``kvplan profile``: one setting of kvplan's own engine under a load, step by step."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.commands.options.groups import given_options, takes_groups
from kvplan.commands.options.shared import OUTPUT_PANEL, Model, TraceOptions
from kvplan.commands.options.sweeps import FLAG_OPTIONS, SETTINGS_PANEL, MachineOptions, WorkloadOptions
from kvplan.foreign_text import printable, unguarded
from kvplan.settings import KNOBS
from kvplan.sweeps.axes import OWN_AXES, Axis
from kvplan.sweeps.drafting import with_drafts
from kvplan.sweeps.options import SweepOptions, with_absolute_paths

if TYPE_CHECKING:
    from kvplan.profiling.plan import ProfilePlan
    from kvplan.profiling.session import ProfileOutcome
    from kvplan.profiling.shares import TimeShare
    from kvplan.sweeps.worker.protocol import Event

__all__ = ["FLAG_OPTIONS", "profile"]

_METAVARS = {"share": "SHARE", "count": "INTEGER", "tokens": "TOKENS", "name": "NAME", "flag": "[BOOLEAN]"}


def _setting_option(axis: Axis) -> tuple[str, Any, Any]:
    """A field of SettingOptions: an axis of a sweep with one value, as text."""
    knob = KNOBS[axis.name]
    what, _, _ = knob.help.partition(" Default:")
    text = f"{what} One of {', '.join(axis.choices)}." if axis.choices else what
    option = typer.Option(
        axis.option, *knob.aliases, metavar=_METAVARS[axis.kind], help=text, rich_help_panel=SETTINGS_PANEL
    )
    return axis.name, Annotated[str | None, option], field(default=None)


SettingOptions = make_dataclass("SettingOptions", [_setting_option(axis) for axis in OWN_AXES.values()], frozen=True)


@takes_groups
def profile(
    model: Model,
    machine: MachineOptions,
    settings: SettingOptions,  # type: ignore[valid-type]  # made from the declared settings
    workload: WorkloadOptions,
    trace: TraceOptions,
    memory: Annotated[
        bool,
        typer.Option(
            "--memory",
            help="Keep the history of torch's allocator as memory.pickle (GPU only).",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Directory to write. Default: kvplan-profile-MODEL-TIME.", rich_help_panel=OUTPUT_PANEL),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print profile.json, and nothing else.", rich_help_panel=OUTPUT_PANEL)
    ] = False,
) -> None:
    """Profile one setting: memory, blocks, batches and step times, and where a step's time goes."""
    from kvplan.commands.printing.render import print_json, print_notes
    from kvplan.profiling.plan import make_profile_plan
    from kvplan.profiling.session import run_profile

    asked = {**given_options(machine), **given_options(workload), **given_options(trace)}
    given = with_absolute_paths({"model": model, **asked})
    options = SweepOptions(**given, axes=with_drafts(given_options(settings), machine.speculative_config))
    plan = make_profile_plan(options, records_allocations=memory)
    if memory and not plan.records_allocations:
        print_notes("--memory is left out: only a GPU's allocator keeps a history.")
    directory = _directory(plan, out)
    _announce(plan, directory)
    with _progress() as on_event:
        outcome = run_profile(plan, directory, on_event)
    if as_json:
        print_json(outcome.document())
    else:
        _print(outcome)
    print(f"written to {directory}: {', '.join(outcome.files)}", file=sys.stderr)


def _directory(plan: ProfilePlan, out: Path | None) -> Path:
    """An empty directory. KvplanError if it cannot be made, or holds something already."""
    from kvplan.profiling.session import new_directory
    from kvplan.runs.storage.store import free_directory

    return (
        new_directory(out) if out else free_directory(Path(f"{plan.directory_name}-{time.strftime('%Y%m%d-%H%M%S')}"))
    )


@contextmanager
def _progress() -> Iterator[Callable[[Event], None]]:
    """What the worker does, in one line that is gone in the end; notices alone where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield _print_notice
        return
    from rich.console import Console

    with Console(file=unguarded(sys.stderr)).status("starting the worker") as status:

        def show(event: Event) -> None:
            if event["type"] == "notice":
                _print_notice(event)
            else:
                status.update(printable(progress_text(event)))

        yield show


def _print_notice(event: Event) -> None:
    if event["type"] == "notice":
        print(printable(event["text"]), file=sys.stderr, flush=True)


def progress_text(event: Event) -> str:
    """``serving, 45 % of the tokens, 8 running, 3 waiting, KV 60 % used``"""
    if event["type"] == "notice":
        return event["text"]
    if event["type"] == "stage":
        return event["stage"]
    return (
        f"serving, {100 * event['share']:.0f} % of the tokens, {event['num_running']} running, "
        f"{event['num_waiting']} waiting, KV {100 * event['kv_usage']:.0f} % used"
    )


def _announce(plan: ProfilePlan, directory: Path) -> None:
    for notice in plan.notices:
        print(notice, file=sys.stderr)
    print(f"{plan.predictor.spec.title}: {plan.workload.as_text()}; writing {directory}", file=sys.stderr)


def _print(outcome: ProfileOutcome) -> None:
    from kvplan.commands.printing.render import print_table
    from kvplan.profiling.shares import operation_shares, phase_shares

    recording = outcome.recording
    _print_figures(outcome)
    head = ["", "total ms", "share %", "with prompts ms", "decoding ms"]
    print_table("\nWhere a step's time goes", head, [_cells(share) for share in phase_shares(recording)])
    if operations := operation_shares(recording):
        print_table("\nWithin forward", head, [_cells(share) for share in operations])
    else:
        print("\nThe operations within forward are told by the CPU kernels where all layers are one call.")
    if recording.json["device_is_asynchronous"]:
        print("The device works by itself: forward and sampling are the time to queue their work.")
    print(
        "share: of the steps' time; the last two columns are medians per step, with and without prompt tokens.\n"
        f"Between steps: {1000 * recording.idle_seconds:,.0f} ms of {recording.json['duration_seconds']:,.2f} s."
    )


def _print_figures(outcome: ProfileOutcome) -> None:
    from kvplan.commands.printing.render import print_notes
    from kvplan.profiling.session import describe
    from kvplan.runs.answers.outliers import NOISY_CPU_PCT
    from kvplan.units import format_bytes, plural

    recording, row = outcome.recording, outcome.row
    steps, kinds = recording.steps, recording.kinds()
    memory: Any = recording.memory
    counts = ", ".join(f"{kinds.count(kind):,} {kind}" for kind in ("prefill", "mixed", "decode") if kind in kinds)
    parts = {"weights": "weight", "workspace": "workspace", "overhead": "overhead", "KV pool": "kv_pool"}
    sizes = ", ".join(f"{name} {format_bytes(memory[f'{key}_bytes'])}" for name, key in parts.items())
    used = max(steps["used_blocks"], default=0)
    preemptions = plural(row["num_preemptions"] or 0, "preemption")
    print(f"{outcome.plan.predictor.spec.title} on {describe(outcome.plan)}")
    print(f"  {plural(recording.num_steps, 'step')} ({counts}), {row['output_throughput'] or 0:,.1f} output tokens/s")
    print(f"  memory: {sizes}")
    print(f"  {memory['num_blocks']:,} blocks, at most {used:,} used; {preemptions}")
    busy = row.get("other_cpu_pct") or 0.0
    if busy > NOISY_CPU_PCT:
        print_notes(f"other processes used {busy:.0f} % of the CPU: times are not the engine's own.")


def _cells(share: TimeShare) -> list[str]:
    return [
        share.title,
        f"{1000 * share.seconds:,.1f}",
        f"{100 * share.share:.1f}",
        _milliseconds(share.median_prefill_seconds),
        _milliseconds(share.median_decode_seconds),
    ]


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1000 * seconds:,.3f}"
