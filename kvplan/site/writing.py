"""The whole site in a folder: the page, the planner as an archive, Pyodide. Nothing is loaded from elsewhere.

Pyodide is CPython for browsers, which the page runs the planner in. One version is pinned with the digest of its
archive on the npm registry. It is fetched once into the user's cache, or taken from a folder or an archive that a user
names, for places without internet.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import json
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kvplan import __version__
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate.known_models import known_names
from kvplan.paths import profiles_dir, user_cache_dir

VERSION: Final = "314.0.7"
SHA256: Final = "66b7949e5a0cba2250b586d7e368bf12fb482800748d182c4618254b685ffaa0"
URL: Final = f"https://registry.npmjs.org/pyodide/-/pyodide-{VERSION}.tgz"
FILES: Final = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
"""What a page loads; the rest of the archive is for other surroundings."""
_SECONDS: Final = 60
_MOST_BYTES: Final = 64 * 1024**2
_BY_HAND: Final = f"fetch {URL} elsewhere (or `npm pack pyodide@{VERSION}`), and name it with --pyodide"
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


def pyodide_folder(named: Path | None = None) -> Path:
    """Return a folder with Pyodide's FILES: the one that is ``named``, unpacked where it is an archive, or the cache's.

    KvplanError where they cannot be had, UsageError where what was named is not Pyodide.
    """
    kept = user_cache_dir() / f"pyodide-{VERSION}"
    if named is None:
        if not _is_whole(kept):
            _unpack(_download(), kept, URL)
        return kept
    if named.is_dir():
        inside = next((each for each in (named, named / "package") if _is_whole(each)), None)
        if inside is None:
            raise UsageError(f"{named} has not all of {', '.join(FILES)}.", hint=f"name Pyodide {VERSION}'s folder")
        return inside
    if not named.is_file():
        raise UsageError(f"There is no file or folder '{named}'.", hint=_BY_HAND)
    _unpack(named.read_bytes(), kept, str(named))
    return kept


def _is_whole(folder: Path) -> bool:
    return all((folder / name).is_file() for name in FILES)


def _download() -> bytes:
    try:
        with urllib.request.urlopen(URL, timeout=_SECONDS) as response:
            content: bytes = response.read(_MOST_BYTES)
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise KvplanError(f"Pyodide could not be fetched from {URL}: {reason}.", hint=_BY_HAND) from error
    return content


def _unpack(archive: bytes, folder: Path, source: str) -> None:
    """Write FILES to ``folder``. KvplanError for an archive that is not the pinned one, or where there is no room."""
    digest = hashlib.sha256(archive).hexdigest()
    if digest != SHA256:
        raise KvplanError(f"{source} is not Pyodide {VERSION}: its sha256 is {digest}, not {SHA256}.", hint=_BY_HAND)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as opened:
            for name in FILES:
                member = opened.extractfile(f"package/{name}")
                assert member is not None, name
                whole = folder / f"{name}.part"
                whole.write_bytes(member.read())
                whole.replace(folder / name)
    except OSError as error:
        raise KvplanError(
            f"Pyodide's files cannot be kept in {folder}: {error.strerror}.",
            hint="set KVPLAN_CACHE_DIR to a folder that can be written",
        ) from error
