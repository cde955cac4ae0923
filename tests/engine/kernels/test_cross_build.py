"""The CPU kernels against plain loops in double precision (cross_check.cpp), without Python and torch around them.

For this machine in three vector widths, each also under the address and undefined-behaviour sanitizers, and for aarch64
through a cross compiler and an emulator where both are installed (Debian: g++-aarch64-linux-gnu, qemu-user).
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from kernel_builds import BUILDS

from kvplan_engine.kernels.build import (
    COMMON_FLAGS,
    GENERIC,
    BuildVariant,
    build_library,
    cpu_features,
    find_compiler,
)
from kvplan_engine.paths import source_dir

SOURCE = Path(__file__).with_name("checks") / "cross_check.cpp"
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-g1")
SANITIZED_FLAGS = (
    *SANITIZERS,
    "-fno-sanitize=null,pointer-overflow",  # either would be a read or a write that the address sanitizer sees
    "--param=asan-instrumentation-with-call-threshold=0",
    "-O0",
)
"""What compiles fast: no optimisation, which leaves all to the sanitizers too, and checks that are calls, not code."""

AARCH64_COMPILER = "aarch64-linux-gnu-g++"
AARCH64_LIBRARIES = "/usr/aarch64-linux-gnu"
_STRICT = ("-Wall", "-Wextra", "-Werror")
AARCH64 = [
    BuildVariant("aarch64", ("-O1", *_STRICT)),
    BuildVariant("aarch64-bfloat16", ("-O1", "-march=armv8.6-a", *_STRICT)),
]
"""Without and with the processor's dot products of bfloat16; little optimised, which compiles in half the time."""

TWIN_FLAGS = ("-DKVPLAN_TWINS", "-O1")
"""Units that this processor may lack, as plain loops by their definition (csrc/cpu/twins)."""
TILE_UNITS = (
    "products/packed/packed_linear.cpp",
    "products/packed/packed_amx.cpp",
    "thread_team.cpp",
    "attention/attention_plan.cpp",
    "attention/shared_prefix.cpp",
)
UNOPTIMISED_UNITS = (  # of many shapes, which take ten times as long to optimise and little longer to run
    "attention/attention.cpp",
    "products/quantised/quantised_linear.cpp",
    "products/quantised/quantised_pack.cpp",
    "products/rounded/rounded_linear.cpp",
)
AMX_FLAGS = ("-march=sapphirerapids", *_STRICT)

CHECKED_BUILDS = [
    pytest.param(variant, id=variant.name, marks=() if variant is GENERIC else pytest.mark.exhaustive)
    for variant in BUILDS
]
"""CI builds one of them with the sanitizers in it, for that takes half a minute: the loops are the same in all."""

IF_NO_TILES = pytest.mark.exhaustive if " amx_bf16 " in cpu_features() else pytest.mark.slow
"""CI leaves out the twin of what the processor has: its products are checked themselves there."""


def sanitized(variant: BuildVariant) -> BuildVariant:
    """The same kernels with the sanitizers' checks in them, and any warning an error."""
    flags = (*variant.arch_flags, *SANITIZED_FLAGS, *_STRICT)
    return BuildVariant(f"{variant.name}-sanitized", flags, variant.lanes)


def run(command: Sequence[str | Path]) -> str:
    """The output of a command that must succeed."""
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert result.returncode == 0, f"exit status {result.returncode}\n{result.stdout[-9000:]}\n{result.stderr[-9000:]}"
    return result.stdout


def compile_check(folder: Path) -> Path:
    """The program's object file; the kernels come to it by ``link_check``.

    It serves the sanitized kernels too: these carry the checks, and memory comes from the sanitizer's allocator.
    """
    target = folder / "cross_check.o"
    warnings = ("-Wall", "-Wextra", "-Werror")
    include = f"-I{source_dir() / 'include'}"
    run([*find_compiler(), "-std=c++17", "-O1", *warnings, include, "-c", SOURCE, "-o", target])
    return target


def link_check(compiled: Path, library: Path, folder: Path, flags: Sequence[str] = ()) -> Path:
    """The program with the kernels of ``library``, found again where they lie now."""
    program = folder / "cross_check"
    run([*find_compiler(), *flags, compiled, library, f"-Wl,-rpath,{library.parent}", "-pthread", "-o", program])
    return program


def assert_all_right(output: str, lanes: int | None) -> None:
    assert re.search(r"^[1-9]\d+ checks, 0 wrong$", output, re.MULTILINE), output
    assert lanes is None or output.startswith(f"{lanes} lanes\n")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_check(tmp_path_factory.mktemp("cross_check"))


