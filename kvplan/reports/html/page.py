"""report.html: the recommendation first, then what it rests on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from kvplan.reports.findings import (
    kv_waste,
    noise_sentence,
    prediction_sentences,
    recommendations,
    sentences,
    status_counts,
)
from kvplan.reports.html.rendering import render
from kvplan.reports.html.tables import column_groups, main_table
from kvplan.reports.pictures import Picture
from kvplan.reports.plots.slo import searches
from kvplan.reports.statuses import STATUS_ORDER, look_of
from kvplan.reports.tables import csv_text
from kvplan.reports.wording import cell, plural, run_phrase
from kvplan.runs.reader import Run

# Long lists of the manifest that the page shows elsewhere or not at all.
_NOT_ENVIRONMENT: Final = frozenset({"columns", "planes", "trials", "schema", "statuses"})


def report_page(run: Run, pictures: Sequence[Picture]) -> str:
    """The whole page of one run. ``pictures`` as ``draw_pictures`` returns them."""
    drawn = {picture.name: picture for picture in pictures}
    device = run.first("device_name") or run.first("device") or "unknown device"
    return render(
        "report.html.j2",
        title=f"{run.first('model_id') or 'unknown model'} on {device}",
        about=" · ".join(filter(None, (run_phrase(run), _started(run)))),
        pictures=drawn,
        notes=notes(run),
        recommendations=recommendations(run),
        num_trials=plural(len(run.trials), "trial"),
        status_counts=status_counts(run),
        errors=list(dict.fromkeys(trial.text("error") for trial in run.trials if trial.text("error"))),
        slo=_service_level(run) if "slo" in drawn else None,
        violations=sentences(run, "violations"),
        boundaries=sentences(run, "boundaries"),
        predictions=prediction_sentences(run),
        waste=kv_waste(run),
        csv=csv_text(run).encode(),
        main_table=main_table(run),
        groups=column_groups(run),
        statuses=status_meanings(run),
        environment=_environment(run),
    )


def _started(run: Run) -> str:
    """``started 2026-11-21 10:15 UTC`` from an ISO time in UTC; any other text as it is."""
    started_at = min((trial.text("started_at") for trial in run.trials if trial.text("started_at")), default="")
    if started_at.endswith("+00:00") and len(started_at) >= 16:
        return f"started {started_at[:10]} {started_at[11:16]} UTC"
    return f"started {started_at}" if started_at else ""


def notes(run: Run) -> list[str]:
    """What is missing or was left out, before anything is concluded."""
    lines = [*run.notes]
    planned = run.summary.get("num_trials")
    if run.summary.get("interrupted"):
        lines.append("The sweep was interrupted: the report shows the trials that had ended by then.")
    if isinstance(planned, int) and planned > len(run.trials):
        lines.append(f"{len(run.trials)} of {planned} trials have ended; --resume runs the others.")
    lines += [noise] if (noise := noise_sentence(run)) else []
    lines += [f"Left out of every median: {sentence}." for sentence in run.excluded.values()]
    listed = run.summary.get("notes")
    return lines + ([str(line) for line in listed] if isinstance(listed, list) else [])


def _service_level(run: Run) -> Mapping[str, Any]:
    """The largest load within the service level, one sentence per search."""
    criterion = str(run.summary["slo"].get("criterion") or "")
    return {
        "sentences": [f"{search['sentence']}." for search in searches(run) if search.get("sentence")],
        "criterion": f"Criterion: {criterion}." if criterion else "",
    }


def status_meanings(run: Run) -> dict[str, str]:
    """status -> what it means, in the sweep's own words where it left them."""
    told = run.manifest.get("statuses")
    known = told if isinstance(told, dict) else {}
    return {name: known.get(name) or look_of(name).meaning for name in STATUS_ORDER}


def _environment(run: Run) -> dict[str, str] | None:
    """The manifest, flattened: what it takes to run this again."""
    known = {key: value for key, value in run.manifest.items() if key not in _NOT_ENVIRONMENT}
    return dict(_flattened(known)) if run.manifest else None


def _flattened(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flattened(value, f"{name}.")
        elif value is not None:
            yield name, cell(value, "bytes" if str(key).endswith("_bytes") else "")
