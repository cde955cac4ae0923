"""Compiling on first use: the cache, two processes at once, no compiler, a compiler that fails, threads."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kvplan_engine.attention.cpu import CpuBackend
from kvplan_engine.attention.reference import ReferenceBackend
from kvplan_engine.errors import EngineError
from kvplan_engine.kernels import build, cache_folders
from kvplan_engine.kernels.build import GENERIC, NATIVE, KernelBuildError, build_library
from kvplan_engine.kernels.cpu import library
from kvplan_engine.kernels.cpu.library import CpuKernels
from kvplan_engine.models.device_kernels import select_kernels

ENGINE = str(Path(build.__file__).parents[2])

BUILD_SCRIPT = """
import sys
from kvplan_engine.kernels.build import build_library
from kvplan_engine.kernels.cpu.library import CpuKernels
path = build_library()
print(path, CpuKernels(path).lanes)
"""

# A compiler that makes empty objects, and links them to the library that is there.
COPYING = """for target; do :; done
case "$*" in *--version*) echo 1;; *-shared*) cp {library} "$target";; *) : > "$target";; esac"""

THREADS_SCRIPT = """
import os, torch
torch.set_num_threads(3)
from kvplan_engine.kernels.cpu import ops
tasks = lambda: len(os.listdir("/proc/self/task"))
before = tasks()
x = torch.randn(4096, 512)
for _ in range(50):
    ops.rms_norm(x, torch.ones(512), 1e-5, x)
print(tasks() - before)
"""


def run_python(script: str, **environment: str) -> subprocess.Popen[str]:
    variables = {**os.environ, "PYTHONPATH": ENGINE, **environment}
    return subprocess.Popen(
        [sys.executable, "-c", script], env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def write_compiler(folder: Path, body: str) -> Path:
    """A stand-in for the compiler: a shell script that notes each call in calls.txt."""
    script = folder / "compiler"
    script.write_text(f'#!/bin/sh\necho "$@" >> {folder}/calls.txt\n{body}\n')
    script.chmod(0o755)
    return script


@pytest.fixture
def no_cached_result() -> Iterator[None]:
    """Ask anew in this test, and leave nothing of it behind."""
    caches = (library.cpu_kernels, library.kernel_state, library.loaded_kernels)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


def test_second_build_is_the_cached_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = build_library(NATIVE)
    monkeypatch.setattr(build, "_compile_into", lambda *_: pytest.fail("compiled again"))
    assert build_library(NATIVE) == first


def test_no_package_is_needed() -> None:
    """The Makefile compiles while pip installs them."""
    command = [sys.executable, "-S", "-m", build.__name__]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": ENGINE}, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(build_library())


@pytest.mark.parametrize("what", ["sources", "flags", "compiler", "cpu"])
def test_whatever_decides_the_contents_changes_the_name(
    what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = (str(write_compiler(tmp_path, 'while [ "$1" != -o ]; do [ $# = 0 ] && exit; shift; done; : > "$2"')),)
    monkeypatch.setenv("CXX", *compiler)
    before = build_library(GENERIC, tmp_path)
    variant = GENERIC
    if what == "sources":
        copy = shutil.copytree(build.source_dir(), tmp_path / "csrc")
        with (copy / "cpu" / "simd.h").open("a") as file:
            file.write("\n")
        monkeypatch.setattr(build, "source_dir", lambda: copy)
    elif what == "flags":
        variant = replace(GENERIC, arch_flags=(*GENERIC.arch_flags, "-O2"))
    elif what == "compiler":
        monkeypatch.setattr(build, "_compiler_version", lambda _: "another version")
    else:
        monkeypatch.setattr(build, "cpu_features", lambda: "another machine")
    assert build_library(variant, tmp_path) != before


@pytest.mark.slow
def test_two_processes_compile_once(tmp_path: Path) -> None:
    compiler = write_compiler(tmp_path, COPYING.format(library=build_library()))  # what it costs is not at issue
    processes = [
        run_python(BUILD_SCRIPT, KVPLAN_CACHE_DIR=str(tmp_path / "cache"), CXX=str(compiler)) for _ in range(3)
    ]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    assert len({stdout for stdout, _ in outputs}) == 1
    compiled = [line for line in (tmp_path / "calls.txt").read_text().splitlines() if "--version" not in line]
    assert len(compiled) == len(list((build.source_dir() / "cpu").rglob("*.cpp"))) + len(("the prefix", "the library"))
    assert [path.suffix for path in sorted((tmp_path / "cache" / "kernels").iterdir())] == [".lock", ".so"]


def test_a_failed_build_leaves_nothing_and_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = 'case "$*" in *--version*) exit 0;; esac; echo "x.cpp:3:1: error: no such luck" >&2; exit 1'
    monkeypatch.setenv("CXX", str(write_compiler(tmp_path, failing)))
    cache = tmp_path / "cache"
    for _ in range(2):
        with pytest.raises(KernelBuildError, match=r"do not compile with .*: x\.cpp:3:1: error: no such luck"):
            build_library(NATIVE, cache)
    assert [path.suffix for path in cache.iterdir()] == [".lock"]


@pytest.mark.usefixtures("no_cached_result")
def test_no_compiler_is_one_line_and_the_definition(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("KVPLAN_CACHE_DIR", str(tmp_path))
    with caplog.at_level(logging.WARNING):
        assert isinstance(select_kernels("auto", "cpu", torch.float32).attention, ReferenceBackend)
        assert isinstance(select_kernels("auto", "cpu", torch.bfloat16).attention, ReferenceBackend)
    assert [record.getMessage() for record in caplog.records] == [
        "CPU kernels not available, running on plain torch, which is slower: "
        "no C++ compiler found (looked for $CXX, g++, clang++, c++) (hint: install g++)"
    ]
    with pytest.raises(KernelBuildError, match="no C"):
        select_kernels("cpu", "cpu", torch.float32)


def test_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KernelBuildError, match="cannot be cached") as caught:
        build_library(NATIVE, tmp_path / "file" / "cache")
    assert caught.value.hint is not None
    assert "KVPLAN_CACHE_DIR" in caught.value.hint


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_cached_result: None) -> Path:
    """A machine's folder of temporary files, and a compiler whose library is the real one, copied."""
    compiler = write_compiler(tmp_path, COPYING.format(library=build_library()))
    monkeypatch.setenv("CXX", str(compiler))
    folder = tmp_path / "tmp"
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(cache_folders, "_SHARED_MEMORY", tmp_path / "shm")
    return folder