@pytest.fixture(scope="module")
def sanitizers(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    folder = tmp_path_factory.mktemp("sanitizers")
    empty = folder / "empty.cpp"
    empty.write_text("int main() {}\n")
    command = [*find_compiler(), *SANITIZERS, str(empty), "-o", str(folder / "empty")]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("this compiler comes without the sanitizers' libraries")
    return SANITIZERS


@pytest.mark.slow
@pytest.mark.parametrize("variant", BUILDS, ids=lambda variant: variant.name)
def test_kernels_compute_what_plain_loops_do(variant: BuildVariant, compiled: Path, tmp_path: Path) -> None:
    program = link_check(compiled, build_library(variant), tmp_path)
    assert_all_right(run([program]), variant.lanes)


@pytest.mark.slow
@pytest.mark.parametrize("variant", CHECKED_BUILDS)
def test_kernels_stay_inside_their_tensors(
    variant: BuildVariant, sanitizers: tuple[str, ...], compiled: Path, tmp_path: Path
) -> None:
    """Nothing beyond an allocation is touched, no integer overflows, no pointer is misaligned for its type."""
    program = link_check(compiled, build_library(sanitized(variant)), tmp_path, sanitizers)
    assert_all_right(run([program]), variant.lanes)


@pytest.mark.slow
@pytest.mark.parametrize("variant", CHECKED_BUILDS)
def test_kernels_compile_without_a_warning(variant: BuildVariant) -> None:
    """In the shapes that the native build has too, which is not built with these flags for its users."""
    build_library(sanitized(variant))


@pytest.mark.slow
@IF_NO_TILES
def test_products_in_tiles(tmp_path: Path) -> None:
    """AMX's tiles as plain loops, on every machine: all shapes of rows and inputs, and what a processor faults at."""
    program = tmp_path / "tile_check"
    kernels = source_dir() / "cpu"
    flags = (
        "-std=c++17",
        *_STRICT,
        "-Wno-psabi",
        *TWIN_FLAGS,
        "-DKVPLAN_LANES=16",
        f"-I{kernels}",
        f"-I{source_dir() / 'include'}",
    )
    units = [SOURCE.with_name("tile_check.cpp"), *(kernels / unit for unit in TILE_UNITS)]
    unoptimised = []
    for unit in UNOPTIMISED_UNITS:
        unoptimised.append(tmp_path / f"{Path(unit).stem}.o")
        run([*find_compiler(), *flags, "-O0", "-c", kernels / unit, "-o", unoptimised[-1]])
    run([*find_compiler(), *flags, *units, *unoptimised, "-pthread", "-o", program])
    assert_all_right(run([program]), None)


@pytest.mark.slow
def test_products_compile_to_tile_instructions(tmp_path: Path) -> None:
    """For a processor with AMX, which few machines that run tests have."""
    if platform.machine() != "x86_64" or not takes_flags(AMX_FLAGS, tmp_path):
        pytest.skip("this compiler does not compile for AMX")
    assembly = tmp_path / "packed_amx.s"
    unit = source_dir() / "cpu" / "products" / "packed" / "packed_amx.cpp"
    run([*find_compiler(), *COMMON_FLAGS, *AMX_FLAGS, "-S", unit, "-o", assembly])
    found = set(re.findall(r"^\t(ldtilecfg|tile\w+|tdp\w+)", assembly.read_text(), re.MULTILINE))
    products = {"tdpbf16ps", "tdpbsud"}
    assert found == {"ldtilecfg", "tilerelease", "tilezero", "tileloadd", "tileloaddt1", "tilestored"} | products


def takes_flags(flags: Sequence[str], folder: Path) -> bool:
    empty = folder / "empty.cpp"
    empty.write_text("int main() {}\n")
    command = [*find_compiler(), *flags, "-c", str(empty), "-o", str(folder / "empty.o")]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(" avx512_bf16 " in cpu_features(), reason="this processor has the unit, and its builds run on it")
def test_kernels_with_dot_products_of_pairs(compiled: Path, tmp_path: Path) -> None:
    """AVX-512's dot products of bfloat16 as plain loops, on machines that lack them."""
    variant = BuildVariant("twins", TWIN_FLAGS, 16)
    assert_all_right(run([link_check(compiled, build_library(variant), tmp_path)]), 16)


@pytest.mark.slow
@pytest.mark.parametrize("variant", AARCH64, ids=lambda variant: variant.name)
def test_kernels_on_aarch64(variant: BuildVariant, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if shutil.which(AARCH64_COMPILER) is None:
        pytest.skip(f"no {AARCH64_COMPILER} on this machine")
    emulator = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if emulator is None:
        pytest.skip("no qemu-aarch64 on this machine")
    monkeypatch.setenv("CXX", AARCH64_COMPILER)
    program = link_check(compile_check(tmp_path), build_library(variant), tmp_path)
    assert_all_right(run([emulator, "-cpu", "max", "-L", AARCH64_LIBRARIES, program]), lanes=4)
