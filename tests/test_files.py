"""kvplan.files: what is no regular file, or no JSON that can be used, is one sentence, and nothing is waited for."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvplan.errors import KvplanError
from kvplan.files import parse_json, read_bytes, read_json, read_text
from kvplan.units import MIB


@pytest.fixture
def odd_files(tmp_path: Path) -> Path:
    """A folder with what a name can stand for besides a file."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2**31)
    with socket.socket(socket.AF_UNIX) as listening:
        here = os.open(tmp_path, os.O_RDONLY)
        listening.bind(f"/proc/self/fd/{here}/socket")
        os.close(here)
    return tmp_path


ODD = {
    "folder": "is a directory, not a regular file",
    "pipe": "is a named pipe, not a regular file",
    "loop": "cannot be read: Too many levels of symbolic links",
    "zeros": "is a device, not a regular file",
    "large": "is larger than 1 MiB",
    "socket": "cannot be read: No such device or address",
    "missing": "cannot be read: it does not exist",
}


@pytest.mark.parametrize(("name", "says"), ODD.items())
def test_what_is_no_readable_file_is_said(odd_files: Path, name: str, says: str) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(KvplanError) as caught:
        read_bytes(odd_files / name, MIB)
    assert caught.value.message == f"{odd_files / name} {says}."
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_file_as_large_as_it_may_be_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_bytes(tmp_path / "file", 5) == b"12345"
    with pytest.raises(KvplanError, match="is larger than"):
        read_bytes(tmp_path / "file", 4)


def test_text_may_begin_with_a_mark_and_is_utf_8(tmp_path: Path) -> None:
    (tmp_path / "marked").write_bytes(b"\xef\xbb\xbf{}")
    assert read_text(tmp_path / "marked", MIB) == "{}"
    (tmp_path / "utf-16").write_bytes("{}".encode("utf-16"))
    with pytest.raises(KvplanError, match="is not text in UTF-8"):
        read_text(tmp_path / "utf-16", MIB)


UNUSABLE: dict[str, tuple[str | bytes, str]] = {
    "cut off": ("{", "line 1, column 2"),
    "deep": ("[" * 100_000, "too deep"),
    "lists": ("[" * 101 + "]" * 101, "too deep"),
    "objects": ('{"a":' * 101 + "0" + "}" * 101, "too deep"),
    "digits": ('{"a": ' + "9" * 5000 + "}", "a number with thousands of digits"),
    "half a value": ('{"a": "\\ud800"}', "half of a surrogate pair in a text"),
    "half a key": ('{"\\udc00": 1}', "half of a surrogate pair in a text"),
    "bytes": (b'{"a": "\xff"}', "not text in UTF-8"),
}


@pytest.mark.parametrize(("text", "says"), UNUSABLE.values(), ids=UNUSABLE)
def test_json_that_cannot_be_used_is_said_in_a_phrase(text: str | bytes, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}$"):
        parse_json(text)


def test_json_that_others_write_is_read() -> None:
    assert parse_json('{"time_step_limit": [0.0, Infinity], "a": 1, "a": 2}') == {
        "time_step_limit": [0.0, float("inf")],
        "a": 2,
    }
    assert parse_json('"\\ud83d\\ude42"') == "🙂"
    deepest = parse_json("[" * 100 + "]" * 100)
    assert isinstance(deepest, list)
    with pytest.raises(ValueError, match="twice"):
        parse_json('{"a": 1, "a": 2}', unique_keys=True)


def test_a_file_that_is_no_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{,}", encoding="utf-8")
    with pytest.raises(KvplanError, match=r"a\.json is not valid JSON \(line 1, column 2\)"):
        read_json(tmp_path / "a.json", MIB)


@pytest.mark.parametrize("name", [name for name in ODD if name not in ("folder", "large", "socket", "missing")])
def test_a_model_that_is_no_file_is_one_sentence(odd_files: Path, name: str, said_by: Callable[..., str]) -> None:
    (odd_files / "model").mkdir()
    (odd_files / "model" / "config.json").symlink_to(odd_files / name)
    said = said_by("estimate", str(odd_files / "model"), code=1)
    assert said.startswith("error: ") and "config.json" in said and said.count("hint: ") == 1


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5000, '"\\ud800"'], ids=["deep", "digits", "half"])
def test_an_assumption_that_is_no_json_is_a_text(text: str, said_by: Callable[..., str]) -> None:
    assert "error: The config's 'n_layer' is" in said_by("estimate", "gpt2", "--assume", f"n_layer={text}", code=1)


def test_a_log_may_come_through_a_pipe_of_the_shell(tmp_path: Path) -> None:
    log = Path(__file__).parent / "data" / "startup_logs" / "vllm-0.10-refused-length.log"
    kvplan = f"{sys.executable} -m kvplan explain"
    for command in (f"{kvplan} <(cat {log})", f"cat {log} | {kvplan} -", f"{kvplan} - < {log}"):
        shown = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
        assert shown.returncode == 0, shown.stderr
        assert "stopped: To serve at least one request" in shown.stdout
    closed = subprocess.run(["bash", "-c", f"{kvplan} - <&-"], capture_output=True, text=True, check=False)
    assert closed.returncode == 1 and closed.stderr.startswith("error: Standard input is closed.")
