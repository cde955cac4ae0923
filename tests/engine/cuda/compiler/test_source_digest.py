"""What a compiled kernel is cached under follows the files that it is made from, and no others."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from kvplan_engine.kernels.build import find_compiler
from kvplan_engine.kernels.cuda.launching.variants import source_digest, with_includes
from kvplan_engine.paths import source_dir

SOURCES = sorted((source_dir() / "cuda").rglob("*.cu"))


def as_the_compiler_finds_them(source: Path) -> set[Path]:
    """The files that a compiler reads for ``source``, without those of the system."""
    command = [*find_compiler(), "-x", "c++", "-MM", str(source)]
    rule = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {Path(name).resolve() for name in rule.replace("\\\n", " ").split()[1:]}


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_includes_are_those_that_the_compiler_reads(source: Path) -> None:
    assert set(with_includes(source)) == as_the_compiler_finds_them(source)


def test_a_digest_changes_with_what_is_included_and_with_nothing_else(tmp_path: Path) -> None:
    cuda = shutil.copytree(source_dir() / "cuda", tmp_path / "cuda")
    shutil.copytree(source_dir() / "cuda_host", tmp_path / "cuda_host")
    source = cuda / "layers" / "norm.cu"
    before = source_digest(source)
    assert before == source_digest("layers/norm.cu")
    (cuda / "attention" / "attention.cuh").write_text("something else\n")
    assert source_digest(source) == before
    with (tmp_path / "cuda_host" / "cuda_words.hpp").open("a") as file:
        file.write("\n")
    assert source_digest(source) != before
