"""``kvplan doctor``: the device, what drives it, and every kernel against torch, as one screen for an issue."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from kvplan.commands.options.shared import OUTPUT_PANEL
from kvplan.errors import UsageError

_DEVICES = ("auto", "cpu", "cuda", "emulated")


def doctor(
    device: Annotated[
        str,
        typer.Option(help="auto, cpu, cuda, or emulated: the CUDA kernels run by the CPU.", metavar="DEVICE"),
    ] = "auto",
    model: Annotated[
        str, typer.Option(help="Whose kernels to check: a name, directory, config.json or .gguf file.", metavar="MODEL")
    ] = "gpt2",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.", metavar="DTYPE")] = "auto",
    again: Annotated[bool, typer.Option("--again", help="Check again what an earlier check found.")] = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="Then measure the GPU, in ten minutes, for a file that you can send.")
    ] = False,
    sections: Annotated[
        str | None, typer.Option(help="With --measure: some of its sections, with commas.", metavar="NAMES")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="With --measure: directory to write. Default: kvplan-doctor-TIME.", rich_help_panel=OUTPUT_PANEL
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as JSON.", rich_help_panel=OUTPUT_PANEL)
    ] = False,
) -> int:
    """Check this machine: device, driver, compiler, and every kernel against torch."""
    from kvplan.commands.printing.render import print_json, say
    from kvplan.doctor.screen import is_all_right, screen_of
    from kvplan.doctor.session import examine

    if device not in _DEVICES:
        raise UsageError(f"--device '{device}' is not known.", hint="one of " + ", ".join(_DEVICES))
    if (sections or out) and not measure:
        raise UsageError("--sections and --out are for --measure.", hint="add --measure, or leave them out")
    report = examine(model, device, dtype, checks_anew=again)
    if as_json:
        print_json(report)
    else:
        say("\n".join(screen_of(report)))
    if measure:
        _measure(report, out, sections)
    return 0 if is_all_right(report) else 1


def _measure(report: Mapping[str, Any], out: Path | None, sections: str | None) -> None:
    """Says where the file lies. KvplanError where there is nothing to measure."""
    from kvplan.commands.printing.render import say
    from kvplan.doctor.measure import SWEEP, measure, refuse_unmeasurable
    from kvplan.profiling.session import new_directory
    from kvplan.runs.storage.store import free_directory

    refuse_unmeasurable(report)
    folder = new_directory(out) if out else free_directory(Path(f"kvplan-doctor-{time.strftime('%Y%m%d-%H%M%S')}"))
    measured = measure(report, folder, sections)
    say(f"\n{measured.num_rows} figures in {measured.rows}; {measured.page.name} beside it says how to send them.")
    if measured.profile is not None:
        sweep = shlex.quote(str(folder / SWEEP))
        say(f"{measured.profile}: the speeds that its sweep gave. To use them here: kvplan calibrate {sweep}")
    else:
        say(f"No speeds were calibrated: {measured.why_none}")
