"""Pyodide's files: CPython for browsers, which the page runs the planner in.

One version is pinned with the digest of its archive on the npm registry. It is fetched once into the user's cache, or
taken from a folder or an archive that a user names, for places without internet.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import tarfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final

from kvplan.errors import KvplanError, UsageError
from kvplan.paths import user_cache_dir

VERSION: Final = "314.0.7"
SHA256: Final = "66b7949e5a0cba2250b586d7e368bf12fb482800748d182c4618254b685ffaa0"
URL: Final = f"https://registry.npmjs.org/pyodide/-/pyodide-{VERSION}.tgz"
FILES: Final = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
"""What a page loads; the rest of the archive is for other surroundings."""
_SECONDS: Final = 60
_MOST_BYTES: Final = 64 * 1024**2
_BY_HAND: Final = f"fetch {URL} elsewhere (or `npm pack pyodide@{VERSION}`), and name it with --pyodide"


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
