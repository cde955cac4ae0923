"""The disk tier with everything that can go wrong with files: nothing wrong is ever served."""

from __future__ import annotations

import logging
import os
import resource
import stat
import threading
import time
from pathlib import Path
from typing import BinaryIO

import pytest

from kvplan_engine import EngineError
from kvplan_engine.offload import disk_tier
from kvplan_engine.offload.disk_tier import DiskTier

KEY = b"k" * 16
SIZE = 256
HASHES = [bytes([number]) * 16 for number in range(8)]


def tier(directory: Path, *, limit: int = 1 << 20, key: bytes = KEY, size: int = SIZE) -> DiskTier:
    return DiskTier(directory, limit_bytes=limit, block_bytes=size, key=key)


def payload(number: int) -> bytes:
    return bytes((number + i) % 251 for i in range(SIZE))


def fill(disk: DiskTier, count: int) -> None:
    for number in range(count):
        disk.write(HASHES[number], memoryview(payload(number)))


def path_of(directory: Path, number: int, key: bytes = KEY) -> Path:
    return directory / key.hex() / f"{HASHES[number].hex()}.kv"


def test_a_block_comes_back_as_it_was_also_after_a_restart(tmp_path: Path) -> None:
    disk = tier(tmp_path)
    fill(disk, 3)
    for reader in (disk, tier(tmp_path)):
        assert len(reader) == 3
        assert [reader.read(HASHES[number]) for number in range(3)] == [payload(number) for number in range(3)]
    assert not list(tmp_path.rglob("*.tmp"))


def test_the_limit_holds_and_the_least_recently_used_go_first(tmp_path: Path) -> None:
    fill(tier(tmp_path), 1)
    file_bytes = path_of(tmp_path, 0).stat().st_size
    disk = tier(tmp_path, limit=3 * file_bytes)
    fill(disk, 3)
    disk.read(HASHES[0])
    disk.write(HASHES[3], memoryview(payload(3)))
    assert [HASHES[number] in disk for number in range(4)] == [True, False, True, True]
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.kv")) == disk.used_bytes == 3 * file_bytes
    smaller = tier(tmp_path, limit=file_bytes)
    assert len(smaller) == 1
    assert len(list(tmp_path.rglob("*.kv"))) == 1


def test_the_order_of_use_survives_a_restart(tmp_path: Path) -> None:
    fill(tier(tmp_path), 3)
    for age, number in enumerate((0, 2, 1)):
        os.utime(path_of(tmp_path, number), (1000 + age, 1000 + age))
    file_bytes = path_of(tmp_path, 0).stat().st_size
    disk = tier(tmp_path, limit=2 * file_bytes)
    assert [HASHES[number] in disk for number in range(3)] == [False, True, True]


def test_a_limit_below_one_file_keeps_nothing(tmp_path: Path) -> None:
    disk = tier(tmp_path, limit=10)
    fill(disk, 2)
    assert len(disk) == 0
    assert not list(tmp_path.rglob("*.kv"))


@pytest.mark.parametrize("keep", [0, 5, 71, 72, 200, -1])
def test_truncated_files_are_ignored(tmp_path: Path, keep: int, caplog: pytest.LogCaptureFixture) -> None:
    disk = tier(tmp_path)
    fill(disk, 2)
    path = path_of(tmp_path, 0)
    path.write_bytes(path.read_bytes()[:keep])
    with caplog.at_level(logging.WARNING):
        assert disk.read(HASHES[0]) is None
        assert HASHES[0] not in disk
        assert len(caplog.records) == 1
        caplog.clear()
        assert len(tier(tmp_path)) == 1
        assert len(caplog.records) == 1
    assert disk.read(HASHES[1]) == payload(1)


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    disk = tier(tmp_path)
    fill(disk, 1)
    path = path_of(tmp_path, 0)
    good = path.read_bytes()
    for position in range(len(good)):
        damaged = bytearray(good)
        damaged[position] ^= 1 << (position % 8)
        path.write_bytes(damaged)
        disk._used[HASHES[0]] = 0
        assert disk.read(HASHES[0]) is None, f"byte {position} was flipped and nobody noticed"
    path.write_bytes(good)
    disk._used[HASHES[0]] = 0
    assert disk.read(HASHES[0]) == payload(0)


def test_a_damaged_block_is_stored_anew(tmp_path: Path) -> None:
    disk = tier(tmp_path)
    fill(disk, 1)
    path = path_of(tmp_path, 0)
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    assert disk.read(HASHES[0]) is None
    fill(disk, 1)
    assert disk.read(HASHES[0]) == payload(0)


