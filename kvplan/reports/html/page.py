"""report.html: the recommendation first, then the evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from kvplan.reports.findings import (
    clipped_sentence,
    counted_sentence,
    kernels_sentence,
    kv_waste,
    noise_sentence,
    not_listed_sentence,
    prediction_sentences,
    recommendation_heading,
    recommendations,
    sentences,
    shared_sentence,
    stand_in_sentence,
    status_counts,
    transformers_sentence,
)
from kvplan.reports.html.rendering import render
from kvplan.reports.html.tables import column_groups, main_table
from kvplan.reports.pictures import PICTURES, SEARCH_PICTURE, Picture
from kvplan.reports.searches import searches
from kvplan.reports.tables import csv_text
from kvplan.reports.wording import cell, load_phrase, plural
from kvplan.runs.statuses import STATUS_BRIEF
from kvplan.runs.storage.reader import Document, Run

# Long lists in the manifest that the page shows elsewhere or not at all.
_NOT_ENVIRONMENT: Final = frozenset({"columns", "planes", "trials", "schema", "statuses"})


def report_page(run: Run, pictures: Sequence[Picture]) -> str:
    """The whole page of one run. ``pictures`` as ``draw_pictures`` returns them."""
    drawn: dict[str, Picture | None] = dict.fromkeys(kind.name for kind in (SEARCH_PICTURE, *PICTURES))
    drawn |= {picture.name: picture for picture in pictures}
    device = run.first("device_name") or run.first("device") or "unknown device"
    where = f"at {run.first('url')}" if run.first("url") else f"on {device}"
    shown = {
        "slo": _slo(run) if drawn["slo"] else None,
        "boundaries": sentences(run, "boundaries"),
        "predictions": prediction_sentences(run),
        "waste": kv_waste(run),
    }
    return render(
        "report.html.j2",
        title=f"{run.first('model_id') or 'unknown model'} {where}",
        about=" · ".join(filter(None, (load_phrase(run), _started(run)))),
        links=_links(drawn, shown, recommendation_heading(run)),
        pictures=drawn,
        notes=notes(run),
        recommendations=recommendations(run),
        recommendation_heading=recommendation_heading(run),
        num_trials=plural(len(run.trials), "trial"),
        status_counts=status_counts(run),
        errors=[error for error in run.frame["error"].unique() if error],
        violations=sentences(run, "violations"),
        csv=csv_text(run).encode(),
        main_table=main_table(run),
        not_listed=not_listed_sentence(run),
        groups=column_groups(run),
        statuses=status_meanings(run),
        environment=_environment(run),
        **shown,
    )


def _links(drawn: Mapping[str, Picture | None], shown: Mapping[str, object], heading: str) -> list[tuple[str, str]]:
    """(id, label) of the sections that the page has, in their order; ``heading``: of the first."""
    has = {
        "recommendation": (heading, True),
        "slo": ("SLO", shown["slo"]),
        "outcomes": ("Boundaries", drawn["outcomes"] or shown["boundaries"]),
        "throughput": ("Throughput", drawn["throughput"] or drawn["latency"]),
        "requests": ("Requests", drawn["requests"]),
        "pareto": ("Trade-off", drawn["pareto"]),
        "occupancy": ("Occupancy", drawn["occupancy"]),
        "predicted": ("Predictions", drawn["predicted_vs_measured"] or shown["predictions"]),
        "memory": ("Memory", drawn["memory"]),
        "waste": ("KV waste", shown["waste"]),
        "trials": ("Trials", True),
        "environment": ("Environment", True),
    }
    return [(name, label) for name, (label, is_there) in has.items() if is_there]


def _started(run: Run) -> str:
    """``started 2026-11-21 10:15 UTC`` from an ISO time in UTC; any other text as it is."""
    started_at = min((time for time in run.frame["started_at"] if time), default="")
    if started_at.endswith("+00:00") and len(started_at) >= 16:
        return f"started {started_at[:10]} {started_at[11:16]} UTC"
    return f"started {started_at}" if started_at else ""


def notes(run: Run) -> list[str]:
    """What is missing or was left out: to be read before anything else."""
    lines = [*run.notes]
    planned = run.summary.get("num_trials")
    if run.summary.get("interrupted"):
        lines.append("The sweep was interrupted; the report shows the trials that had finished by then.")
    if isinstance(planned, int) and planned > len(run.trials):
        lines.append(f"{len(run.trials)} of {planned} trials have finished; --resume runs the others.")
    said = (
        kernels_sentence(run),
        counted_sentence(run),
        shared_sentence(run),
        transformers_sentence(run),
        stand_in_sentence(run),
        noise_sentence(run),
        clipped_sentence(run),
    )
    lines += [sentence for sentence in said if sentence]
    lines += [f"Excluded from medians: {sentence}." for sentence in run.excluded.values()]
    listed = run.summary.get("notes")
    return lines + ([str(line) for line in listed] if isinstance(listed, list) else [])


def _slo(run: Run) -> Document:
    """The highest load within the SLO, one sentence per search."""
    slo = run.summary.get("slo")
    criterion = str(slo.get("criterion") or "") if isinstance(slo, dict) else ""
    return {
        "sentences": [f"{search.sentence}." for search in searches(run) if search.sentence],
        "criterion": f"Criterion: {criterion}." if criterion else "",
    }


def status_meanings(run: Run) -> dict[str, str]:
    """status -> what it means: the sentence in the manifest, or ours where there is none."""
    listed = run.manifest.get("statuses")
    known = listed if isinstance(listed, dict) else {}
    return {name: str(known.get(name) or brief) for name, brief in STATUS_BRIEF.items()}


def _environment(run: Run) -> dict[str, str] | None:
    """The manifest, flattened: everything needed to repeat the run; None without one."""
    known = {key: value for key, value in run.manifest.items() if key not in _NOT_ENVIRONMENT}
    return dict(_flattened(known)) if run.manifest else None


def _flattened(values: Document, prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flattened(value, f"{name}.")
        elif value is not None:
            yield name, cell(value, "bytes" if str(key).endswith("_bytes") else "")
