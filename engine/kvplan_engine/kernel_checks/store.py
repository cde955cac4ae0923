"""Verdicts on disk, one file for all that decides them: device, driver, torch, compiler, sources, what is needed.

A check may end its process: a kernel that faults takes the GPU's context with it, one that hangs is killed. So a mark
beside the file names the family that is being tried. Who finds the mark of a process that is gone takes the family for
one that failed. Processes take turns behind a lock, which the operating system gives back when one ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvplan_engine.kernel_checks.table import FAMILIES
from kvplan_engine.kernel_checks.verdicts import Verdicts, verdicts_from_json
from kvplan_engine.kernels.cache_folders import UnusableFolder, kernel_folders, make_usable
from kvplan_engine.paths import source_dir


@dataclass(frozen=True, slots=True)
class Store:
    """Verdicts of one key, kept on disk. path: None where nothing can be kept, so that every start checks anew."""

    path: Path | None

    def read(self) -> Verdicts | None:
        """What was stored; None where nothing was, or what is there is something else."""
        if self.path is None:
            return None
        try:
            return verdicts_from_json(json.loads(self.path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return None

    def write(self, verdicts: Verdicts) -> None:
        """Write in one step; a disk that is full, or a folder that is not to be written, is no error."""
        if self.path is None:
            return
        with contextlib.suppress(OSError):
            handle, name = tempfile.mkstemp(dir=self.path.parent, suffix=".json")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(verdicts.as_json(), file)
            Path(name).replace(self.path)

    def left_behind(self) -> str | None:
        """The family that a process was trying when it ended; None where none was."""
        if self._mark is None:
            return None
        try:
            name = self._mark.read_text(encoding="ascii", errors="replace").strip()
        except OSError:
            return None
        return name if name in FAMILIES else None

    def begin(self, family: str) -> None:
        """Mark ``family`` as being tried."""
        if self._mark is not None:
            with contextlib.suppress(OSError):
                self._mark.write_text(family, encoding="ascii")

    def end(self) -> None:
        """Nothing is being tried any more."""
        if self._mark is not None:
            with contextlib.suppress(OSError):
                self._mark.unlink(missing_ok=True)

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Within, no other process checks the same."""
        with contextlib.ExitStack() as stack:
            if self.path is not None:
                with contextlib.suppress(OSError):  # a file system without locks
                    lock = stack.enter_context(self.path.with_suffix(".lock").open("w"))
                    fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @property
    def _mark(self) -> Path | None:
        return None if self.path is None else self.path.with_suffix(".trying")


def open_store(parts: Sequence[str]) -> Store:
    """The store of what ``parts`` and the kernels' sources decide, in the first folder that can be written."""
    digest = hashlib.sha256(_sources_digest().encode())
    for part in parts:
        digest.update(b"\0" + part.encode())
    name = f"{digest.hexdigest()[:20]}.json"
    for folder in kernel_folders():
        checks = folder / "checks"
        with contextlib.suppress(UnusableFolder, OSError):
            make_usable(folder, is_for_libraries=False)
            checks.mkdir(exist_ok=True)
            if os.access(checks, os.W_OK):
                return Store(checks / name)
    return Store(None)


def _sources_digest() -> str:
    """Digest all CUDA sources, what launches them, and the checks: any of them may decide a verdict."""
    package = Path(__file__).parents[1]
    roots = (source_dir() / "cuda", package / "attention", package / "kernels", package / "kernel_checks")
    digest = hashlib.sha256()
    for root in roots:
        for path in sorted(path for path in root.rglob("*") if path.suffix in (".cu", ".cuh", ".py")):
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
