"""The script that shows that nothing changed: it sees what changes, and nothing where nothing does."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import behaviour


def _record(folder: Path, document: Any) -> Path:
    folder.mkdir()
    (folder / "explain.json.gz").write_bytes(gzip.compress(json.dumps(document).encode()))
    return folder


def test_every_difference_is_a_line_with_its_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = {"a": [1, {"b": 2.5}], "gone": None, "same": "text", "note": "2 of 3 blocks"}
    new = {"a": [1, {"b": 2.25}, 7], "same": "text", "note": "2 blocks (of 4)", "true": True}
    folders = [str(_record(tmp_path / name, document)) for name, document in (("old", old), ("new", new))]
    assert behaviour.main(["compare", *folders, "--only", "explain"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "explain/a/1/b: 2.5 -> 2.25",
        "explain/a/2: nothing -> 7",
        "explain/gone: null -> nothing",
        'explain/note: "2 of 3 blocks" -> "2 blocks (of 4)"',
        "explain/true: nothing -> true",
        "5 differences",
    ]


def test_a_reworded_text_with_the_same_numbers_can_be_let_pass(tmp_path: Path) -> None:
    old = _record(tmp_path / "old", {"note": "1,024 tokens in 2 blocks", "kind": 1})
    new = _record(tmp_path / "new", {"note": "room for 1,024 tokens: 2 blocks", "kind": True})
    assert behaviour.compare(old, new, ["explain"], numbers_only=True) == ["explain/kind: 1 -> true"]


def test_a_missing_section_is_a_difference(tmp_path: Path) -> None:
    old = _record(tmp_path / "old", {"note": 1})
    assert behaviour.compare(old, tmp_path, ["explain"]) == ['explain: {"note": 1} -> nothing']


def test_what_is_recorded_twice_is_equal(tmp_path: Path) -> None:
    for name in ("first", "second"):
        behaviour.record(tmp_path / name, ["explain", "plan"], every=4)  # all take most of a minute
    assert behaviour.main(["compare", str(tmp_path / "first"), str(tmp_path / "second"), "--only", "explain,plan"]) == 0
    plan = json.loads(gzip.decompress((tmp_path / "first" / "plan.json.gz").read_bytes()))
    assert {answer["exit_code"] for answer in plan.values()} == {0, 1}
    assert sum(len(answer["answer"]["deployments"]) for answer in plan.values()) > 5


def test_unknown_sections_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert behaviour.main(["record", str(tmp_path), "--only", "plan,everything"]) == 2
    assert capsys.readouterr().err.startswith("error: no section everything;")
