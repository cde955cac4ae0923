"""What the packages import is declared in pyproject.toml, and what is declared is imported."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from kvplan.commands.options.extras import EXTRAS, INCLUDES

ROOT = Path(__file__).resolve().parents[1]
IMPORT_NAMES = {"nvidia-ml-py": "pynvml", "pyyaml": "yaml"}


@cache
def imported() -> frozenset[str]:
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
    return frozenset(names - sys.stdlib_module_names - {"kvplan", "kvplan_engine"})


# tomllib is not in Python 3.10
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def listed(heading: str) -> set[str]:
    """The import names of the packages in the list under ``heading =``; kvplan's own extras are none."""
    block = re.search(rf"^{heading} = \[\n(.*?)^\]", PROJECT, re.MULTILINE | re.DOTALL)
    assert block is not None
    packages = re.findall(r'^  "([A-Za-z0-9_-]+)', block[1], re.MULTILINE)
    return {IMPORT_NAMES.get(name, name.replace("-", "_")) for name in packages} - {"kvplan"}


def test_imports_and_declarations_agree() -> None:
    declared = listed("dependencies").union(*(listed(extra) for extra in EXTRAS))
    assert imported() == declared


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_error_names_the_packages_of_its_extra(extra: str) -> None:
    assert set(EXTRAS[extra]) == listed(extra) - {"uvloop"}, "uvloop is used where it is installed"
    block = re.search(rf"^{extra} = \[\n(.*?)^\]", PROJECT, re.MULTILINE | re.DOTALL)
    assert block is not None
    assert re.findall(r'"kvplan\[(\w+)\]"', block[1]) == ([INCLUDES[extra]] if extra in INCLUDES else [])


def test_ci_installs_every_extra() -> None:
    """But that of a cluster: `make check-cluster` starts one, and takes minutes."""
    assert all(f'"kvplan[{extra}]"' in PROJECT for extra in ("serve", "load"))


_PLAIN = """
import io, sys
from contextlib import redirect_stdout

sys.modules.update(dict.fromkeys(sys.argv[1].split(",")))  # None: as if it were not installed
from kvplan.cli import main

for line in sys.argv[2:]:
    with redirect_stdout(io.StringIO()) as printed:
        code = main(line.split())
    assert code == 0 and printed.getvalue(), (line, code)
"""


def test_a_plain_install_sizes_plans_and_explains() -> None:
    commands = ["estimate llama-3.1-8b --ctx 16k", "plan gpt2 --users 4 --gpu l4", "models", "gpus", "sweep --help"]
    commands += ["plan gpt2 --users 4 --gpu l4 --format kubernetes", "estimate qwen3-30b-a3b --gpu h100 --json"]
    commands.append("explain tests/data/startup_logs/vllm-0.19-llama-3.1-8b-h100.log")
    hidden = ",".join(imported() - listed("dependencies"))
    done = subprocess.run([sys.executable, "-c", _PLAIN, hidden, *commands], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("line", "extra"),
    [
        ("sweep --model gpt2", "engine"),
        ("sweep --engine vllm --model gpt2", "load"),
        ("sweep --model gpt2 --dry-run", "report"),
        ("serve gpt2", "serve"),
        ("load localhost:1", "load"),
        ("report .", "report"),
        ("estimate gpt2 --plot x.png", "report"),
    ],
)
def test_a_command_says_which_extra_it_lacks(line: str, extra: str, monkeypatch, said_by) -> None:
    for name in imported() - listed("dependencies"):
        monkeypatch.setitem(sys.modules, name, None)
    assert f"hint: pip install 'kvplan[{extra}]'" in said_by(line)
