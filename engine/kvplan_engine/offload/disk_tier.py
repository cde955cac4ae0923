"""Evicted bundles on disk, one file each, which later engines with the same model find again. No torch.

    <directory>/<key>/<name>.kv             key: model, weights, dtype and layout, hashed
    header    magic, format version, key, block hash, payload bytes, checksum of the payload
    payload   the blocks of the bundle, as they lie in the pool

A file is written under another name and then renamed, so no file is ever incomplete. A file that cannot be read, is
damaged or belongs to something else is left alone and never served; a warning in the log says so. When a write fails
(the disk is full, the directory is gone), the tier logs it once and switches itself off.

What prompts left behind can be read from KV: the folder is its owner's alone, and so is every file. Other engines may
use the folder at the same time: a file that goes away between two looks at it is one that is not there.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import struct
import time
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from kvplan_engine.blocks.block_pool import BlockHash
from kvplan_engine.errors import EngineError
from kvplan_engine.files import open_regular

logger = logging.getLogger("kvplan_engine")

_MAGIC = b"KVPLANKV"
_VERSION = 1
_DIGEST_BYTES = 16
_HEADER = struct.Struct(f"<8sI{_DIGEST_BYTES}s{_DIGEST_BYTES}sQ{_DIGEST_BYTES}s")
_SUFFIX, _TEMPORARY = ".kv", ".tmp"
_FOLDER_MODE, _FILE_MODE = 0o700, 0o600
_STALE_SECONDS = 3600.0  # a temporary file older than this was left behind by a process that died


class _BadFile(Exception):
    """Why a file is not served."""


class DiskTier:
    """Files of at most ``limit_bytes`` together. EngineError when the directory cannot be used.

    block_bytes: of one block. widths: blocks in a bundle of each group. key: 16 bytes that differ if the bundles of two
    engines are not interchangeable.
    """

    def __init__(
        self, directory: str | Path, limit_bytes: int, block_bytes: int, key: bytes, widths: Sequence[int] = (1,)
    ) -> None:
        self.is_on = True
        self.limit_bytes = limit_bytes
        self._payload_bytes = [width * block_bytes for width in widths]
        self._key = key
        self._folder = Path(directory) / key.hex()
        self._used: OrderedDict[BlockHash, int] = OrderedDict()  # bytes of the files, least recently used first
        self._used_bytes = 0
        self.num_read = 0
        self.read_seconds = 0.0
        try:
            Path(directory).mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
            self._folder.mkdir(mode=_FOLDER_MODE, exist_ok=True)
            self._folder.chmod(_FOLDER_MODE)
            probe = self._new_name("probe")
            _create(probe).close()
            probe.unlink(missing_ok=True)
            self._scan()
        except OSError as problem:
            raise EngineError(
                f"kv_disk_cache_dir {directory} cannot be used: {problem.strerror}.", hint="give a writable directory"
            ) from None

    def __len__(self) -> int:
        return len(self._used)

    def __contains__(self, block_hash: BlockHash) -> bool:
        return block_hash in self._used

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def _payload_bytes_of(self, block_hash: BlockHash) -> int:
        """Where there are several groups, a name ends with the group's number. _BadFile for one that there is not."""
        group = block_hash[-1] if len(self._payload_bytes) > 1 else 0
        if group >= len(self._payload_bytes):
            raise _BadFile("of another layout")
        return self._payload_bytes[group]

    # ---- what is there

    def _scan(self) -> None:
        """Index the files that are valid, least recently used first."""
        valid: list[tuple[float, BlockHash, int]] = []
        bad: list[str] = []
        for entry in os.scandir(self._folder):
            try:
                if entry.name.endswith(_SUFFIX):
                    valid.append(self._check_entry(Path(entry.path)))
                elif entry.name.endswith(_TEMPORARY):
                    _remove_if_stale(Path(entry.path))
            except FileNotFoundError:
                continue  # another engine has removed it since
            except (_BadFile, OSError) as problem:
                bad.append(f"{entry.name}: {problem}")
        self._used = OrderedDict((block_hash, num_bytes) for _, block_hash, num_bytes in sorted(valid))
        self._used_bytes = sum(self._used.values())
        if bad:
            logger.warning("ignored %d damaged or foreign KV file(s) in %s, %s", len(bad), self._folder, bad[0])
        self._make_room(0)

    def _check_entry(self, path: Path) -> tuple[float, BlockHash, int]:
        """When it was last used, whose content it is, and its bytes."""
        try:
            block_hash = bytes.fromhex(path.stem)
        except ValueError:
            raise _BadFile("its name is not a hash") from None
        with open_regular(path, follows_links=False) as file:
            status = os.fstat(file.fileno())
            self._check_header(file.read(_HEADER.size), status.st_size, block_hash)
            os.fchmod(file.fileno(), _FILE_MODE)
        return status.st_mtime, block_hash, status.st_size

    def _check_header(self, header: bytes, file_bytes: int, block_hash: BlockHash) -> bytes:
        """The payload's checksum. _BadFile unless this is a complete file for ``block_hash`` and this engine."""
        if len(header) < _HEADER.size:
            raise _BadFile("truncated")
        magic, version, key, stored_hash, payload_bytes, checksum = _HEADER.unpack(header)
        if magic != _MAGIC:
            raise _BadFile("not a KV file")
        if version != _VERSION:
            raise _BadFile(f"format version {version}, not {_VERSION}")
        if key != self._key or stored_hash != block_hash or payload_bytes != self._payload_bytes_of(block_hash):
            raise _BadFile("of another model, dtype, block size or content")
        if file_bytes != _HEADER.size + payload_bytes:
            raise _BadFile(f"{file_bytes} bytes long instead of {_HEADER.size + payload_bytes}")
        result: bytes = checksum
        return result

    def _path(self, block_hash: BlockHash) -> Path:
        return self._folder / (block_hash.hex() + _SUFFIX)

    def _new_name(self, stem: str) -> Path:
        """The name of a file that is being written: nobody else's, a process of the same number elsewhere included."""
        return self._folder / f"{stem}.{os.getpid()}.{secrets.token_hex(4)}{_TEMPORARY}"

    # ---- reading

    def touch(self, block_hash: BlockHash) -> bool:
        """Mark as just used; returns whether it is here."""
        if block_hash not in self._used:
            return False
        self._used.move_to_end(block_hash)
        return True

    def read(self, block_hash: BlockHash) -> bytearray | None:
        """The block's bytes, checked; None if they cannot be trusted, and then the block is dropped from the index."""
        path = self._path(block_hash)
        started = time.perf_counter()
        try:
            payload = self._read_checked(path, block_hash)
        except (_BadFile, OSError) as problem:
            logger.warning("ignored KV file %s: %s", path, problem)
            self._used_bytes -= self._used.pop(block_hash, 0)
            return None
        self._used.move_to_end(block_hash)
        self.num_read += 1
        self.read_seconds += time.perf_counter() - started
        return payload

    def _read_checked(self, path: Path, block_hash: BlockHash) -> bytearray:
        payload = bytearray(self._payload_bytes_of(block_hash))
        with open_regular(path, follows_links=False) as file:
            checksum = self._check_header(file.read(_HEADER.size), os.fstat(file.fileno()).st_size, block_hash)
            if file.readinto(payload) != len(payload):
                raise _BadFile("truncated")
            os.utime(file.fileno())  # the order of use survives a restart
        if hashlib.blake2b(payload, digest_size=_DIGEST_BYTES).digest() != checksum:
            raise _BadFile("its checksum is wrong")
        return payload

    # ---- writing

    def write(self, block_hash: BlockHash, payload: memoryview) -> None:
        """Store a bundle; the least recently used ones make room for it."""
        file_bytes = _HEADER.size + payload.nbytes
        if not self.is_on or file_bytes > self.limit_bytes or self.touch(block_hash):
            return
        path = self._path(block_hash)
        temporary = self._new_name(block_hash.hex())
        checksum = hashlib.blake2b(payload, digest_size=_DIGEST_BYTES).digest()
        header = _HEADER.pack(_MAGIC, _VERSION, self._key, block_hash, payload.nbytes, checksum)
        try:
            self._make_room(file_bytes)
            with _create(temporary) as file:
                file.write(header)
                file.write(payload)
            if not _renamed(temporary, path):
                return
        except OSError as problem:
            self._switch_off(problem, temporary)
            return
        self._used[block_hash] = file_bytes
        self._used_bytes += file_bytes

    def _make_room(self, num_bytes: int) -> None:
        while self._used and self.used_bytes + num_bytes > self.limit_bytes:
            oldest, file_bytes = self._used.popitem(last=False)
            self._used_bytes -= file_bytes
            self._path(oldest).unlink(missing_ok=True)

    def _switch_off(self, problem: OSError, temporary: Path) -> None:
        logger.warning("the KV cache on disk is switched off: writing to %s failed: %s", self._folder, problem)
        self.is_on = False
        self._used.clear()
        self._used_bytes = 0
        try:
            temporary.unlink(missing_ok=True)
        except OSError as leftover:
            logger.debug("%s could not be removed: %s", temporary, leftover)


def _create(path: Path) -> BinaryIO:
    """A new file that its owner alone may read."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE), "wb")


def _remove_if_stale(path: Path) -> None:
    if path.lstat().st_mtime < time.time() - _STALE_SECONDS:
        path.unlink()


def _renamed(temporary: Path, path: Path) -> bool:
    """Give a file that is written its name. False if it is gone: a clock that jumped made it look left behind."""
    try:
        temporary.replace(path)
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise
        return False
    return True
