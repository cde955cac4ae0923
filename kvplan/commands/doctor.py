"""``kvplan doctor``: the device, what drives it, and every kernel against torch, as one screen for an issue."""

from __future__ import annotations

from typing import Annotated

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
    report = examine(model, device, dtype, checks_anew=again)
    if as_json:
        print_json(report)
    else:
        say("\n".join(screen_of(report)))
    return 0 if is_all_right(report) else 1
