"""The run directory on disk: rows that survive whatever happens next.

``trials.jsonl`` is the truth. A record is appended, flushed and synced before the next trial starts, so a row exists
once its trial has ended. A process killed while it writes leaves a last line without its end, and a machine that lost
its power may leave any bytes there: reading ignores such a tail, and opening the store for more cuts it off. Everything
else (results.csv, summary.json) is made from the records and replaced as a whole, so that a reader never sees half of
it.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import fcntl
import io
import json
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvplan.errors import KvplanError
from kvplan.runs.columns import COLUMN_NAMES, TRIAL_SCHEMA

TRIALS: Final = "trials.jsonl"
RESULTS: Final = "results.csv"
MANIFEST: Final = "manifest.json"
SUMMARY: Final = "summary.json"
WORKER_LOG: Final = "worker.log"
MODEL: Final = "model"
_LOCK: Final = ".lock"

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StoredTrials:
    """The whole records of a trials.jsonl, and how many bytes of it they are: what follows is torn."""

    records: tuple[Record, ...]
    num_bytes: int
    is_torn: bool


def read_trials(path: Path) -> StoredTrials:
    """Every whole record before the tail. KvplanError when a record follows a line that is none: no torn write."""
    content = path.read_bytes() if path.exists() else b""
    records: list[Record] = []
    position, damaged_line = 0, 0
    for number, line in enumerate(content.split(b"\n"), start=1):
        record = _record(line) if position + len(line) < len(content) else None
        if record is None:
            damaged_line = damaged_line or number
        elif damaged_line:
            raise KvplanError(
                f"Line {damaged_line} of {path} is damaged, and records follow it.",
                hint="remove that line to run its trial again with --resume",
            )
        else:
            records.append(record)
            position += len(line) + 1
    return StoredTrials(tuple(records), position, position < len(content))


def _record(line: bytes) -> Record | None:
    """The record in a line, without its line feed; None where it is no record."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and record.get("schema") == TRIAL_SCHEMA else None


