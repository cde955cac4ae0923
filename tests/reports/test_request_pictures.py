"""The picture of single requests, where they follow each other and where all are sent at once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from kvplan.reports.plots import requests
from kvplan.reports.plots.canvas import drawing, new_figure
from kvplan.runs.request_lines import RequestLine


def lines(sent: Sequence[float], slowest: float = 7.0) -> list[RequestLine]:
    """Requests that take 2 s to ``slowest`` for their whole answers."""
    step = (slowest - 2.0) / len(sent)
    return [
        {
            "id": number,
            "sent_s": moment,
            "ttft_s": 1.0 + step * number,
            "e2el_s": 2.0 + step * (number + 1),
            "error": None,
        }
        for number, moment in enumerate(sent)
    ]  # type: ignore[misc]


@pytest.mark.parametrize(("every", "label"), [(1e-5, "in the order sent"), (0.5, "since the first request (s)")])
def test_requests_sent_at_once_are_shown_in_their_order(every: float, label: str) -> None:
    with drawing():
        axes = new_figure(4.8, 4.0).subplots()
        requests._over_time(axes, lines([every * number for number in range(12)]), [])
        axes.figure.draw_without_rendering()
        boxes = sorted((tick.get_window_extent() for tick in axes.get_xticklabels()), key=lambda box: box.x0)
    assert label in axes.get_xlabel()
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes)), "numbers do not touch"


@pytest.mark.parametrize("slowest", [7.0, 700.0])
def test_an_axis_of_latencies_has_numbers(slowest: float) -> None:
    with drawing():
        axes = new_figure(4.8, 4.0).subplots()
        requests._distribution(axes, lines([0.0] * 12, slowest))
        axes.figure.draw_without_rendering()
        low, high = axes.get_xlim()
        shown = [
            tick.label1.get_text()
            for tick in axes.xaxis.get_major_ticks()
            if low <= tick.get_loc() <= high and tick.label1.get_text()
        ]
    assert len(shown) >= 2
