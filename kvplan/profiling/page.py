"""report.html of a profile: its result, the picture, where the time went, and what ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kvplan.profiling.shares import TimeShare, operation_shares, phase_shares
from kvplan.profiling.steps import StepRecording
from kvplan.reports.html.rendering import render
from kvplan.reports.html.tables import Cell, Heading, Table
from kvplan.reports.pictures import Picture
from kvplan.reports.wording import cell, short_number
from kvplan.runs.answers.beside import beside_phrases, predicted_of
from kvplan.runs.answers.outliers import NOISY_CPU_PCT
from kvplan.runs.columns import Row
from kvplan.units import plural

_WIDTH_PX: Final = 1040
_HEADS: Final = (
    Heading("part", is_text=True),
    Heading("total", "ms"),
    Heading("share", "%"),
    Heading("with prompts", "ms"),
    Heading("decoding", "ms"),
)


def profile_page(
    document: Mapping[str, Any], recording: StepRecording, about: str, timeline: bytes, narrow_timeline: bytes
) -> str:
    """Return the whole page. document: profile.json. about: device, setting and load in one line. narrow_timeline: the
    same picture for a phone."""
    what = f"Steps of {document['model']} over time"
    row: Row = {**document["predicted"], **document["measured"]}
    busy = row.get("other_cpu_pct") or 0.0
    noisy = f"Other processes used {busy:.0f} % of the CPU: times are not the engine's own."
    title = f"{document['model']}: one setting, step by step"
    idle = f"Between steps: {1000 * recording.idle_seconds:,.0f} ms of {recording.json['duration_seconds']:,.2f} s."
    return render(
        "profile.html.j2",
        title=title,
        about=about,
        notes=[noisy] if busy > NOISY_CPU_PCT else [],
        sentences=_sentences(row, recording),
        timeline=Picture("timeline", "Step by step", what, timeline, _WIDTH_PX, narrow_timeline),
        phases=_table("where a step's time goes", phase_shares(recording)),
        operations=_table("within forward", operation_shares(recording)),
        between=idle,
        environment={
            f"{group}.{name}": cell(value)
            for group in ("device", "settings", "versions")
            for name, value in document[group].items()
            if value is not None
        },
    )


def _sentences(row: Row, recording: StepRecording) -> list[str]:
    kinds = recording.kinds()
    counts = ", ".join(f"{kinds.count(kind):,} {kind}" for kind in ("prefill", "mixed", "decode") if kind in kinds)
    throughput = short_number(row.get("output_throughput"))
    found = [f"{plural(recording.num_steps, 'step')} ({counts}), {throughput} output tokens/s."]
    if beside := beside_phrases(row, predicted_of(row)):
        found.append(f"Measured beside predicted: {'; '.join(beside)}.")
    return found


def _table(label: str, shares: Sequence[TimeShare]) -> Table:
    return Table(label, _HEADS, [_cells(share) for share in shares])


def _cells(share: TimeShare) -> list[Cell]:
    figures = (
        1000 * share.seconds,
        100 * share.share,
        _ms(share.median_prefill_seconds),
        _ms(share.median_decode_seconds),
    )
    return [
        Cell(share.title, share.title, css="text"),
        *(Cell("" if value is None else short_number(value), "" if value is None else value) for value in figures),
    ]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds
