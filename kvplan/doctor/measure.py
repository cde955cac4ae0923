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

from kvplan.calibrate.calibration import calibrate_directories, profile_document, write_profile
from kvplan.doctor.screen import screen_of
from kvplan.doctor.session import without_home
from kvplan.errors import KvplanError
from kvplan.workers.process import same_imports

SCHEMA: Final = "kvplan.doctor-rows/1"
SWEEP: Final = "sweep"
"""The directory of the measurement's sweep, which ``kvplan_engine.measuring.memory`` leaves beside the rows."""

COMMAND: Final = (sys.executable, "-m", "kvplan_engine.measuring.script")
PROJECT: Final = "profiles/measured/"


@dataclass(frozen=True, slots=True)
class Measured:
    """rows: the file to send, of the report and ``num_rows`` figures. page: what to do with it. is_whole: all ran.

    profile: the measured profile that the sweep gave. None where it gave none, and ``why_none`` says why.
    """

    rows: Path
    page: Path
    num_rows: int
    is_whole: bool
    profile: Path | None
    why_none: str = ""


def measure(report: Mapping[str, Any], folder: Path, sections: str | None = None) -> Measured:
    """Measure what ``report`` is about, into ``folder``. sections: some of them, with commas.

    On the emulation every line runs with tiny shapes, and no figure means anything.
    """
    is_dry = report["device"] == "emulated"
    folder.mkdir(parents=True, exist_ok=True)
    # Files are told apart by GPU and release of torch, such as nvidia-h100-80gb-hbm3-torch-2.13.0.
    gpu = (report.get("gpu") or {}).get("name", report["device"])
    version = str(report["versions"]["torch"]).partition("+")[0]
    name = re.sub(r"[^a-z0-9.]+", "-", f"{gpu} torch {version}".casefold()).strip("-")
    raw, rows = folder / "rows.jsonl", folder / f"{name}.jsonl"
    options = ["--sections", sections] if sections else []
    command = [*COMMAND, "--out", str(raw), *options, *(["--dry-run"] if is_dry else [])]
    code = subprocess.run(command, stdout=sys.stderr, env=same_imports(), check=False).returncode
    lines = _lines(raw)
    header = {"schema": SCHEMA, "report": without_home(report)}
    text = "".join(f"{json.dumps(without_home(line))}\n" for line in (header, *lines))
    rows.write_text(text, encoding="utf-8")
    num_rows = sum("value" in line for line in lines)
    if is_dry:
        profile, why_none = None, "The emulation's speeds mean nothing."
    else:
        profile, why_none = _calibrated(folder / SWEEP, folder / f"{name}.json")
    page = folder / f"{name}.md"
    measured = Measured(rows, page, num_rows, code == 0, profile, why_none)
    page.write_text(_page(report, measured), encoding="utf-8")
    return measured


def _calibrated(sweep: Path, path: Path) -> tuple[Path | None, str]:
    """(the profile that ``kvplan calibrate`` makes of ``sweep``, why there is none)."""
    if not sweep.is_dir():
        return None, "No sweep was run."
    try:
        write_profile(without_home(profile_document(calibrate_directories([sweep], held_out=0.5, seed=0))), path)
    except KvplanError as error:
        return None, error.message
    return path, ""


def refuse_unmeasurable(report: Mapping[str, Any]) -> None:
    """KvplanError where ``report`` is about a CPU."""
    if report["device"] not in ("cuda", "emulated"):
        raise KvplanError(
            "--measure is for a GPU, and this machine's kernels run on its CPU.",
            hint="kvplan bench and kvplan sweep measure a CPU",
        )


def _lines(raw: Path) -> list[dict[str, Any]]:
    if not raw.is_file():
        return []
    return [json.loads(line) for line in raw.read_text(encoding="utf-8").splitlines()]


def _page(report: Mapping[str, Any], measured: Measured) -> str:
    file, profile = measured.rows.name, measured.profile
    left = "" if measured.is_whole else " Some sections failed or were left out: the file says which, and is welcome."
    screen = "\n".join(screen_of(report))
    if profile is None:
        fitted, files, them, use = f"Its speeds were not calibrated: {measured.why_none}", "it", "it", ""
    else:
        fitted = f"`{profile.name}` has the speeds of a sweep, calibrated: it is read there as it is."
        files, them = "both", "them"
        use = f" `kvplan calibrate {SWEEP}` in this folder has estimates and plans use your speeds."
    return f"""# Thank you

{measured.num_rows} figures of this machine are in `{file}`.{left}

kvplan predicts this GPU from its data sheet and from figures of others. With yours it can say how far off that is, and
which of its kernels are worth their place here. {fitted} To give them:

1. Look into `{file}`: a line for each figure with the shapes it is for, versions of driver, torch and kvplan, and the
   screen below. There is no name of yours in it, no host name, no path below your home.
2. Put {files} into `{PROJECT}` of kvplan's repository and open a pull request, or attach {them} to an issue.

To use it yourself: which kernels run here was decided by the check, and is kept.{use}

```
{screen}
```
"""
