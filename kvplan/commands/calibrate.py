"""``kvplan calibrate``: fit the speed predictions to measured rows, for later estimates, plans and sweeps."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.commands.printing.render import print_json, print_table
from kvplan.errors import UsageError
from kvplan.units import plural

if TYPE_CHECKING:
    from kvplan.calibrate.calibration import Calibration
    from kvplan.calibrate.peaks import PeakShare
    from kvplan.catalog.devices.measured import HeldOutError

Directories = Annotated[list[Path], typer.Argument(help="Directories that `kvplan sweep` wrote.", metavar="DIR...")]
Out = Annotated[Path | None, typer.Option(help="File to write instead of one in your profile folder; - writes none.")]
Holdout = Annotated[float, typer.Option(help="Share of the settings to hold out from the fit and score.")]
Seed = Annotated[int, typer.Option(help="Seed that draws the held-out settings.")]
Score = Annotated[
    list[Path] | None,
    typer.Option(help="Another sweep on this device (of another model, say) to predict without fitting to it."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the profile as JSON and nothing else.")]


def calibrate(
    directories: Directories,
    out: Out = None,
    holdout: Holdout = 0.5,
    seed: Seed = 0,
    score: Score = None,
    as_json: AsJson = False,
) -> None:
    """Fit the speed predictions to measured rows and save them as a measured profile of the device."""
    from kvplan.calibrate.calibration import (
        calibrate_directories,
        default_profile_path,
        profile_document,
        write_profile,
    )

    if not 0 <= holdout <= 0.9:
        raise UsageError(f"--holdout is {holdout:g}, but must be from 0 to 0.9.", hint="--holdout 0.5")
    found = calibrate_directories(directories, held_out=holdout, seed=seed, score=score or [])
    if as_json:
        print_json(profile_document(found))
    else:
        _print(found)
    path = default_profile_path(found) if out is None else out
    if str(path) != "-":
        write_profile(found, path)
        print(f"wrote {path}; estimate, plan and sweep use it on this device", file=sys.stderr)


def _print(found: Calibration) -> None:
    trials = found.trials
    models = ", ".join(trials.models)
    rows, settings = plural(len(trials.trials), "row"), plural(len(trials.settings), "setting")
    print(f"{rows} ({settings}) of {models} on {trials.device.as_text()}")
    for reason, count in trials.excluded.items():
        print(f"  {count} more excluded: {reason}")
    if found.other_cpu_pct is not None:
        spread = found.repetition_spread_pct
        repeated = "" if spread is None else f"; repeated runs of one setting differ by {spread:.1f} %"
        print(f"  other processes used {found.other_cpu_pct:.0f} % of the CPU (median over rows){repeated}")
    print()
    _print_coefficients(found)
    print()
    if found.errors:
        title = (
            f"Held-out error: fitted on {plural(found.num_fitted_settings, 'setting')}, scored on "
            f"{plural(found.num_scored_settings, 'other')} ({plural(found.num_scored_rows, 'row')}, seed {found.seed})"
        )
        _print_errors(title, found.errors)
    else:
        print("No setting was held out, so the error is unknown")
    for transfer in found.transfers:
        print()
        title = (
            f"Transfer to {', '.join(transfer.model_ids)}: {plural(transfer.num_rows, 'row')} that the fit did not see"
        )
        _print_errors(title, transfer.errors)


def _print_coefficients(found: Calibration) -> None:
    from kvplan.calibrate.coefficients import readable_coefficients

    rows = [
        (each.label, each.value, each.unit, _share_text(each.share_of_peak))
        for each in readable_coefficients(found.speed, found.peak_shares)
    ]
    print_table(None, ("coefficient", "fitted", "unit", "of peak"), rows, text_columns=(0, 2))
    if found.peaks is not None:
        peaks = found.peaks
        print(f"  peaks: {peaks.bandwidth / 1e9:,.1f} GB/s, {peaks.flops / 1e9:,.0f} GFLOP/s ({peaks.source})")


def _share_text(share: PeakShare | None) -> str:
    if share is None:
        return ""
    return f"{100 * share.share:.0f} %" + ("" if share.plausible else " implausible")


def _print_errors(title: str, errors: dict[str, HeldOutError]) -> None:
    labels = {"output_throughput": "output throughput", "tpot": "median TPOT", "ttft": "median TTFT"}
    rows = [
        (label, f"{errors[name].median_pct:.1f} %", f"{errors[name].p90_pct:.1f} %")
        for name, label in labels.items()
        if name in errors
    ]
    print_table(title, ("|predicted / measured - 1|", "median", "90th percentile"), rows)
