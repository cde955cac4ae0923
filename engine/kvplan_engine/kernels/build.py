"""Compile the CPU kernels on first use, into the user's cache, or where that cannot be into a temporary folder.

The library's name carries a hash of everything that decides its contents (sources, flags, compiler, CPU), so a cached
file is valid whenever it exists, and never changes. Two processes that build at the same time take turns behind a file
lock; the second finds the file.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvplan_engine.errors import EngineError
from kvplan_engine.kernels.cache_folders import UnusableFolder, kernel_folders, make_usable, unusable
from kvplan_engine.paths import source_dir

COMMON_FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-ffp-contract=fast",  # a * b + c may become one fused operation, as the kernels expect
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-exceptions",
    "-fvisibility=hidden",
    "-Wno-psabi",  # vectors wider than the machine's stay inside the library
)


class KernelBuildError(EngineError):
    """The kernels could not be compiled; plain torch is used instead."""


@dataclass(frozen=True, slots=True)
class BuildVariant:
    """One way to compile the same sources."""

    name: str
    arch_flags: tuple[str, ...]
    lanes: int | None = None
    """Floats per vector; None lets the sources choose by what ``arch_flags`` switch on."""

    def flags(self) -> tuple[str, ...]:
        """The compiler flags of this variant, the common ones included."""
        lanes = () if self.lanes is None else (f"-DKVPLAN_LANES={self.lanes}",)
        return (*COMMON_FLAGS, *self.arch_flags, *lanes)


def cpu_features() -> str:
    """What -march=native depends on: the machine type and the instruction sets that the kernel lists."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("flags", "Features", "model name", "CPU part")
    found = dict.fromkeys(line for line in lines if line.startswith(wanted))
    return "\n".join((platform.machine(), *found))


NATIVE = BuildVariant("native", ("-march=native",))
_STRICT = ("-Wall", "-Wextra", "-Werror")
WIDE = BuildVariant("wide", ("-march=native", *_STRICT), lanes=16)
"""AVX-512's shape of every kernel, on whatever this machine has. Tests build it, and the next, without a warning."""
GENERIC = BuildVariant("generic", (*_STRICT, "-O1"), lanes=4)
"""No instruction beyond the compiler's default for the machine; little optimised, for tests are all that run it."""


@dataclass(frozen=True, slots=True)
class BuiltLibrary:
    """A compiled library. refusals: why it does not lie in a folder that comes before its own, a sentence for each."""

    path: Path
    refusals: tuple[str, ...] = ()


def build_library(variant: BuildVariant = NATIVE, cache_dir: Path | None = None) -> Path:
    """The compiled library of ``variant``: from the cache, or compiled now. Raises KernelBuildError.

    cache_dir: the one folder to use; None for the first of ``kernel_folders`` that can be.
    """
    return next(built_libraries(variant, None if cache_dir is None else [cache_dir])).path


def built_libraries(variant: BuildVariant = NATIVE, folders: Iterable[Path] | None = None) -> Iterator[BuiltLibrary]:
    """The compiled library of ``variant`` in each folder that can hold it, built as it is asked for.

    Whoever cannot load the first takes the next. KernelBuildError for sources that do not compile, and where no folder
    is left.
    """
    compiler = find_compiler()
    sources, flags = source_dir(), variant.flags()
    name = f"kvplan_cpu-{variant.name}-{_build_key(sources, flags, compiler)}.so"
    refusals: list[str] = []
    for folder in kernel_folders() if folders is None else folders:
        try:
            library = _library_in(folder, name, sources, flags, compiler)
        except UnusableFolder as refusal:
            refusals.append(refusal.message)
            continue
        yield BuiltLibrary(library, tuple(refusals))
        refusals.append(f"{library} cannot be loaded")
    raise KernelBuildError(
        f"the CPU kernels cannot be cached: {'; '.join(refusals)}",
        hint="point KVPLAN_CACHE_DIR at a folder that can be written",
    )


