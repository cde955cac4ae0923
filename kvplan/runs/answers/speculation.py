"""What drafts gained: settings with speculation beside the same without it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TypedDict

from kvplan.runs.answers.outliers import excluded_runs
from kvplan.runs.columns import Row
from kvplan.runs.rows import has_speed, settings_of
from kvplan.runs.setting_text import settings_text, shown_in
from kvplan.runs.trials import LOAD_NAMES, TrialSettings


class DraftGain(TypedDict):
    """One setting with drafts. gain: tokens a second while it decoded (1 / mean TPOT) over those without drafts.

    gain_predicted: by the load model, at the acceptance that was measured; None without a calibration.
    """

    num_speculative_tokens: int
    acceptance_rate: float | None
    gain: float
    gain_predicted: float | None
    sentence: str


def speculation_gains(rows: Sequence[Row]) -> list[DraftGain]:
    """Return for each setting with drafts that also ran without; medians of their runs."""
    excluded = {exclusion.trial_id for exclusion in excluded_runs(rows)}
    groups: dict[tuple[TrialSettings, object], list[Row]] = {}
    for row in rows:
        if has_speed(row) and row.get("mean_tpot_ms") and row["trial_id"] not in excluded:
            load = tuple(row.get(name) for name in LOAD_NAMES)
            groups.setdefault((settings_of(row), load), []).append(row)
    shown = shown_in(rows)
    return [
        _gain(settings, drafted, groups[without], shown)
        for (settings, load), drafted in groups.items()
        if settings.num_speculative_tokens
        and (without := (settings.with_changes(num_speculative_tokens=0), load)) in groups
    ]


def _gain(settings: TrialSettings, drafted: Sequence[Row], plain: Sequence[Row], shown: Sequence[str]) -> DraftGain:
    gain = _median(plain, "mean_tpot_ms") / _median(drafted, "mean_tpot_ms")
    predicted = [value for row in drafted if (value := row.get("pred_speculation_gain"))]
    rates = [value for row in drafted if (value := row.get("acceptance_rate")) is not None]
    expected, rate = (median(each) if each else None for each in (predicted, rates))
    accepted = "nothing was drafted" if rate is None else f"{100 * rate:.0f} % of the drafts accepted"
    beside = "" if expected is None else f", {expected:.2f} predicted at this acceptance"
    sentence = f"{settings_text(settings, shown)}: {gain:.2f} times the tokens a second{beside} ({accepted})"
    return {
        "num_speculative_tokens": settings.num_speculative_tokens,
        "acceptance_rate": rate,
        "gain": gain,
        "gain_predicted": expected,
        "sentence": sentence,
    }


def _median(rows: Sequence[Row], name: str) -> float:
    return float(median(row[name] for row in rows))  # type: ignore[literal-required]
