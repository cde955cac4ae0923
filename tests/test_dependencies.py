"""What the packages import is declared in pyproject.toml, and what is declared is imported."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMPORT_NAMES = {"nvidia-ml-py": "pynvml", "pyyaml": "yaml"}


def imported() -> set[str]:
    """Without what lies in a ``plugin`` folder: it runs in another engine's process, which brings its own packages."""
    names: set[str] = set()
    for folder in (ROOT / "kvplan", ROOT / "engine" / "kvplan_engine"):
        for path in folder.rglob("*.py"):
            if "plugin" in path.parts:
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    names |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module:
                    names.add(node.module.partition(".")[0])
    return names - sys.stdlib_module_names - {"kvplan", "kvplan_engine"}


# tomllib is not in Python 3.10
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def listed(heading: str) -> set[str]:
    """The import names of the packages in the list under ``heading =``; kvplan's own extras are none."""
    block = re.search(rf"^{heading} = \[\n(.*?)^\]", PROJECT, re.MULTILINE | re.DOTALL)
    assert block is not None
    packages = re.findall(r'^  "([A-Za-z0-9_-]+)', block[1], re.MULTILINE)
    return {IMPORT_NAMES.get(name, name.replace("-", "_")) for name in packages} - {"kvplan"}


def test_imports_and_declarations_agree() -> None:
    assert imported() == listed("dependencies") | listed("serve") | listed("load") | listed("cluster")


def test_a_command_names_the_packages_of_its_extra() -> None:
    from kvplan.commands.options.extras import CLUSTER_PACKAGES
    from kvplan.commands.options.extras import LOAD_PACKAGES as PACKAGES

    assert set(PACKAGES) | {"uvloop"} == listed("load"), "uvloop is used where it is installed"
    assert set(CLUSTER_PACKAGES) == listed("cluster")


def test_ci_installs_every_extra() -> None:
    """But that of a cluster: `make check-cluster` starts one, and takes minutes."""
    assert all(f'"kvplan[{extra}]"' in PROJECT for extra in ("serve", "load"))
