"""The CPU library's structures, its huge pages and its team of threads."""

from __future__ import annotations

import ctypes
import gc
import mmap
import re
import shutil
import subprocess
import weakref
from pathlib import Path

import pytest
import torch

from kvplan_engine.kernels.build import build_library, find_compiler
from kvplan_engine.kernels.cpu import huge_pages, structures
from kvplan_engine.kernels.cpu.huge_pages import empty_for_weights
from kvplan_engine.kernels.cpu.library import CpuKernels
from kvplan_engine.kernels.cpu.structures import STRUCTURES, KernelStructureError, check_structures
from kvplan_engine.paths import source_dir

HEADERS = sorted((Path(__file__).parents[3] / "csrc" / "include").glob("*.h"))
NUMBERS = {"int64_t": ctypes.c_int64, "int32_t": ctypes.c_int32, "float": ctypes.c_float}
_STRUCT = re.compile(r"typedef struct (kvplan_\w+) \{(.*?)\} \1;", re.DOTALL)
_FIELD = re.compile(r"(?:const )?(?:struct )?(\w+)\s*(\*?)\s*([\w, *]+)")


def declared() -> dict[str, list[tuple[str, str]]]:
    """The fields of each struct of the headers: type, or "pointer", and name."""
    found: dict[str, list[tuple[str, str]]] = {}
    for header in HEADERS:
        text = re.sub(r"//[^\n]*", "", header.read_text())
        for name, body in _STRUCT.findall(text):
            found[name] = fields = []
            for line in filter(None, (part.strip() for part in body.split(";"))):
                kind, star, names = _FIELD.fullmatch(line).groups()  # type: ignore[union-attr]
                fields += [("pointer" if star else kind, each.strip(" *")) for each in names.split(",")]
    return found


DECLARED = declared()


def test_every_struct_of_the_headers_is_here() -> None:
    assert DECLARED.keys() == STRUCTURES.keys()


@pytest.mark.parametrize("name", STRUCTURES)
def test_the_fields_are_those_of_the_header_in_its_order(name: str) -> None:
    structure = STRUCTURES[name]
    assert [field[0] for field in structure._fields_] == [field for _, field in DECLARED[name]]
    for (kind, field), (_, here, *_rest) in zip(DECLARED[name], structure._fields_, strict=True):
        if kind == "pointer":
            assert here is ctypes.c_void_p or issubclass(here, ctypes._Pointer), field
        else:
            assert here is (NUMBERS.get(kind) or STRUCTURES[kind]), field


def test_a_structure_of_another_size_is_refused_when_the_library_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Longer(ctypes.Structure):
        _fields_ = (*STRUCTURES["kvplan_norm"]._fields_, ("one_more", ctypes.c_int64))

    library = build_library()
    CpuKernels(library)
    monkeypatch.setitem(structures.STRUCTURES, "kvplan_norm", Longer)
    with pytest.raises(KernelStructureError, match=r"^struct kvplan_norm has \d+ bytes in the compiled CPU"):
        CpuKernels(library)


def test_a_struct_that_the_library_lacks_is_refused() -> None:
    with pytest.raises(KernelStructureError, match="struct kvplan_attention has 0 bytes in the compiled"):
        check_structures(lambda _: 0)


LINUX = pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="huge pages are advised on Linux alone")


def _newest() -> weakref.ref[ctypes.Array[ctypes.c_uint8]]:
    newest = huge_pages._REGIONS._newest
    assert newest is not None
    return newest


@LINUX
def test_has_the_shape_and_the_type_asked_for() -> None:
    weight = empty_for_weights((3, 5, 7), torch.bfloat16)
    assert weight.shape == (3, 5, 7) and weight.dtype is torch.bfloat16 and weight.is_contiguous()
    assert empty_for_weights((0, 4), torch.float32).shape == (0, 4)


@LINUX
def test_small_weights_share_huge_pages_and_no_byte() -> None:
    weights = [empty_for_weights((count,), torch.uint8) for count in (1, 4096, 4097, 100_000)]
    for value, weight in enumerate(weights):
        weight.fill_(value)
    assert all((weight == value).all() for value, weight in enumerate(weights))
    assert weights[-1].data_ptr() - weights[0].data_ptr() == 4 * 4096


@LINUX
def test_what_is_left_of_a_large_weights_region_is_used() -> None:
    large = empty_for_weights((huge_pages._REGION_BYTES + 1,), torch.uint8)
    large[-1] = 7
    assert large[-1] == 7
    behind = empty_for_weights((8,), torch.uint8)
    assert large.data_ptr() < behind.data_ptr() <= large.data_ptr() + large.nbytes + 2 * huge_pages._HUGE_BYTES


@LINUX
def test_memory_is_free_when_nobody_holds_it() -> None:
    first = empty_for_weights((huge_pages._REGION_BYTES,), torch.uint8)  # nothing of an earlier test lies beside it
    region = _newest()
    view = first[10:20]
    del first
    gc.collect()
    assert region() is not None
    del view
    gc.collect()
    assert region() is None
    assert empty_for_weights((8,), torch.uint8).shape == (8,)


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
