"""The GPU on paper accounts memory as a driver does, keeps nothing, and says what cannot be rehearsed."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rehearse_startups
from kvplan.units import MIB

CORE = Path(rehearse_startups.__file__).parent / "paper_gpu" / "core.c"


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    library = tmp_path_factory.mktemp("paper") / "libpaper.so"
    subprocess.run(["gcc", "-shared", "-fPIC", CORE, "-o", library, "-lpthread", "-ldl"], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.paper_allocate.restype = ctypes.c_void_p
    loaded.paper_allocate.argtypes = [ctypes.c_size_t]
    loaded.paper_extent.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    loaded.paper_extent.restype = loaded.paper_free.restype = ctypes.c_size_t
    loaded.paper_release.argtypes = [ctypes.c_void_p]
    loaded.paper_copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    return loaded


@pytest.fixture(autouse=True)
def _stated(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TOTAL": 64 * MIB, "CC": 89, "SMS": 142, "L2": 48 * MIB}.items():
        monkeypatch.setenv(f"PAPER_{name}", str(value))


def test_memory_is_given_in_whole_pages_until_there_is_none(core: ctypes.CDLL) -> None:
    first = core.paper_allocate(1)
    assert core.paper_free() == 62 * MIB
    assert core.paper_extent(first + 5, None) == 2 * MIB
    assert core.paper_allocate(63 * MIB) is None
    second = core.paper_allocate(62 * MIB)
    assert core.paper_free() == 0
    core.paper_release(first)
    core.paper_release(second)
    assert core.paper_free() == 64 * MIB
    assert core.paper_extent(first, None) == 0


def test_what_is_copied_from_the_gpu_are_zeros_and_between_the_host_the_bytes(core: ctypes.CDLL) -> None:
    memory, written, read = (
        core.paper_allocate(MIB),
        ctypes.create_string_buffer(b"kvplan"),
        ctypes.create_string_buffer(6),
    )
    core.paper_copy(read, written, 6)
    assert read.raw == b"kvplan"
    core.paper_copy(memory, written, 6)
    core.paper_copy(read, memory, 6)
    assert read.raw == bytes(6)
    core.paper_release(memory)


def test_the_gpu_is_the_one_that_is_stated(core: ctypes.CDLL) -> None:
    multiprocessors, l2, major, minor, shared = (core.paper_attribute(each) for each in (16, 38, 75, 76, 97))
    assert (multiprocessors, l2, major, minor, shared) == (142, 48 * MIB, 8, 9, 99 << 10)
    assert core.paper_built_for() == 86


def test_gpus_beside_it_and_what_links_them_are_stated_too(core: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (core.paper_count(), core.paper_link()) == (1, 0)
    linked = {"rtx-4090": "0", "l40s": "1", "a100-80gb": "2"}  # by the host, over PCIe, over NVLink
    for gpu, link in linked.items():
        case = {"gpu": gpu, "settings": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}}
        environment = rehearse_startups.Environment(Path("python"), Path(), [Path("libpaper.so")])
        stated = environment.variables(case, Path())
        assert (stated["PAPER_COUNT"], stated["PAPER_LINK"]) == ("4", link)
        monkeypatch.setenv("PAPER_COUNT", "4")
        assert core.paper_count() == 4


def test_what_cannot_be_rehearsed_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for options, said in (
        (["--case", "llama-9"], "There is no case named llama-9"),
        (["--python", "/nowhere/python"], "/nowhere/python has no vLLM."),
    ):
        monkeypatch.setattr(sys, "argv", ["rehearse_startups.py", *options])
        assert rehearse_startups.main() == 2
        assert said in capsys.readouterr().err
