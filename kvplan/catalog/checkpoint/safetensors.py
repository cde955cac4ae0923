"""Safetensors in a directory, by their headers: tensors with their types and sizes, and which files are missing.

A file begins with the length of its header (8 bytes, little endian), then the header as JSON: for each tensor its
``dtype``, ``shape`` and ``data_offsets`` (https://github.com/huggingface/safetensors, "Format"). No weight is read.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

from kvplan.errors import KvplanError
from kvplan.files import open_file, parse_json, read_text

INDEX_NAME: Final = "model.safetensors.index.json"
_LARGEST_HEADER: Final = 100_000_000
"""Bytes; the format's own limit."""
_LARGEST_INDEX: Final = 256 * 1024 * 1024
_SHARD: Final = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.safetensors")
_NOT_THE_MODEL: Final = ("adapter_model", "consolidated", "optimizer", "training_args")
"""How files begin that are no part of it, or a second copy in the publisher's own format."""
_POINTER: Final = b"version https://git-lfs"
_NAMES_BY_BITS: Final = {
    64: "F64 I64 U64 C64",
    32: "F32 I32 U32",
    16: "F16 BF16 I16 U16",
    8: "F8_E4M3 F8_E5M2 F8_E8M0 I8 U8 BOOL",
    6: "F6_E2M3 F6_E3M2",
    4: "F4",
}
_BITS: Final = {name: bits for bits, names in _NAMES_BY_BITS.items() for name in names.split()}
"""Of one element. Types that are not listed here are newer than kvplan, and taken as they are."""
FLOAT_TYPES: Final = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""Safetensors' types that plain weights have, the widest first."""


@dataclass(frozen=True, slots=True)
class HeaderTensor:
    """One tensor of a header. ``num_bytes`` are those it takes in the file."""

    name: str
    type_name: str
    shape: tuple[int, ...]
    num_bytes: int

    @property
    def num_elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class StoredFiles:
    """A checkpoint's files: the tensors of those that are whole, and the names of those that are missing or cut off."""

    folder: Path
    num_whole: int
    tensors: tuple[HeaderTensor, ...]
    missing: tuple[str, ...]


def read_files(folder: Path) -> StoredFiles | None:
    """The weight files of ``folder``, by its index or by their names; None where it holds none and names none.

    KvplanError for a damaged index or header.
    """
    names = _indexed_names(folder) or _names_in(folder)
    if not names:
        return None
    found = {name: _read_tensors(folder / name) for name in names}
    whole = [tensors for tensors in found.values() if tensors is not None]
    missing = tuple(name for name, tensors in found.items() if tensors is None)
    return StoredFiles(folder, len(whole), tuple(tensor for tensors in whole for tensor in tensors), missing)


def _indexed_names(folder: Path) -> list[str]:
    path = folder / INDEX_NAME
    if not path.exists():
        return []
    try:
        names = set(parse_json(read_text(path, _LARGEST_INDEX, hint="download it again"))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise KvplanError(f"{path} is not a readable index of weight files.", hint="download it again") from error
    if not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise KvplanError(f"{path} names files outside its own directory.", hint="download it again")
    return sorted(names)


def _names_in(folder: Path) -> list[str]:
    """All ``*.safetensors`` that are the model, and the parts that the name of one of them says there are."""
    found = {path.name for path in folder.glob("*.safetensors") if not path.name.startswith(_NOT_THE_MODEL)}
    found = {name for name in found if name.startswith("model")} or found
    for name in tuple(found):
        match = _SHARD.fullmatch(name)
        if match is not None and int(match.group(3)) <= 4096:
            stem, _, count = match.groups()
            found |= {f"{stem}-{index:05d}-of-{count}.safetensors" for index in range(1, int(count) + 1)}
    return sorted(found)


def _read_tensors(path: Path) -> list[HeaderTensor] | None:
    """The tensors of a file; None where it is missing or shorter than its header says.

    A Git LFS pointer stands for a file that was not fetched. KvplanError when the header is damaged.
    """
    if not os.path.exists(path):  # False for a name that no file can have, too
        return None
    with open_file(path, hint="download it again") as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if _POINTER.startswith(start) and (start + file.read(len(_POINTER)))[: len(_POINTER)] == _POINTER:
            return None
        if length > _LARGEST_HEADER:
            raise _unreadable(path, "its header is larger than a header can be")
        content = file.read(length)
    if len(content) < max(length, 1):
        return None
    try:
        header = parse_json(content, unique_keys=True)
        header.pop("__metadata__", None)
        tensors = [_tensor(name, entry) for name, entry in header.items()]
        _check_places([entry["data_offsets"] for entry in header.values()])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(path, "its header is damaged") from error
    end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    return tensors if size >= 8 + length + end else None


def _tensor(name: str, entry: dict[str, Any]) -> HeaderTensor:
    """ValueError where its shape does not take the bytes that it has."""
    begin, end = entry["data_offsets"]
    shape, type_name = tuple(entry["shape"]), str(entry["dtype"])
    if any(type(number) is not int or number < 0 for number in (begin, end, *shape)):
        raise ValueError(name)
    bits = _BITS.get(type_name)
    if bits is not None and end - begin != -(-prod(shape) * bits // 8):
        raise ValueError(name)
    return HeaderTensor(name, type_name, shape, end - begin)


def _check_places(places: list[list[int]]) -> None:
    """ValueError where tensors overlap or leave a gap: the format wants them one behind the other."""
    position = 0
    for begin, end in sorted(places):
        if begin != position or end < begin:
            raise ValueError(f"a tensor begins at {begin}, the one before it ends at {position}")
        position = end


def _unreadable(path: Path, reason: str) -> KvplanError:
    return KvplanError(f"{path} is not a readable safetensors file: {reason}.", hint="download it again")
