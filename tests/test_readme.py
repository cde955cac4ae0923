"""The commands in the README and in docs/ run and print what is shown; links between pages lead somewhere."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kvplan import cli
from site_pages import deeper, linked_in_site

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


def test_the_readmes_errors_are_those_of_the_page_that_scores_them() -> None:
    """Of memory: the median and the 90th percentile of each set; of servers: how many measurements, and the median."""
    page = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    memory = [row for row in rows if len(row) == 5 and "start-up" in row[1] and row[4].endswith("%")]
    assert [f"{median} ({high})" in README for *_, median, high in memory[1:]] == [True] * 2
    assert f"{memory[0][3]} (median; 90th percentile {memory[0][4]})" in README
    assert f"on {memory[2][2]} start-ups collected later" in README
    (tpot,) = (row for row in rows if row[0] == "TPOT of a server on GPUs")
    assert f"TPOT of {tpot[2]} published measurements of servers\nis off by {tpot[3]}" in README
    (held,) = (row[1] for row in rows if row[0] == "other sources and newest")
    assert held.split(" (")[0] + "\nstart-ups" in README
    total, left_out = re.search(r"the logs of (\d+) start-ups", page), re.search(r"(\d+) rows are not scored", page)
    assert total and left_out
    assert f"against {int(total[1]) - int(left_out[1])} published start-ups" in README


def test_the_architecture_and_the_changelog_can_be_read_to_their_ends() -> None:
    """At most 150 lines, and 40 a release."""
    assert len((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()) <= 150
    _, *releases = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")
    assert releases
    assert [release for release in releases if len(release.strip().splitlines()) > 40] == []


def _pages() -> list[Path]:
    """Every page of the repository that people read: at the root, in docs/ and beside the code."""
    folders = ("docs", "csrc", "benchmarks", "tools", "tests/data")
    found = (page for folder in folders for page in (ROOT / folder).rglob("*.md"))
    return [*ROOT.glob("*.md"), *(page for page in found if "node_modules" not in page.parts)]


def _prose(page: Path) -> str:
    """A page without its code, in which brackets are no links."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]+`", "`", text)


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site name them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.casefold()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", _pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    """To a file that is there, and in it to a heading."""
    for target in re.findall(r"\]\(([^)\s]+)\)", _prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        aim = (page.parent / path).resolve() if path else page
        assert aim.exists(), f"links to {target}"
        assert not anchor or anchor in _anchors(aim), f"links to {target}, and there is no such heading"


def test_every_page_of_docs_is_in_the_navigation_of_the_site() -> None:
    """Once; what stands there is a page."""
    entries: list[object] = [yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]]
    named: list[str] = []
    while entries:
        entry = entries.pop()
        if isinstance(entry, str):
            named.append(entry)
        else:
            entries += entry.values() if isinstance(entry, dict) else entry  # type: ignore[attr-defined]
    docs = ROOT / "docs"
    pages = [str(page.relative_to(docs)) for page in docs.rglob("*.md")]
    assert sorted(name for name in named if not name.startswith("project/")) == sorted(pages)


def test_links_out_of_docs_become_links_of_the_site() -> None:
    from_docs = linked_in_site("[a](../../ARCHITECTURE.md#memory) [t](../../tools/README.md)", "internals/steps.md")
    assert from_docs == "[a](../project/architecture.md#memory) t"
    outside = linked_in_site("[k](csrc/README.md) [d](docs/plan.md)", "project/architecture.md", "ARCHITECTURE.md")
    assert outside == "[k](kernels.md) [d](../plan.md)"
    kept = "[p](plan.md#money) [w](https://a.b) [h](#here) ![i](images/profile.png)"
    assert linked_in_site(kept, "estimate.md") == kept


def test_items_of_lists_are_indented_as_python_markdown_wants() -> None:
    assert (
        deeper("* a\n  b\n\n   ```\n   c\n     d\n   ```\n e") == "* a\n    b\n\n    ```\n    c\n      d\n    ```\n e"
    )
    assert deeper("```\n  as it is\n```") == "```\n  as it is\n```"
