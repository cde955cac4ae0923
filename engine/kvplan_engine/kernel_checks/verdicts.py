"""What a check says of each family of kernels, as data and as text that can be stored."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from kvplan_engine.kernel_checks.use import FAMILIES
from kvplan_engine.kernels.cache_folders import UnusableFolder, kernel_folders, make_usable
from kvplan_engine.paths import source_dir


@dataclass(frozen=True, slots=True)
class Verdict:
    """family: one of FAMILIES. passed: its results are torch's. is_used: and it runs. why: what decided that.

    error, tolerance: of its results, the largest; None where it gave none. micros, twin_micros: of a launch of it and
    of its twin, where the two were timed.
    """

    family: str
    passed: bool
    is_used: bool
    why: str = ""
    error: float | None = None
    tolerance: float | None = None
    micros: float | None = None
    twin_micros: float | None = None

    def sentence(self) -> str:
        """Sentence on a family that failed: what, how, and what stands in for it."""
        known = FAMILIES[self.family]
        instead = "nothing can stand in for it" if known.is_needed else f"{known.twin} stands in for it"
        return f"{self.family} ({known.what}) gives wrong results here: {self.why}; {instead}"


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Verdicts on a model's kernels on a device. seconds: that the checks took. is_cached: they were read, not run."""

    of: tuple[Verdict, ...]
    seconds: float = 0.0
    is_cached: bool = False

    @property
    def avoided(self) -> frozenset[str]:
        """Families that are not used."""
        return frozenset(each.family for each in self.of if not each.is_used)

    @property
    def failed(self) -> tuple[Verdict, ...]:
        """Verdicts on families whose results are wrong."""
        return tuple(each for each in self.of if not each.passed)

    def uses(self, family: str) -> bool:
        """Whether a family was checked and is used."""
        return any(each.family == family and each.is_used for each in self.of)

    def passes(self, family: str) -> bool:
        """Whether a family was checked and is right."""
        return any(each.family == family and each.passed for each in self.of)

    def as_json(self) -> dict[str, Any]:
        """Return the verdicts for a file."""
        return {"seconds": self.seconds, "verdicts": [asdict(each) for each in self.of]}


NO_VERDICTS = Verdicts(())
"""Of kernels that nobody checked."""


def verdicts_from_json(text: Any) -> Verdicts | None:
    """What ``as_json`` gave; None for anything else."""
    if not isinstance(text, Mapping) or not isinstance(text.get("verdicts"), list):
        return None
    names = {each.name for each in fields(Verdict)}
    found = []
    for row in text["verdicts"]:
        if not isinstance(row, Mapping) or set(row) != names or row["family"] not in FAMILIES:
            return None
        if not all(isinstance(row[name], bool) for name in ("passed", "is_used")):
            return None
        found.append(Verdict(**row))
    seconds = text.get("seconds")
    return Verdicts(tuple(found), seconds if isinstance(seconds, float) else 0.0, is_cached=True)


# Verdicts on disk, one file for all that decides them: device, driver, torch, compiler, sources, what is needed.
#
# A check may end its process: a kernel that faults takes the GPU's context with it, one that hangs is killed. So a mark
# beside the file names the family that is being tried. Who finds the mark of a process that is gone takes the family
# for one that failed. Processes take turns behind a lock, which the operating system gives back when one ends.


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
