"""The kernels' own threads (csrc/cpu/thread_team.cpp): a program that stresses them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from kvplan_engine.kernels.build import find_compiler
from kvplan_engine.paths import source_dir

SOURCE = Path(__file__).with_name("checks") / "thread_team_check.cpp"
FLAGS = ("-std=c++17", "-O1", "-fno-exceptions", "-pthread", "-Wall", "-Wextra", "-Werror")
SANITIZER = ("-fsanitize=thread", "-g1")


def build(source: Path, program: Path, *flags: str) -> bool:
    """Whether it compiled: without the sanitizer's library it does not."""
    kernels = source_dir() / "cpu"
    command = [*find_compiler(), *FLAGS, *flags, f"-I{kernels}", source, kernels / "thread_team.cpp", "-o", program]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def sanitizer(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What a program with the thread sanitizer is run by: some systems' addresses are too random for it."""
    folder = tmp_path_factory.mktemp("sanitizer")
    (folder / "empty.cpp").write_text("int main() {}\n")
    program = folder / "empty"
    if build(folder / "empty.cpp", program, *SANITIZER):
        for before in ([], ["setarch", "-R"]):
            is_there = not before or shutil.which(before[0])
            if is_there and subprocess.run([*before, program], capture_output=True, check=False).returncode == 0:
                return before
    pytest.skip("no thread sanitizer runs here")


@pytest.mark.slow
def test_calls_share_their_items(tmp_path: Path) -> None:
    program = tmp_path / "check"
    assert build(SOURCE, program)
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout) == (0, "0 wrong\n"), done.stdout + done.stderr


@pytest.mark.slow
def test_no_thread_reads_what_another_writes(sanitizer: list[str], tmp_path: Path) -> None:
    program = tmp_path / "check"
    assert build(SOURCE, program, *SANITIZER)
    done = subprocess.run([*sanitizer, program, "1"], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout) == (0, "0 wrong\n"), done.stdout + done.stderr
