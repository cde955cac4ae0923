"""Every package says in its ``__init__.py`` what its files hold, and few classes share a name within a side."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = sorted(
    path.parent
    for top in ("kvplan", "engine/kvplan_engine", "tools", "benchmarks")
    for path in (ROOT / top).rglob("__init__.py")
)
ONE_FILE_EACH = "one file for each family"
"""What rooms say whose files need no list, since each is a family of its name."""
_LISTED = re.compile(r"^ {0,4}((?:[a-z_0-9]+(?:\.py|/)?(?:, *)?)+) {2,}\S", re.MULTILINE)
_NO_CODE = ("templates",)


def _words(room: Path) -> str:
    return ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8"))) or ""


def _files(room: Path) -> set[str]:
    modules = {path.stem for path in room.glob("*.py")} - {"__init__"}
    return modules | {path.name for path in room.iterdir() if path.is_dir() and any(path.glob("*.py"))}


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.relative_to(ROOT)))
def test_a_room_says_what_its_files_hold(room: Path) -> None:
    words = _words(room)
    assert words
    if ONE_FILE_EACH not in words:
        assert [name for name in sorted(_files(room)) if not re.search(rf"\b{name}\b", words)] == []


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.relative_to(ROOT)))
def test_a_room_lists_no_file_that_is_not_there(room: Path) -> None:
    listed = {re.sub(r"\.py$|/$", "", name) for line in _LISTED.findall(_words(room)) for name in re.split(", *", line)}
    assert listed - _files(room) - set(_NO_CODE) == set()


MOST_HOMONYMS = 10


def _class_names(side: str) -> Counter[str]:
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in sorted((ROOT / side).rglob("*.py")))
    return Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def test_few_class_names_stand_for_two_things() -> None:
    sides = (_class_names(side) for side in ("kvplan", "engine/kvplan_engine"))
    homonyms = sorted({name for names in sides for name, count in names.items() if count > 1})
    assert len(homonyms) <= MOST_HOMONYMS, homonyms


@pytest.mark.parametrize("side", ["kvplan", "engine/kvplan_engine"])
def test_the_count_sees_the_classes(side: str) -> None:
    assert len(_class_names(side)) > 300
