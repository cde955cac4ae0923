"""Rows survive: torn lines are recognised, one writer at a time, a full disk loses nothing that was there."""

from __future__ import annotations

import csv
import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvplan.errors import KvplanError
from kvplan.runs.columns import COLUMN_NAMES, table_columns
from kvplan.runs.directory import TRIAL_SCHEMA, read_trials
from kvplan.runs.rows import empty_row
from kvplan.runs.storage.files import write_whole
from kvplan.runs.storage.store import SweepStore

MANIFEST = {"schema": "kvplan.manifest/1", "run_id": "test"}


def record(number: int) -> dict:
    row = empty_row() | {
        "trial_id": f"trial-{number}",
        "trial_number": number,
        "status": "ok",
        "error": 'a "quoted", text',
    }
    return {"schema": TRIAL_SCHEMA, "row": row, "series": None}


def new_store(directory: Path, count: int) -> SweepStore:
    store = SweepStore.create(directory, MANIFEST)
    for number in range(count):
        store.append(record(number))
    return store


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    with new_store(tmp_path / "run", 3) as store:
        store.write_results()
    stored = read_trials(tmp_path / "run" / "trials.jsonl")
    assert [item["row"]["trial_id"] for item in stored.records] == ["trial-0", "trial-1", "trial-2"]
    assert not stored.is_torn
    assert all(list(item["row"]) == list(COLUMN_NAMES) for item in stored.records)
    with (tmp_path / "run" / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(table_columns([record(2)["row"]]))
    assert rows[2]["error"] == 'a "quoted", text'
    assert "duration" not in rows[2], "a column that no row fills"


@pytest.mark.parametrize("kept", [1, 2, 57, -1])
def test_a_torn_last_line_is_ignored_and_cut_off_when_continued(tmp_path: Path, kept: int) -> None:
    new_store(tmp_path / "run", 3).close()
    path = tmp_path / "run" / "trials.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]) + lines[2][:kept])
    stored = read_trials(path)
    assert stored.is_torn
    assert len(stored.records) == 2
    with SweepStore.reopen(tmp_path / "run") as store:
        assert [row["trial_id"] for row in store.rows] == ["trial-0", "trial-1"]
        store.append(record(2))
    assert path.read_bytes() == b"".join(lines)


def test_damage_before_the_last_line_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    new_store(tmp_path / "run", 3).close()
    path = tmp_path / "run" / "trials.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1][:40] + b"\n" + lines[2])
    with pytest.raises(KvplanError, match="Line 2") as raised:
        SweepStore.reopen(tmp_path / "run")
    assert raised.value.hint


@pytest.mark.parametrize("row", [None, 3, []])
def test_a_record_without_a_row_is_damage(tmp_path: Path, row: object) -> None:
    new_store(tmp_path / "run", 2).close()
    path = tmp_path / "run" / "trials.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    damaged = {"schema": "kvplan.trial/1"} if row is None else {"schema": "kvplan.trial/1", "row": row}
    path.write_bytes(lines[0] + json.dumps(damaged).encode() + b"\n")
    stored = read_trials(path)
    assert (len(stored.records), stored.is_torn) == (1, True)
    path.write_bytes(path.read_bytes() + lines[1])
    with pytest.raises(KvplanError, match=r"Line 2 of .* is damaged, and records follow it"):
        SweepStore.reopen(tmp_path / "run")


def test_a_directory_with_a_sweep_is_not_overwritten(tmp_path: Path) -> None:
    new_store(tmp_path / "run", 1).close()
    with pytest.raises(KvplanError, match="already holds a sweep") as raised:
        SweepStore.create(tmp_path / "run", MANIFEST)
    assert "--resume" in str(raised.value.hint)


def test_one_writer_at_a_time_and_a_dead_one_leaves_no_lock(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    new_store(directory, 1).close()
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time; from pathlib import Path; from kvplan.runs.storage.store import SweepStore\n"
            f"store = SweepStore.reopen(Path({str(directory)!r})); print('held', flush=True); time.sleep(60)",
        ],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert holder.stdout is not None
    with holder.stdout:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(KvplanError, match="Another sweep is writing"):
            SweepStore.reopen(directory)
        holder.kill()
        holder.wait()
    SweepStore.reopen(directory).close()


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    for directory in (blocked, blocked / "below"):
        with pytest.raises(KvplanError, match="cannot be written") as raised:
            SweepStore.create(directory, MANIFEST)
        assert "--out" in str(raised.value.hint)


def test_a_full_disk_leaves_only_whole_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = new_store(tmp_path / "run", 2)
    real_write = os.write

    def half_a_write(descriptor: int, content: memoryview) -> int:
        if len(content) > 30:
            return real_write(descriptor, content[:30])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda descriptor, content: half_a_write(descriptor, content[:60]))
        with pytest.raises(KvplanError, match="No space left on device") as raised:
            store.append(record(2))
    assert "--resume" in str(raised.value.hint)
    assert len(read_trials(tmp_path / "run" / "trials.jsonl").records) == 2
    store.append(record(3))
    store.close()
    stored = read_trials(tmp_path / "run" / "trials.jsonl")
    assert [item["row"]["trial_id"] for item in stored.records] == ["trial-0", "trial-1", "trial-3"]
    assert not stored.is_torn


def test_what_cannot_be_written_has_a_way_out_for_any_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``report DIR`` and ``sweep --resume DIR`` have no other place."""

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(KvplanError, match="No space left on device") as raised:
            write_whole(tmp_path / "summary.json", "{}")
    assert raised.value.hint == "make room on its disk"
    with pytest.raises(KvplanError) as raised:
        write_whole(tmp_path / "missing" / "summary.json", "{}")
    assert raised.value.hint == f"check that {tmp_path / 'missing'} can be written to"
    assert not list(tmp_path.iterdir())


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_whole(path, json.dumps({"a": 1}))
    write_whole(path, json.dumps({"b": 2}))
    assert json.loads(path.read_text()) == {"b": 2}
    assert [item.name for item in tmp_path.iterdir()] == ["summary.json"]
