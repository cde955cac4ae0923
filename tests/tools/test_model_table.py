"""docs/models.md says what the code and its tests say."""

from __future__ import annotations

import model_table


def test_the_page_is_as_the_tool_prints_it() -> None:
    assert model_table.PAGE.read_text(encoding="utf-8") == model_table.page(), "python tools/model_table.py --write"


def test_what_is_sized_can_be_measured_and_what_is_equal_runs() -> None:
    rows = model_table.rows()
    assert len(rows) > 170
    assert all(row.sized and row.measured for row in rows)
    assert not [row.architecture for row in rows if row.equal and not row.native]
