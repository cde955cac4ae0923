"""Writing a run directory: rows that survive whatever happens next.

``trials.jsonl`` is the source of truth. A record is appended, flushed and synced before the next trial starts, so a
row exists once its trial has ended. A process killed while writing leaves a last line without its end, and a machine
that loses power may leave any bytes there: reading ignores such a tail, and opening the store for more cuts it off.
Everything else (results.csv, summary.json) is made from the records and replaced as a whole.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import fcntl
import io
import itertools
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from kvplan.errors import KvplanError
from kvplan.foreign_text import inert_cell
from kvplan.runs.answers.summary import Summary
from kvplan.runs.columns import COLUMN_NAMES, Row, table_columns
from kvplan.runs.directory import (
    MANIFEST,
    MODEL,
    RESULTS,
    SUMMARY,
    TRIALS,
    WORKER_LOG,
    Manifest,
    TrialRecord,
    read_manifest,
    read_trials,
)
from kvplan.runs.request_lines import REQUESTS, RequestLine
from kvplan.runs.shape import bounded_numbers
from kvplan.runs.storage.files import sync_directory, write_all, write_whole
from kvplan.runs.storage.requests import append_requests

_RECORDS_PER_CSV: Final = 5
_LOCK: Final = ".lock"


class SweepStore:
    """A run directory opened for writing by this process alone. Use as a context manager."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.records: list[TrialRecord] = []
        self._lock_fd = -1
        self._trials: io.FileIO | None = None

    @staticmethod
    def create(directory: Path, manifest: Manifest, *, can_be_continued: bool = True) -> SweepStore:
        """A new run. KvplanError if the directory cannot be written or already holds a run."""
        store = SweepStore(directory)
        _make_directory(directory)
        store._lock()
        if (directory / MANIFEST).exists() or (directory / TRIALS).exists():
            store.close()
            another = "choose another --out"
            raise KvplanError(
                f"{directory} already holds a sweep." if can_be_continued else f"{directory} already holds a run.",
                hint=f"continue it with --resume {directory}, or {another}" if can_be_continued else another,
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
            os.close(self._lock_fd)  # closing releases the lock, and so does any death of the process
            self._lock_fd = -1

    def take_back(self) -> None:
        """Remove the files of a run that never started; the directory goes too if nothing else is in it."""
        for name in (TRIALS, REQUESTS, MANIFEST, WORKER_LOG, _LOCK):
            (self.directory / name).unlink(missing_ok=True)
        shutil.rmtree(self.directory / MODEL, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.directory.rmdir()

    @property
    def rows(self) -> list[Row]:
        """Rows in the order of their numbers; several workers end their trials in another."""
        return sorted((record["row"] for record in self.records), key=lambda row: row.get("trial_number") or 0)

    def append(self, record: TrialRecord, requests: Sequence[RequestLine] = ()) -> None:
        """Add a finished trial; it is on disk when this returns. KvplanError if the disk is full.

        requests: what it served, written first.
        """
        assert self._trials is not None, "the store is closed"
        append_requests(self.directory, requests)
        line = json.dumps(record, allow_nan=False).encode() + b"\n"
        start = os.fstat(self._trials.fileno()).st_size
        try:
            write_all(self._trials.fileno(), line)
            os.fsync(self._trials.fileno())
        except OSError as error:
            self._trials.truncate(start)
            raise KvplanError(
                f"The trial's row could not be written to {self.directory / TRIALS}: {error.strerror}.",
                hint=f"make room, then continue with --resume {self.directory}",
            ) from error
        self.records.append(record)

    def refresh_results(self) -> None:
        """Write results.csv after every few records: a sweep that is killed leaves one that is nearly whole."""
        if len(self.records) % _RECORDS_PER_CSV == 0:
            self.write_results()

    def write_results(self) -> None:
        """Write results.csv from the records."""
        write_whole(self.directory / RESULTS, csv_text(self.rows))

    def write_summary(self, summary: Summary) -> None:
        """Write summary.json. A figure that rows of other hands make infinite is left out."""
        write_whole(self.directory / SUMMARY, _json_text(bounded_numbers(summary)))

    def read_manifest(self) -> Manifest:
        return read_manifest(self.directory)

    def update_manifest(self, changes: Manifest) -> None:
        write_whole(self.directory / MANIFEST, _json_text(self.read_manifest() | changes))

    def add_versions(self, versions: dict[str, str]) -> None:
        """Note in the manifest what else measures, by name."""
        known = self.read_manifest().get("versions", {})
        if known | versions != known:
            self.update_manifest({"versions": known | versions})

    def _lock(self) -> None:
        """One writer at a time. The lock is the kernel's, so a killed sweep leaves none behind."""
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
            sync_directory(self.directory)
        except OSError as error:
            raise _not_writable(self.directory, error) from error


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_writable(directory, error) from error


def free_directory(wanted: Path) -> Path:
    """A new, empty directory: ``wanted``, or with ``-2``, ``-3`` ... after its name if another sweep has just taken it.

    KvplanError if none can be made there.
    """
    names = itertools.chain([wanted.name], (f"{wanted.name}-{number}" for number in itertools.count(2)))
    for directory in map(wanted.with_name, names):
        try:
            directory.mkdir(parents=True)
            break
        except FileExistsError:
            continue
        except OSError as error:
            raise _not_writable(directory, error) from error
    return directory


def _not_writable(directory: Path, error: OSError) -> KvplanError:
    reason = "it is a file" if error.errno in (errno.EEXIST, errno.ENOTDIR) else error.strerror
    return KvplanError(
        f"The directory {directory} cannot be written: {reason}.", hint="choose a directory you may write to with --out"
    )


def csv_text(rows: Iterable[Row]) -> str:
    """Return the rows as CSV: what people look at first, then the other columns that any row fills; no formulas."""
    rows = list(rows)
    output = io.StringIO()
    writer = csv.DictWriter(output, table_columns(rows) or COLUMN_NAMES, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows({name: inert_cell(value) for name, value in row.items()} for row in rows)
    return output.getvalue()


def _json_text(value: Mapping[str, object]) -> str:
    return json.dumps(value, indent=2, allow_nan=False) + "\n"
