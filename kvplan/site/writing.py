"""The whole site in a folder: the page, the planner as an archive, Pyodide. Nothing is loaded from elsewhere."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kvplan import __version__
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate.known_names import known_names
from kvplan.paths import profiles_dir
from kvplan.site.pyodide import FILES, VERSION, pyodide_folder

PAGE: Final = Path(__file__).resolve().parent / "page"
PLANNER: Final = "kvplan.zip"
KNOWN: Final = "known.json"
"""Names for the page's controls: the planner's own answer, so that they are drawn before it has started."""
_ROOMS: Final = (
    "api",
    "catalog",
    "commands",
    "estimate",
    "explaining",
    "fleet",
    "machine",
    "metrics",
    "pasted",
    "planner",
    "runs",
    "web",
    "workload",
)
"""Of the package: what the planner imports, or may."""
_MARK: Final = "site.json"
_SAME_TIME: Final = (1980, 1, 1, 0, 0, 0)
"""Of every file in the archive: the same planner is the same archive."""


def write_site(folder: Path, pyodide: Path | None = None) -> int:
    """Write the site to ``folder`` and return its bytes.

    UsageError where the folder holds something else, KvplanError where it cannot be written.
    """
    source = pyodide_folder(pyodide)
    try:
        if folder.is_dir() and any(folder.iterdir()) and not (folder / _MARK).is_file():
            raise UsageError(f"{folder} is not empty, and holds no such site.", hint="name a new folder")
        (folder / "pyodide").mkdir(parents=True, exist_ok=True)
        for path in sorted(PAGE.iterdir()):
            shutil.copyfile(path, folder / path.name)
        for name in FILES:
            shutil.copyfile(source / name, folder / "pyodide" / name)
        (folder / PLANNER).write_bytes(planner_archive())
        known = known_names() | {"version": __version__}
        (folder / KNOWN).write_text(json.dumps(known, ensure_ascii=False), encoding="utf-8")
        (folder / _MARK).write_text(json.dumps(_contents(folder), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise KvplanError(f"The site cannot be written to {folder}: {error.strerror}.") from error
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _contents(folder: Path) -> dict[str, object]:
    """What the page's service worker keeps: every file, and one name for all of them as they are."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != _MARK]
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    files = {str(path.relative_to(folder).as_posix()): path.stat().st_size for path in paths}
    return {"version": __version__, "pyodide": VERSION, "name": digest.hexdigest()[:16], "files": files}


def planner_archive() -> bytes:
    """Return the planner and its profiles as a zip archive, as they lie in an installed package."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in sorted(_planner_files()):
            entry = zipfile.ZipInfo(name, _SAME_TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())
    return content.getvalue()


def _planner_files() -> Iterator[tuple[str, Path]]:
    package = Path(__file__).resolve().parents[1]
    found = [*package.glob("*.py"), *(path for room in _ROOMS for path in (package / room).rglob("*.py"))]
    for path in found:
        yield f"kvplan/{path.relative_to(package).as_posix()}", path
    profiles = profiles_dir()
    for path in profiles.rglob("*.json"):
        yield f"kvplan/profiles/{path.relative_to(profiles).as_posix()}", path
