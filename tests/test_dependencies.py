"""What the packages import is declared in pyproject.toml, and what is declared is imported."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMPORT_NAMES = {"nvidia-ml-py": "pynvml"}


def imported() -> set[str]:
    names: set[str] = set()
    for folder in (ROOT / "kvplan", ROOT / "engine" / "kvplan_engine"):
        for path in folder.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    names |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module:
                    names.add(node.module.partition(".")[0])
    return names - sys.stdlib_module_names - {"kvplan", "kvplan_engine"}


def declared() -> set[str]:
    # tomllib is not in Python 3.10
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    block = re.search(r"^dependencies = \[\n(.*?)^\]", project, re.MULTILINE | re.DOTALL)
    assert block is not None
    packages = re.findall(r'^  "([A-Za-z0-9_-]+)', block[1], re.MULTILINE)
    return {IMPORT_NAMES.get(name, name) for name in packages}


def test_imports_and_declarations_agree() -> None:
    assert imported() == declared()
