"""A calibration on stdout: coefficients beside peaks or beside what was believed, and the errors of predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvplan.calibrate.results.readers.kvplan_sweep import is_kvplan_sweep
from kvplan.calibrate.results.reading import result_files
from kvplan.commands.printing.render import print_sentence, print_table
from kvplan.units import plural

if TYPE_CHECKING:
    from kvplan.calibrate.calibration import Calibration
    from kvplan.calibrate.peaks import PeakShare
    from kvplan.calibrate.results.calibration import ResultCalibration
    from kvplan.catalog.devices.measured import HeldOutError

_FIGURES: Final = {
    "output_throughput": "output throughput",
    "tpot": "median TPOT",
    "ttft": "median TTFT",
    "step": "timed step",
}


def print_calibration(found: Calibration) -> None:
    trials = found.trials
    models = ", ".join(trials.models)
    rows, settings = plural(len(trials.trials), "row"), plural(len(trials.settings), "setting")
    print_sentence(f"{rows} ({settings}) of {models} on {trials.device.as_text()}", indent="", further="  ")
    for reason, count in trials.excluded.items():
        print_sentence(f"{count} more excluded: {reason}")
    if found.other_cpu_pct is not None:
        spread = found.repetition_spread_pct
        repeated = "" if spread is None else f"; repeated runs of one setting differ by {spread:.1f} %"
        print_sentence(f"other processes used {found.other_cpu_pct:.0f} % of the CPU (median over rows){repeated}")
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
    from kvplan.calibrate.peaks import readable_coefficients

    rows = [
        (each.label, each.value, each.unit, _share_text(each.share_of_peak))
        for each in readable_coefficients(found.speed, found.peak_shares)
    ]
    print_table(None, ("coefficient", "fitted", "unit", "of peak"), rows, text_columns=(0, 2))
    if found.peaks is not None:
        peaks = found.peaks
        print_sentence(f"peaks: {peaks.bandwidth / 1e9:,.1f} GB/s, {peaks.flops / 1e9:,.0f} GFLOP/s ({peaks.source})")


def _share_text(share: PeakShare | None) -> str:
    if share is None:
        return ""
    return f"{100 * share.share:.0f} %" + ("" if share.plausible else " implausible")


def _print_errors(title: str, errors: dict[str, HeldOutError]) -> None:
    rows = [
        (label, f"{errors[name].median_pct:.1f} %", f"{errors[name].p90_pct:.1f} %")
        for name, label in _FIGURES.items()
        if name in errors
    ]
    print_table(title, ("|predicted / measured - 1|", "median", "90th percentile"), rows)


def print_learned(found: ResultCalibration) -> None:
    """What results of other engines determine, what they do not, and how well it predicts them."""
    matched, learned = found.matched, found.learned
    engine = f"{matched.first.engine} {matched.engine_version}"
    models = ", ".join(matched.models)
    where = f"served by {engine} on {matched.device.as_text()}"
    print_sentence(f"{_counts(found)} of {models}, {where}", indent="", further="  ")
    for path in (each for each in found.paths if each.is_dir() and not is_kvplan_sweep(each)):
        files = result_files(path)
        folders = plural(len({each.parent for each in files}), "folder")
        print_sentence(f"{path}: {plural(len(files), 'JSON file')} in {folders} read")
    for reason, count in matched.excluded.items():
        print_sentence(f"{count} more excluded: {reason}")
    alike = sum(not each.result.has_lengths for each in matched.loads)
    if alike:
        print_sentence(f"{plural(alike, 'load')} without the lengths of requests, which are taken to be alike")
    print()
    _print_identified(found)
    print()
    if learned.fitted:
        _print_errors("Error of the fit, on the results themselves", learned.fitted)
        print()
    if learned.left_out:
        _print_errors(f"Each of {plural(learned.num_settings, 'setting')}, predicted by the others", learned.left_out)
    else:
        print("There is one setting, so the error on another is unknown")


def _counts(found: ResultCalibration) -> str:
    matched = found.matched
    loads, batches = plural(len(matched.loads), "load"), plural(len(matched.batches), "timed step")
    counts = [text for text, each in ((loads, matched.loads), (batches, matched.batches)) if each]
    return f"{' and '.join(counts)} ({plural(found.learned.num_settings, 'setting')})"


def _print_identified(found: ResultCalibration) -> None:
    from kvplan.calibrate.peaks import readable_coefficients

    learned, identified = found.learned, found.learned.identified
    names = learned.speed.as_json()
    rows = [
        (each.label, each.value, each.unit, _certainty(identified.uncertainty.get(name)))
        for name, each in zip(names, readable_coefficients(learned.speed, ()), strict=True)
    ]
    print_table(None, ("coefficient", "value", "unit", "determined by"), rows, text_columns=(0, 2, 3))
    values = ", ".join(f"{value:.2g}" for value in identified.singular_values)
    print_sentence(f"prior: {found.prior.source}")
    print_sentence(
        f"the results tell {len(identified.names)} of {len(identified.singular_values)} directions (singular values "
        f"{values}; those of 2 and more), condition {identified.condition:.1f}"
    )


def _certainty(uncertainty: float | None) -> str:
    return "prior" if uncertainty is None else f"results, +-{100 * uncertainty:.0f} %"
