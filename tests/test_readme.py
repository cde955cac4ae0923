"""The commands in the README and in docs/ run, and print what is shown."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from kvplan import cli

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = "\n".join([README, *(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md")))])
CONSOLE = re.findall(r"```console\n\$ (kvplan .+?)\n(.*?)```", PAGES, re.DOTALL)


def _kvplan(arguments: list[str]) -> str:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(
        [sys.executable, "-m", "kvplan", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "120", "NO_COLOR": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("command", "shown"), CONSOLE, ids=[command for command, _ in CONSOLE])
def test_a_command_prints_what_is_shown(command: str, shown: str) -> None:
    """Line by line; dots stand for what is left out, lines or a part of one."""
    printed = iter(line.rstrip() for line in _kvplan(shlex.split(command)[1:]).strip().splitlines())
    for line in shown.strip("\n").splitlines():
        if line.strip() == "...":
            continue
        wanted = re.compile(".+".join(map(re.escape, line.rstrip().split("..."))))
        assert any(map(wanted.fullmatch, printed)), f"a page shows a line that is not printed: {line!r}"
    assert shown.rstrip().endswith("...") or next(printed, None) is None, "a page leaves out the end without dots"


def test_there_are_commands_to_check() -> None:
    assert len(CONSOLE) >= 2


@pytest.mark.slow
def test_every_sweep_line_is_a_valid_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    lines = re.findall(r"^    (kvplan sweep --model .+?)(?:\s{2,}#.*)?$", PAGES, re.MULTILINE)
    assert lines
    for line in lines:
        needs_memory = "--load-format none" not in line and "--dummy-layers shared" not in line
        small = ["--device", "cpu", "--device-memory", "2GiB"] if needs_memory else []
        code = cli.main([*shlex.split(line)[1:], "--dry-run", *small])
        assert code == 0, f"{line}\n{capsys.readouterr().err}"


def test_the_first_two_commands_are_make_targets() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("sweep", "check"):
        assert re.search(rf"^    make {target}\b", README, re.MULTILINE)
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_the_readme_is_short_and_narrow() -> None:
    """At most 130 lines; no shown output or command wider than 100 columns."""
    lines = README.splitlines()
    assert len(lines) <= 130
    blocks = re.findall(r"```\w*\n(.*?)```", README, re.DOTALL)
    shown = [line for block in blocks for line in block.splitlines()] + [x for x in lines if x.startswith("    ")]
    assert [line for line in shown if len(line) > 100] == []


def test_links_between_pages_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"
