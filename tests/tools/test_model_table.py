"""docs/models.md lists every architecture and claims nothing that the code and its tests do not hold."""

from __future__ import annotations

import model_table
from kvplan.catalog.architectures import architectures

HINT = "python tools/model_table.py --write"


def test_the_page_lists_every_architecture_and_claims_nothing_untrue() -> None:
    now, shown = model_table.rows(), model_table.rows_of_page()
    assert [row.architecture for row in shown] == [row.architecture for row in now], HINT
    claims = {(row.architecture, column) for row in shown for column, flag in _flags(row) if flag}
    untrue = claims - {(row.architecture, column) for row in now for column, flag in _flags(row) if flag}
    assert not untrue, HINT


def test_every_architecture_has_a_config_that_both_sides_read() -> None:
    named = {name for config in model_table.configs() for name in config["architectures"]}
    lacking = sorted(architectures().keys() - named)
    assert not lacking, f"{lacking}: no config in profiles/models, nor in tests/agreement/small_configs.py"


def test_the_counts_of_the_page_are_those_of_its_rows() -> None:
    shown = model_table.table(model_table.rows_of_page())
    assert model_table.PAGE.read_text(encoding="utf-8").endswith(shown), HINT


def test_the_page_names_what_vllm_serves_and_kvplan_does_not() -> None:
    assert model_table.refused_by_kind() in model_table.PAGE.read_text(encoding="utf-8"), HINT


def test_the_page_names_the_files_of_llama_cpp_that_are_sized() -> None:
    assert model_table.gguf_names() in model_table.PAGE.read_text(encoding="utf-8"), HINT


def test_what_is_sized_can_be_measured_and_what_is_equal_runs() -> None:
    rows = model_table.rows()
    assert len(rows) > 170
    assert all(row.sized and row.measured for row in rows)
    assert not [row.architecture for row in rows if row.equal and not row.native]


def _flags(row: model_table.Row) -> list[tuple[int, bool]]:
    return [(column, cell == "yes") for column, cell in enumerate(row.cells[1:])]
