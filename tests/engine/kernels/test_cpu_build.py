"""Compiling on first use: the cache, two processes at once, no compiler, a compiler that fails, threads."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kvplan_engine.attention.cpu import CpuBackend
from kvplan_engine.attention.reference import ReferenceBackend
from kvplan_engine.errors import EngineError
from kvplan_engine.kernels import build
from kvplan_engine.kernels.build import GENERIC, NATIVE, KernelBuildError, build_library
from kvplan_engine.kernels.cpu import library
from kvplan_engine.models.device_kernels import select_kernels

ENGINE = str(Path(build.__file__).parents[2])

BUILD_SCRIPT = """
import sys
from kvplan_engine.kernels.build import build_library
from kvplan_engine.kernels.cpu.library import CpuKernels
path = build_library()
print(path, CpuKernels(path).lanes)
"""

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
    library.cpu_kernels.cache_clear()
    library.load_kernels.cache_clear()
    yield
    library.cpu_kernels.cache_clear()
    library.load_kernels.cache_clear()


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
    """The compiler makes empty objects, and links them to the library that is there: what it costs is not at issue."""
    making = f'case "$*" in *--version*) echo 1;; *-shared*) cp {build_library()} "$target";; *) : > "$target";; esac'
    compiler = write_compiler(tmp_path, f"for target; do :; done\n{making}")
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