def test_foreign_files_are_left_alone_and_not_served(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    other = b"o" * 16
    fill(tier(tmp_path, key=other), 2)
    fill(tier(tmp_path), 1)
    folder = tmp_path / KEY.hex()
    path_of(tmp_path, 1, other).rename(path_of(tmp_path, 1))  # of another model
    path_of(tmp_path, 2).write_bytes(path_of(tmp_path, 0).read_bytes())  # of other content
    (folder / "notes.kv").write_text("mine")
    (folder / "notes.txt").write_text("mine")
    with caplog.at_level(logging.WARNING):
        disk = tier(tmp_path)
    assert len(caplog.records) == 1
    assert "ignored 3 damaged or foreign" in caplog.text
    assert [HASHES[number] in disk for number in range(3)] == [True, False, False]
    assert (folder / "notes.kv").read_text() == "mine"
    assert path_of(tmp_path, 1).exists()


def test_another_format_version_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(tier(tmp_path), 1)
    path = path_of(tmp_path, 0)
    content = bytearray(path.read_bytes())
    content[8] += 1
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert len(tier(tmp_path)) == 0
    assert "format version 2" in caplog.text


def test_a_file_that_vanished_is_forgotten(tmp_path: Path) -> None:
    disk = tier(tmp_path)
    fill(disk, 1)
    path_of(tmp_path, 0).unlink()
    assert disk.read(HASHES[0]) is None
    assert HASHES[0] not in disk


def test_a_directory_that_cannot_be_used_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(EngineError, match="cannot be used"):
        tier(tmp_path / "file")


def test_a_failing_write_switches_the_tier_off_with_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = tier(tmp_path)
    fill(disk, 1)
    folder = tmp_path / KEY.hex()
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    with caplog.at_level(logging.WARNING):
        for number in range(1, 5):
            disk.write(HASHES[number], memoryview(payload(number)))
    assert len(caplog.records) == 1
    assert "switched off" in caplog.text
    assert not disk.is_on
    assert len(disk) == 0


def test_a_full_disk_switches_the_tier_off_and_leaves_no_part_of_a_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/dev/full takes no byte: what a full disk says, said by the operating system."""
    disk = tier(tmp_path)

    def link_to_full(path: Path) -> BinaryIO:
        path.symlink_to("/dev/full")
        return path.open("wb")

    monkeypatch.setattr(disk_tier, "_create", link_to_full)
    with caplog.at_level(logging.WARNING):
        fill(disk, 2)
    assert len(caplog.records) == 1
    assert "No space left" in caplog.text
    assert not disk.is_on
    assert not list(tmp_path.rglob("*.tmp"))
    assert not list(tmp_path.rglob("*.kv"))


def test_leftovers_of_a_process_that_died_are_removed(tmp_path: Path) -> None:
    fill(tier(tmp_path), 1)
    folder = tmp_path / KEY.hex()
    for name, modified in (("old.1.tmp", 1000.0), ("new.2.tmp", None)):
        (folder / name).write_bytes(b"half")
        if modified is not None:
            os.utime(folder / name, (modified, modified))
    tier(tmp_path)
    assert not (folder / "old.1.tmp").exists()
    assert (folder / "new.2.tmp").exists()


def test_a_file_that_grows_too_large_is_not_left_in_part(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = tier(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        fill(disk, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not disk.is_on
    assert "File too large" in caplog.text
    assert not list((tmp_path / KEY.hex()).iterdir())


def modes(folder: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


def test_folder_and_files_are_their_owners_alone(tmp_path: Path) -> None:
    """Also those that an earlier release wrote, and whatever the umask is."""
    folder = tmp_path / "new" / KEY.hex()
    before = os.umask(0)
    try:
        fill(tier(tmp_path / "new"), 2)
        assert {stat.S_IMODE(path.stat().st_mode) for path in (folder, folder.parent)} == {0o700}
        assert modes(folder) == {0o600}
        folder.chmod(0o755)
        for path in folder.iterdir():
            path.chmod(0o644)
        assert len(tier(tmp_path / "new")) == 2
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert modes(folder) == {0o600}


def test_what_is_no_regular_file_is_neither_waited_for_nor_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = tier(tmp_path)
    fill(disk, 5)
    for number in range(1, 5):
        path_of(tmp_path, number).unlink()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(path_of(tmp_path, 0).read_bytes())
    os.mkfifo(path_of(tmp_path, 1))
    path_of(tmp_path, 2).symlink_to(elsewhere)
    path_of(tmp_path, 3).symlink_to(path_of(tmp_path, 3))
    path_of(tmp_path, 4).mkdir()
    assert [disk.read(HASHES[number]) for number in range(1, 5)] == [None] * 4
    caplog.clear()
    again = tier(tmp_path)
    assert [HASHES[number] in again for number in range(5)] == [True, False, False, False, False]
    assert "ignored 4 damaged or foreign" in caplog.text


def test_files_that_come_and_go_while_the_folder_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An engine that starts beside others that write and make room."""
    others = [tier(tmp_path, limit=3 * 328) for _ in range(2)]
    is_over = threading.Event()

    def write(disk: DiskTier) -> None:
        number = 0
        while not is_over.is_set():
            disk.write(HASHES[number % 8], memoryview(payload(number % 8)))
            number += 1

    threads = [threading.Thread(target=write, args=(disk,)) for disk in others]
    for thread in threads:
        thread.start()
    try:
        started = [tier(tmp_path) for _ in range(150)]
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert all(disk.is_on for disk in (*others, *started))
    assert "damaged" not in caplog.text
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_clock_that_jumped_takes_no_file_from_who_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name is gone, as it looks an hour old to whoever starts then: the block is not kept, and the next one is."""
    disk, create = tier(tmp_path), disk_tier._create

    def taken_away(path: Path) -> BinaryIO:
        file = create(path)
        now = time.time()
        with monkeypatch.context() as patch:
            patch.setattr(disk_tier, "_create", create)
            patch.setattr(time, "time", lambda: now + 7200.0)
            tier(tmp_path)
        assert not path.exists()
        return file

    with monkeypatch.context() as patch:
        patch.setattr(disk_tier, "_create", taken_away)
        fill(disk, 1)
    assert disk.is_on
    assert HASHES[0] not in disk
    fill(disk, 2)
    assert len(disk) == 2
