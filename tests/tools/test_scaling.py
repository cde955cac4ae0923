"""docs/scaling.md is what its script writes; growth with GPUs is compared as the page says."""

from __future__ import annotations

import pytest

from kvplan.catalog.devices.kernel_tables import read_kernel_tables
from kvplan.catalog.devices.measured import MeasuredProfiles
from scaling.page import page
from scaling.published import Series, SeriesPoint
from score_scaling import PAGE


def test_the_page_is_current() -> None:
    """`python tools/score_scaling.py --write` keeps it."""
    assert PAGE.read_text(encoding="utf-8") == page(MeasuredProfiles(read_kernel_tables()))


def test_the_error_of_a_growth_by_hand() -> None:
    points = (SeriesPoint(1, "one", 100.0, 50.0), SeriesPoint(2, "tp 2", 150.0, 90.0))
    assert Series("somebody", "title", points).error == pytest.approx(1.8 / 1.5 - 1)
