"""One word for each thing: few classes share their name with another class of the same side.

The planner and the engine may each have a ``KvLayout``, since each derives it on its own. Within one side a name that
stands for two things costs every reader of either (docs/glossary.md).
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
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
