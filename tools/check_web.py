"""Drives the page of `kvplan web` in a real browser, and compares its answers with the commands' to the byte.

    python tools/check_web.py --out docs/web-check.md [--pyodide PATH] [--chromium PATH]

40 questions are asked by link (a log is pasted), and the JSON that the page copies is compared with the command's
output. Beside that: sliders are timed, axe looks for what keeps people out, the network is cut after a first visit, and
pictures are taken. Node.js with the packages of tools/web/package.json, and Chromium, are needed; exit code 1 where
anything fails. ``--out`` writes the page of results and the pictures beside it.
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
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from statistics import median
from typing import Any

from kvplan.cli import main as kvplan
from kvplan.site.pyodide import pyodide_folder
from kvplan.site.serving import site_server
from kvplan.site.writing import write_site
from web.page import page
from web.questions import PICTURES, QUESTIONS, Asked

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ROOT / "tools" / "web"
SLIDER_BUDGET_MS = 50


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


def in_browser(address: str, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return what tools/web/browser.mjs found."""
    task = {
        "address": address,
        "chromium": arguments.chromium,
        "folder": str(folder),
        "questions": [{"hash": each.link, "log": each.log_text(ROOT)} for each in QUESTIONS],
        "pictures": PICTURES,
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
        f"question {number} ({QUESTIONS[number].line}): Node.js and the command differ"
        for number, answer in of_node.items()
        if f"{answer}\n" != expected[number]
    ]
    if median(found["slider_ms"]) >= SLIDER_BUDGET_MS:
        said.append(f"a slider took {median(found['slider_ms']):.0f} ms in the median, {SLIDER_BUDGET_MS} allowed")
    said += [f"console: {text}" for text in found["complaints"]]
    said += [f"asked elsewhere: {text}" for text in found["outside"]]
    said += [] if "fit" in found["offline_words"] else ["without a network the page did not answer"]
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
        with site_server(site, 0) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            found = in_browser(f"http://127.0.0.1:{server.server_address[1]}/", arguments, pictures)
            server.shutdown()
        said = failures(found, expected, of_node)
        print(*(said or ["everything holds"]), sep="\n")
        if arguments.out is not None:
            arguments.out.write_text(page(found, said, size, len(QUESTIONS), len(of_node)), encoding="utf-8")
            for path in pictures.iterdir():
                shutil.copyfile(path, arguments.out.parent / "images" / path.name)
    return 1 if said else 0


if __name__ == "__main__":
    raise SystemExit(main())