def _library_in(folder: Path, name: str, sources: Path, flags: tuple[str, ...], compiler: tuple[str, ...]) -> Path:
    """The library in ``folder``, compiled if it is missing. UnusableFolder where that has no room for it."""
    make_usable(folder)
    library = folder / name
    try:
        if not library.is_file():
            with _locked(library.with_suffix(".lock")):
                if not library.is_file():
                    _compile_into(library, sources, flags, compiler)
    except OSError as error:
        raise unusable(folder, error) from error
    return library


def find_compiler() -> tuple[str, ...]:
    """The C++ compiler as command words: $CXX where set, else g++, clang++ or c++ from PATH."""
    chosen = shlex.split(os.environ.get("CXX", ""))
    if chosen:
        if shutil.which(chosen[0]) is None:
            raise KernelBuildError(f"$CXX is {chosen[0]!r}, which is not installed", hint="unset CXX")
        return tuple(chosen)
    for name in ("g++", "clang++", "c++"):
        if shutil.which(name) is not None:
            return (name,)
    raise KernelBuildError("no C++ compiler found (looked for $CXX, g++, clang++, c++)", hint="install g++")


def _source_files(sources: Path) -> list[Path]:
    return sorted(path for name in ("cpu", "include") for path in (sources / name).rglob("*") if path.is_file())


def _build_key(sources: Path, flags: tuple[str, ...], compiler: tuple[str, ...]) -> str:
    """Hash of everything that decides the compiler's output."""
    digest = hashlib.sha256()
    for path in _source_files(sources):
        digest.update(str(path.relative_to(sources)).encode() + b"\0" + path.read_bytes() + b"\0")
    for part in (*flags, *compiler, _compiler_version(compiler), cpu_features()):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:20]


def _compiler_version(compiler: tuple[str, ...]) -> str:
    result = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise KernelBuildError(f"{shlex.join(compiler)} --version failed: {_first_line(result.stderr)}")
    return _first_line(result.stdout)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock file until the block ends; the operating system releases it when the process dies."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _compile_into(library: Path, sources: Path, flags: tuple[str, ...], compiler: tuple[str, ...]) -> None:
    """Compile each source by itself, several at a time, link, and move the result into place in one step."""
    units = sorted((sources / "cpu").rglob("*.cpp"))
    with tempfile.TemporaryDirectory(dir=library.parent, prefix="building-") as folder:
        objects = [Path(folder) / f"{unit.stem}.o" for unit in units]
        with_prefix = [*compiler, *flags, "-include", str(_precompile_prefix(Path(folder), sources, flags, compiler))]
        commands = [
            [*with_prefix, "-c", str(unit), "-o", str(target)] for unit, target in zip(units, objects, strict=True)
        ]
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            list(pool.map(_run_compiler, commands))
        linked = Path(folder) / library.name
        _run_compiler([*compiler, "-shared", *(str(path) for path in objects), "-o", str(linked)])
        linked.replace(library)


def _precompile_prefix(folder: Path, sources: Path, flags: tuple[str, ...], compiler: tuple[str, ...]) -> Path:
    """The header to begin each source with. Beside it lies what GCC and clang read instead, in a fifth of the time."""
    header = folder / "prefix.h"
    header.write_text(f'#include "{sources / "cpu" / "prefix.h"}"\n')
    _run_compiler([*compiler, *flags, "-x", "c++-header", str(header), "-o", f"{header}.gch"])
    return header


def _run_compiler(command: list[str]) -> None:
    """Run a command whose last word is the file that it writes. OSError where that file's folder has no room for it."""
    # the usual folder of temporary files may be read-only, or full
    environment = {**os.environ, "TMPDIR": str(Path(command[-1]).parent), "LC_ALL": "C"}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if result.returncode == 0:
        return
    for full in (errno.ENOSPC, errno.EDQUOT):
        if os.strerror(full) in result.stderr:
            raise OSError(full, os.strerror(full))
    raise KernelBuildError(
        f"the CPU kernels do not compile with {command[0]}: {_first_error(result.stderr)}",
        hint="set CXX to a C++17 compiler (g++ 9 or clang++ 11, or later)",
    )


def _first_error(output: str) -> str:
    errors = [line for line in output.splitlines() if "error" in line]
    return errors[0].strip() if errors else _first_line(output)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


if __name__ == "__main__":  # for the Makefile, before any package is installed
    print(build_library())