class SweepStore:
    """A run directory opened for writing by this process alone. Use as a context manager."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.records: list[Record] = []
        self._lock_fd = -1
        self._trials: io.FileIO | None = None

    @staticmethod
    def create(directory: Path, manifest: Record) -> SweepStore:
        """A new run. KvplanError when the directory cannot be written or holds a sweep already."""
        store = SweepStore(directory)
        _make_directory(directory)
        store._lock()
        if (directory / MANIFEST).exists() or (directory / TRIALS).exists():
            store.close()
            raise KvplanError(
                f"{directory} already holds a sweep.",
                hint=f"continue it with --resume {directory}, or choose another --out",
            )
        write_whole(directory / MANIFEST, _json_text(manifest))
        store._open_trials(0)
        return store

    @staticmethod
    def reopen(directory: Path) -> SweepStore:
        """An existing run to be continued: its records are read, a torn last line is cut off."""
        store = SweepStore(directory)
        if not (directory / MANIFEST).exists():
            raise KvplanError(
                f"{directory} holds no sweep (no {MANIFEST}).", hint="start one with --out instead of --resume"
            )
        store._lock()
        try:
            stored = read_trials(directory / TRIALS)
            store.records = list(stored.records)
            store._open_trials(stored.num_bytes)
        except KvplanError:
            store.close()
            raise
        return store

    def __enter__(self) -> SweepStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._trials is not None:
            self._trials.close()
            self._trials = None
        if self._lock_fd >= 0:
            os.close(self._lock_fd)  # closing gives the lock back, and so does any death
            self._lock_fd = -1

    def take_back(self) -> None:
        """Remove the files of a run that never started; the directory goes too if nothing else lies in it."""
        for name in (TRIALS, MANIFEST, WORKER_LOG, _LOCK):
            (self.directory / name).unlink(missing_ok=True)
        shutil.rmtree(self.directory / MODEL, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.directory.rmdir()

    @property
    def finished_ids(self) -> set[str]:
        return {record["row"]["trial_id"] for record in self.records}

    @property
    def rows(self) -> list[Record]:
        return [record["row"] for record in self.records]

    def append(self, record: Record) -> None:
        """Add a finished trial; on the disk when this returns. KvplanError when the disk is full."""
        assert self._trials is not None, "the store is closed"
        line = json.dumps(record, allow_nan=False).encode() + b"\n"
        start = os.fstat(self._trials.fileno()).st_size
        try:
            _write_all(self._trials.fileno(), line)
            os.fsync(self._trials.fileno())
        except OSError as error:
            self._trials.truncate(start)
            raise KvplanError(
                f"The trial's row could not be written to {self.directory / TRIALS}: {error.strerror}.",
                hint=f"make room, then continue with --resume {self.directory}",
            ) from error
        self.records.append(record)

    def write_results(self) -> None:
        """results.csv from the records, replaced as a whole."""
        write_whole(self.directory / RESULTS, csv_text(self.rows))

    def write_summary(self, summary: Record) -> None:
        write_whole(self.directory / SUMMARY, _json_text(summary))

    def read_manifest(self) -> Record:
        return read_manifest(self.directory)

    def update_manifest(self, changes: Record) -> None:
        write_whole(self.directory / MANIFEST, _json_text(self.read_manifest() | changes))

    def _lock(self) -> None:
        """One writer at a time. The lock is the kernel's, so that a killed sweep leaves none behind."""
        try:
            self._lock_fd = os.open(self.directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise KvplanError(
                f"Another sweep is writing {self.directory}.",
                hint="wait for it, or choose another directory with --out",
            ) from None
        except OSError as error:
            raise _not_writable(self.directory, error) from error

    def _open_trials(self, num_bytes: int) -> None:
        path = self.directory / TRIALS
        try:
            self._trials = path.open("ab", buffering=0)
            if path.stat().st_size != num_bytes:
                self._trials.truncate(num_bytes)
            _sync_directory(self.directory)
        except OSError as error:
            raise _not_writable(self.directory, error) from error


def _sync_directory(directory: Path) -> None:
    """A new file's name must outlive a crash of the machine, as its content does."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, content: bytes) -> None:
    """Unbuffered, so that nothing is left to be written by a later close."""
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_writable(directory, error) from error


def _not_writable(directory: Path, error: OSError) -> KvplanError:
    reason = "it is a file" if error.errno in (errno.EEXIST, errno.ENOTDIR) else error.strerror
    return KvplanError(
        f"The directory {directory} cannot be written: {reason}.", hint="choose a directory you may write to with --out"
    )


def read_manifest(directory: Path) -> Record:
    """The manifest of a run. KvplanError when there is none or it is malformed."""
    path = directory / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise KvplanError(f"{directory} holds no sweep (no {MANIFEST}).") from None
    except (OSError, ValueError) as error:
        raise KvplanError(f"{path} cannot be read: {error}.") from error
    if not isinstance(manifest, dict):
        raise KvplanError(f"{path} is no manifest of a sweep.")
    return manifest


def csv_text(rows: Iterable[Record]) -> str:
    """The rows as CSV: every column in its order, an empty cell for what is not known."""
    output = io.StringIO()
    writer = csv.DictWriter(output, COLUMN_NAMES, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return output.getvalue()


def write_whole(path: Path, text: str) -> None:
    """Replace a file so that a reader sees the old or the new one, never half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise KvplanError(
            f"{path} could not be written: {error.strerror}.", hint="make room or choose another --out"
        ) from error


def _json_text(value: Record) -> str:
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def missing_columns(rows: Sequence[Record]) -> set[str]:
    """Columns that some row lacks or has too many: empty when the rows follow the definition."""
    names = set(COLUMN_NAMES)
    return set().union(*(names ^ row.keys() for row in rows))