def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder in the place of which there is a file."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KVPLAN_CACHE_DIR", str(tmp_path / "file"))


def test_a_cache_that_cannot_be_written_falls_back_to_a_private_temporary_folder(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    no_cache(tmp_path, monkeypatch)
    with caplog.at_level(logging.WARNING):
        assert library.cpu_kernels() is not None
    private = temporary / f"kvplan-kernels-{os.geteuid()}"
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert [record.getMessage() for record in caplog.records] == [
        f"the CPU kernels lie in {private}, because {tmp_path / 'file' / 'kernels'} cannot be used: Not a directory"
    ]
    compiled = build_library()
    monkeypatch.setattr(build, "_compile_into", lambda *_: pytest.fail("compiled again"))
    assert build_library() == compiled
    assert compiled.parent == private


def test_a_folder_that_somebody_else_could_fill_is_not_used(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_cache(tmp_path, monkeypatch)
    private = temporary / f"kvplan-kernels-{os.geteuid()}"
    private.mkdir()
    private.chmod(0o777)
    with pytest.raises(KernelBuildError, match="not a directory that this user alone may write"):
        build_library()
    private.rmdir()
    (tmp_path / "planted").mkdir(mode=0o700)
    private.symlink_to(tmp_path / "planted")
    with pytest.raises(KernelBuildError, match="not a directory that this user alone may write"):
        build_library()
    private.unlink()
    temporary.chmod(0o777)  # others may rename what lies there
    with pytest.raises(KernelBuildError, match="others can rename what lies in"):
        build_library()
    temporary.chmod(0o1777)
    assert build_library().parent == private


def test_a_folder_of_another_user_is_not_used(temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_cache(tmp_path, monkeypatch)
    (temporary / "kvplan-kernels-12345").mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(KernelBuildError, match="kvplan-kernels-12345 cannot be used"):
        build_library()
    assert not list((temporary / "kvplan-kernels-12345").iterdir())


def test_a_cache_without_the_right_to_execute_is_passed_over(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVPLAN_CACHE_DIR", str(tmp_path / "cache"))
    mounted = os.statvfs

    def statvfs(path: Path) -> SimpleNamespace:
        is_noexec = Path(path).is_relative_to(tmp_path / "cache")
        return SimpleNamespace(f_flag=os.ST_NOEXEC if is_noexec else mounted(path).f_flag)

    monkeypatch.setattr(os, "statvfs", statvfs)
    loaded = library.loaded_kernels(NATIVE)
    assert loaded.notice is not None
    assert "is mounted noexec, so that no library in it can be loaded" in loaded.notice
    assert not list((tmp_path / "cache" / "kernels").iterdir())  # nothing was compiled in vain


def test_a_damaged_library_costs_a_compilation(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVPLAN_CACHE_DIR", str(tmp_path / "cache"))
    damaged = build_library()
    damaged.write_bytes(b"torn")
    loaded = library.loaded_kernels(NATIVE)
    assert loaded.notice is not None
    assert f"{damaged} cannot be loaded" in loaded.notice
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    library.loaded_kernels.cache_clear()
    with pytest.raises(KernelBuildError, match="the compiled kernels cannot be loaded") as caught:
        library.load_kernels()
    assert caught.value.hint == f"delete {damaged}"


def test_a_full_disk_is_not_called_a_compiler_s_fault(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = f'case "$target" in {tmp_path}/cache/*) echo "x.s: No space left on device" >&2; exit 1;; esac'
    compiler = write_compiler(tmp_path, COPYING.format(library=build_library()).replace("done\n", f"done\n{full}\n", 1))
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("KVPLAN_CACHE_DIR", str(tmp_path / "cache"))
    (built,) = [next(build.built_libraries())]
    assert built.path.parent.parent == temporary
    assert built.refusals == (f"{tmp_path / 'cache' / 'kernels'} cannot be used: No space left on device",)


def test_a_build_that_was_killed_is_made_again(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    working = Path(os.environ["CXX"]).read_text()
    slow = write_compiler(tmp_path, f'case "$*" in *--version*) echo 1; exit;; esac; touch {tmp_path}/began; sleep 60')
    process = run_python(BUILD_SCRIPT.partition("from kvplan_engine.kernels.cpu")[0] + "build_library()",
                         KVPLAN_CACHE_DIR=str(cache), CXX=str(slow))  # fmt: skip
    while not (tmp_path / "began").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.communicate()
    slow.write_text(working)
    assert CpuKernels(build_library(NATIVE, cache / "kernels")).lanes in (4, 8, 16)


def test_compiler_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    with pytest.raises(KernelBuildError, match="'no-such-compiler', which is not installed"):
        build.find_compiler()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads through /proc")
def test_kernels_start_as_many_threads_as_torch_has_beside_the_first() -> None:
    build_library(NATIVE)
    process = run_python(THREADS_SCRIPT)
    stdout, stderr = process.communicate(timeout=120)
    assert stdout.split() == ["2"], stderr


def test_select_kernels() -> None:
    assert isinstance(select_kernels("auto", "cpu", torch.float32).attention, CpuBackend)
    assert isinstance(select_kernels("auto", "cpu", torch.float16).attention, ReferenceBackend)
    assert isinstance(select_kernels("reference", "cpu", torch.float32).attention, ReferenceBackend)
    with pytest.raises(EngineError, match="no attention backend is called 'flash'"):
        select_kernels("flash", "cpu", torch.float32)
    with pytest.raises(EngineError, match=r"does not run torch\.float16 on cpu"):
        select_kernels("cpu", "cpu", torch.float16)
    with pytest.raises(EngineError, match="does not run on cpu"):
        select_kernels("cuda", "cpu", torch.float32)
