"""Drives the page of `kvplan web` in a real browser, and compares its answers with the commands' to the byte.

    python tools/check_web.py --out docs/web-check.md [--pyodide PATH] [--chromium PATH]

The exported site is served by Python's plain http.server to a browser that finds no other host. 40 questions are asked
by link (a log is pasted), and the JSON that the page copies is compared with the command's output. Beside that: visits
and sliders are timed, axe looks for what keeps people out, three questions are asked as a new user would, the network
is cut after a first visit, and pictures are taken. Node.js with the packages of tools/web/package.json, and Chromium,
are needed; exit code 1 where anything fails. ``--out`` writes the page of results and the pictures beside it.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from statistics import median
from typing import Any

from kvplan.cli import main as kvplan
from kvplan.site.serving import site_server
from kvplan.site.writing import pyodide_folder, write_site
from web.page import page
from web.questions import PICTURES, QUESTIONS, Asked

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ROOT / "tools" / "web"
SLIDER_BUDGET_MS = 50
START_BUDGET_MS = 3000
STOPPED_LOG = "tests/data/startup_logs/vllm-0.7-no-room.log"


def command_output(words: tuple[str, ...]) -> str:
    """Return what ``kvplan WORDS --json`` prints."""
    with redirect_stdout(io.StringIO()) as printed, redirect_stderr(io.StringIO()):
        kvplan([*words, "--json"])
    return printed.getvalue()


def in_node(site: Path, questions: list[Asked]) -> list[str | None]:
    """Return the documents of the planner under Pyodide in Node.js, without a browser."""
    asked = [{"ask": each.command, "arguments": each.with_log(ROOT)} for each in questions]
    done = subprocess.run(
        ["node", str(TOOLS / "ask.mjs"), str(site)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"error: {done.stderr}")
    return [each.get("document") for each in json.loads(done.stdout)]


@contextmanager
def plain_server(site: Path) -> Iterator[str]:
    """``python -m http.server`` on the exported site; its address."""
    words = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(site)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{server.stdout.readline().split(' port ')[1].split()[0]}/"
        finally:
            server.terminate()


@contextmanager
def own_server(site: Path) -> Iterator[str]:
    """The server of ``kvplan web``; its address."""
    with site_server(site, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


def in_browser(site: Path, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return what tools/web/browser.mjs found."""
    with plain_server(site) as address, own_server(site) as own_address:
        return _driven({"address": address, "own_address": own_address}, arguments, folder)


def _driven(addresses: dict[str, str], arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    task = {
        **addresses,
        "chromium": arguments.chromium,
        "folder": str(folder),
        "questions": [{"hash": each.link, "log": each.log_text(ROOT)} for each in QUESTIONS],
        "pictures": PICTURES,
        "log": (ROOT / STOPPED_LOG).read_text(encoding="utf-8"),
    }
    done = subprocess.run(
        ["node", str(TOOLS / "browser.mjs")], input=json.dumps(task), stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise SystemExit("error: the browser's side ended early")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def failures(found: dict[str, Any], expected: list[str], of_node: dict[int, str | None]) -> list[str]:
    """Every promise that was not kept, one sentence each."""
    said = []
    for number, (answer, mine) in enumerate(zip(found["answers"], expected, strict=True)):
        if answer + "\n" != mine:
            said.append(f"question {number} ({QUESTIONS[number].line}): page and command differ")
    said += [
        f"question {4 * number}: the page of a first visit and the command differ"
        for number, answer in enumerate(found["first_answers"])
        if answer + "\n" != expected[4 * number]
    ]
    said += [
        f"question {number} ({QUESTIONS[number].line}): Node.js and the command differ"
        for number, answer in of_node.items()
        if f"{answer}\n" != expected[number]
    ]
    if median(found["slider_ms"]) >= SLIDER_BUDGET_MS:
        said.append(f"a slider took {median(found['slider_ms']):.0f} ms in the median, {SLIDER_BUDGET_MS} allowed")
    if median(found["warm_ms"]) >= START_BUDGET_MS:
        said.append(f"a later visit took {median(found['warm_ms']):.0f} ms in the median, {START_BUDGET_MS} allowed")
    said += [f"console: {text}" for text in found["complaints"]]
    said += [f"asked elsewhere: {text}" for text in found["outside"]]
    said += [] if "fit" in found["offline_words"] else ["without a network the page did not answer"]
    said += [] if "fit" in found["own_words"] else ["from kvplan's own server the page did not answer"]
    for name, look in found["looks"].items():
        said += [f"{name}: {text}" for text in look["violations"]]
        said += [f"{name}: wider than the window"] if look["overflow"] else []
    return said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--pyodide", type=Path)
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome"))
    arguments = parser.parse_args()
    if arguments.chromium is None or shutil.which("node") is None:
        print("error: Chromium or Node.js is not installed\nhint: --chromium names the browser", file=sys.stderr)
        return 1
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory() as made:
        site, pictures = Path(made) / "site", Path(made) / "pictures"
        pictures.mkdir()
        size = write_site(site, pyodide_folder(arguments.pyodide))
        expected = [command_output(each.words) for each in QUESTIONS]
        places = range(0, len(QUESTIONS), len(QUESTIONS) // 10)
        of_node = dict(zip(places, in_node(site, [QUESTIONS[place] for place in places]), strict=True))
        found = in_browser(site, arguments, pictures)
        said = failures(found, expected, of_node)
        print(*(said or ["everything holds"]), sep="\n")
        if arguments.out is not None:
            arguments.out.write_text(page(found, said, size, len(QUESTIONS), len(of_node)), encoding="utf-8")
            for path in pictures.iterdir():
                shutil.copyfile(path, arguments.out.parent / "images" / path.name)
    return 1 if said else 0


if __name__ == "__main__":
    raise SystemExit(main())
