"""``kvplan calibrate``: fit the predictions of speed to a sweep's rows, and keep them for later estimates and plans."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.commands.render import print_json, print_table
from kvplan.errors import UsageError

if TYPE_CHECKING:
    from kvplan.calibrate.calibration import Calibration
    from kvplan.catalog.measured import HeldOutError

Directories = Annotated[list[Path], typer.Argument(help="Directories that `kvplan sweep` wrote.", metavar="DIR...")]
Out = Annotated[Path | None, typer.Option(help="File to write instead of one in your profile folder; - writes none.")]
Holdout = Annotated[float, typer.Option(help="Share of the settings that is kept from the fit and scored.")]
Seed = Annotated[int, typer.Option(help="Draws the settings that are held out.")]
Score = Annotated[
    list[Path] | None, typer.Option(help="A further sweep on this device, of another model say, to be predicted only.")
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
    """Fit the predictions of speed to measured rows and keep them as a measured profile of the device."""
    from kvplan.calibrate.calibration import (
        calibrate_directories,
        default_profile_path,
        profile_document,
        write_profile,
    )

    if not 0 <= holdout <= 0.9:
        raise UsageError(f"--holdout is {holdout:g}, but a share from 0 to 0.9 is expected.", hint="--holdout 0.5")
    found = calibrate_directories(directories, held_out=holdout, seed=seed, score=score or [])
    if as_json:
        print_json(profile_document(found))
    else:
        _print(found)
    path = default_profile_path(found) if out is None else out
    if str(path) != "-":
        write_profile(found, path)
        print(f"written to {path}; estimate, plan and sweep use it on this device", file=sys.stderr)


def _print(found: Calibration) -> None:
    trials = found.trials
    models = ", ".join(trials.models)
    print(f"{len(trials.trials)} rows ({len(trials.settings)} settings) of {models} on {trials.device.as_text()}")
    for reason, count in trials.excluded.items():
        print(f"  {count} more left out: {reason}")
    if found.other_cpu_pct is not None:
        print(f"  others took {found.other_cpu_pct:.0f} % of the processor time (median over rows)", end="")
        spread = found.repetition_spread_pct
        print("" if spread is None else f"; runs of one setting differ by {spread:.1f} %")
    print()
    _print_coefficients(found)
    print()
    if found.errors:
        title = (
            f"Held-out error: fit on {found.num_fitted_settings} settings, scored on {found.num_scored_settings} "
            f"others ({found.num_scored_rows} rows, seed {found.seed})"
        )
        _print_errors(title, found.errors)
    else:
        print("No setting was held out: the error is not known")
    for transfer in found.transfers:
        print()
        title = f"Carried over to {', '.join(transfer.model_ids)}: {transfer.num_rows} rows that the fit never saw"
        _print_errors(title, transfer.errors)


_NAMES = {
    "step_seconds": "overhead per step",
    "layer_seconds": "overhead per step and layer",
    "sequence_seconds": "overhead per sequence in a step",
    "bandwidth": "weights and activations",
    "flops": "products",
    "kv_bandwidth": "K and V",
    "attention_flops": "attention",
    "sharpness": "sharpness",
    "row_step": "rows of a product in steps of",
}


def _print_coefficients(found: Calibration) -> None:
    shares = {each.name: each for each in found.reached}
    rows = []
    for name, label in _NAMES.items():
        value, reached = getattr(found.speed, name), shares.get(name)
        share = "" if reached is None else f"{100 * reached.share:.0f} %{'' if reached.plausible else ' implausible'}"
        rows.append((label, *_with_unit(name, value), share))
    print_table(None, ("coefficient", "fitted", "unit", "of the peak"), rows, text_columns=(0, 2))
    if found.peaks is not None:
        peaks = found.peaks
        print(f"  peaks: {peaks.bandwidth / 1e9:,.1f} GB/s, {peaks.flops / 1e9:,.0f} GFLOP/s ({peaks.source})")


def _with_unit(name: str, value: float) -> tuple[str, str]:
    if name.endswith("seconds"):
        return f"{1e6 * value:,.1f}", "us"
    if name.endswith("bandwidth"):
        return f"{value / 1e9:,.2f}", "GB/s"
    if name.endswith("flops"):
        return f"{value / 1e9:,.1f}", "GFLOP/s"
    if name == "row_step":
        return f"{value:g}", "tokens"
    return f"{value:g}", "1: bytes, then products" if value == 1 else "above 1: bytes and products overlap"


def _print_errors(title: str, errors: dict[str, HeldOutError]) -> None:
    labels = {"output_throughput": "output throughput", "tpot": "TPOT (median)", "ttft": "TTFT (median)"}
    rows = [
        (label, f"{errors[name].median_pct:.1f} %", f"{errors[name].p90_pct:.1f} %")
        for name, label in labels.items()
        if name in errors
    ]
    print_table(title, ("|predicted / measured - 1|", "median", "90th percentile"), rows)
