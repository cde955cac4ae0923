"""`kvplan doctor --measure`: speeds of this GPU in ten minutes, as a file to send, and a page that says how."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvplan.doctor.screen import screen_of
from kvplan.doctor.session import without_home
from kvplan.errors import KvplanError
from kvplan.workers.environment import same_imports

COMMAND: Final = (sys.executable, "-m", "kvplan_engine.measuring.script")
PROJECT: Final = "profiles/measured/"


@dataclass(frozen=True, slots=True)
class Measured:
    """rows: the file to send, of the report and ``num_rows`` figures. page: what to do with it. is_whole: all ran."""

    rows: Path
    page: Path
    num_rows: int
    is_whole: bool


def measure(report: Mapping[str, Any], folder: Path, sections: str | None = None) -> Measured:
    """Measure what ``report`` is about, into ``folder``. sections: some of them, with commas.

    On the emulation every line runs with tiny shapes, and no figure means anything.
    """
    is_dry = report["device"] == "emulated"
    folder.mkdir(parents=True, exist_ok=True)
    name = name_of(report)
    raw, rows = folder / "rows.jsonl", folder / f"{name}.jsonl"
    options = ["--sections", sections] if sections else []
    command = [*COMMAND, "--out", str(raw), *options, *(["--dry-run"] if is_dry else [])]
    code = subprocess.run(command, stdout=sys.stderr, env=same_imports(), check=False).returncode
    lines = _lines(raw)
    header = {"schema": "kvplan.measured/1", "report": without_home(report)}
    text = "".join(f"{json.dumps(without_home(line))}\n" for line in (header, *lines))
    rows.write_text(text, encoding="utf-8")
    num_rows = sum("value" in line for line in lines)
    page = folder / f"{name}.md"
    page.write_text(_page(report, rows.name, num_rows, is_whole=code == 0), encoding="utf-8")
    return Measured(rows, page, num_rows, code == 0)


def refuse_unmeasurable(report: Mapping[str, Any]) -> None:
    """KvplanError where ``report`` is about a CPU."""
    if report["device"] not in ("cuda", "emulated"):
        raise KvplanError(
            "--measure is for a GPU, and this machine's kernels run on its CPU.",
            hint="kvplan bench and kvplan sweep measure a CPU",
        )


def name_of(report: Mapping[str, Any]) -> str:
    """Of the file: the GPU's name and torch's version, such as nvidia-h100-80gb-hbm3-torch-2.13.0."""
    gpu = (report.get("gpu") or {}).get("name", report["device"])
    version = str(report["versions"]["torch"]).partition("+")[0]
    return re.sub(r"[^a-z0-9.]+", "-", f"{gpu} torch {version}".casefold()).strip("-")


def _lines(raw: Path) -> list[dict[str, Any]]:
    if not raw.is_file():
        return []
    return [json.loads(line) for line in raw.read_text(encoding="utf-8").splitlines()]


def _page(report: Mapping[str, Any], file: str, num_rows: int, *, is_whole: bool) -> str:
    left = "" if is_whole else " Some sections failed or were left out: the file says which, and is welcome."
    screen = "\n".join(screen_of(report))
    return f"""# Thank you

{num_rows} figures of this machine are in `{file}`.{left}

kvplan predicts this GPU from its data sheet and from figures of others. With yours it can say how far off that is, and
which of its kernels are worth their place here. To give them:

1. Look into `{file}`: a line for each figure with the shapes it is for, versions of driver, torch and kvplan, and the
   screen below. There is no name of yours in it, no host name, no path below your home.
2. Put it into `{PROJECT}` of kvplan's repository and open a pull request, or attach it to an issue.

To use it yourself you need to do nothing: which kernels run here was decided by the check, and is kept.

```
{screen}
```
"""
