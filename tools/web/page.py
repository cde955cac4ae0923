"""The results of a check of the page, as a page of the documentation."""

from __future__ import annotations

from statistics import median
from typing import Any

from kvplan.units import format_bytes

_HEAD = """# The page, checked in a browser

Written by `make check-web`: Chromium, which finds no other host, opens the site that `kvplan web --export` writes and
`python -m http.server` serves, asks questions by link, and compares what its *Copy JSON* button copies with what the
command prints. [web.md](web.md) says what the page does.

"""


def page(found: dict[str, Any], said: list[str], size: int, num_questions: int, num_in_node: int) -> str:
    """Return the page. ``said``: what does not hold."""
    times = sorted(found["slider_ms"])
    rows = [
        (
            "questions whose answer is the command's to the byte",
            f"{num_questions - _of(said, 'page and')} of {num_questions}",
        ),
        ("of those asked under Node.js", f"{num_in_node - _of(said, 'Node.js and')} of {num_in_node}"),
        ("a slider moved until the answer is drawn, median", f"{median(times):.0f} ms"),
        ("slowest of 20 such", f"{times[int(len(times) * 0.95) - 1]:.0f} ms"),
        ("first visit until the first answer", f"{found['cold_ms'] / 1000:.1f} s"),
        (
            "later visits, each in a browser that was started anew, median",
            f"{median(found['warm_ms']) / 1000:.1f} s",
        ),
        ("slowest of these", f"{max(found['warm_ms']) / 1000:.1f} s"),
        ("load of the machine meanwhile, and its cores", f"{found['load']:.1f}, {found['cores']}"),
        ("files of the site", format_bytes(size, digits=1)),
        ("errors in the console", str(len(found["complaints"]))),
        ("requests to other hosts", str(len(found["outside"]))),
        (
            "violations that axe finds, over all pictures",
            str(sum(len(each["violations"]) for each in found["looks"].values())),
        ),
        ("reloaded without a network", "answers" if "fit" in found["offline_words"] else "does not answer"),
    ]
    lines = [_HEAD, "| | |\n| --- | ---: |\n", *(f"| {name} | {value} |\n" for name, value in rows), "\n"]
    lines += ["Everything holds.\n"] if not said else [*(f"* {each}\n" for each in said)]
    lines += [_PATHS, *(_path(question, path) for question, path in found["paths"].items())]
    lines += [f"\n![{name}](images/{name}.png)\n" for name in found["looks"]]
    return "".join(lines)


_PATHS = """
## Three questions of a new user

Seconds are from the first click until the answer stands there, the script's own speed of typing included.

| question | clicks and fields | seconds | the answer begins |
| --- | --- | ---: | --- |
"""


def _path(question: str, path: dict[str, Any]) -> str:
    deeds = f"{len(path['deeds'])}: {', '.join(path['deeds'])}"
    return f"| {question} | {deeds} | {path['seconds']:.1f} | {path['answer']} |\n"


def _of(said: list[str], words: str) -> int:
    return sum(words in each for each in said)
