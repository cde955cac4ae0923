"""The structures declared twice, in csrc/include and for ctypes: the same fields, and sizes checked when loaded."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest

from kvplan_engine.kernels.build import build_library
from kvplan_engine.kernels.cpu import structures
from kvplan_engine.kernels.cpu.library import CpuKernels
from kvplan_engine.kernels.cpu.structures import STRUCTURES, KernelStructureError, check_structures

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
