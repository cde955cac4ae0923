"""docs/clients.md: what the clients showed, when, and on what machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import datetime, timezone

from clients.findings import Findings
from kvplan import __version__
from kvplan.machine.host import cpu_name

_HEAD = """\
# Real clients against `kvplan serve`

Written by `make check-clients` (`tools/check_clients.py`): every client as published, none of them changed, against
`kvplan serve` with {model}, {options}. {date}, {machine}, Python {python},
kvplan {version}. Other work shared the machine, so the times say little; the counts are what is checked.

| client | version | |
| --- | --- | --- |
"""


def page(findings: Sequence[Findings], model: str, options: str) -> str:
    head = _HEAD.format(
        model=model,
        options=f"`{options}`",
        date=f"{datetime.now(timezone.utc):%Y-%m-%d}",
        machine=f"{os.cpu_count()} cores of {cpu_name()}",
        python=platform.python_version(),
        version=__version__,
    )
    rows = [f"| {found.client} | {found.version or '-'} | {found.verdict} |" for found in findings]
    return "\n".join([head + "\n".join(rows), *(_section(found) for found in findings if found.checks)]) + "\n"


def _section(found: Findings) -> str:
    lines = ["", f"## {found.client} {found.version}", "", "| checked | found | |", "| --- | --- | --- |"]
    lines += [
        f"| {_cell(check.what)} | {_cell(check.found)} | {'right' if check.is_right else '**wrong**'} |"
        for check in found.checks
    ]
    if found.details:
        lines += ["", *(f"    {line}" for line in found.details)]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
