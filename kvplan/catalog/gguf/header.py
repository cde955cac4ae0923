"""The header of a GGUF file: metadata and the shape and type of every tensor. The weights are never read.

Layout as in the GGUF specification (github.com/ggml-org/ggml/blob/master/docs/gguf.md), versions 2 and 3, little
endian: magic, version, number of tensors, number of metadata entries; the entries; then name, shape, type and offset
of every tensor.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from kvplan.errors import KvplanError
from kvplan.files import open_file
from kvplan.paths import read_shipped

_MAGIC = b"GGUF"
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_LARGEST_HEADER = 512 * 1024**2
_MOST_TENSORS, _MOST_ENTRIES, _MOST_DIMENSIONS = 1_000_000, 100_000, 4
_MOST_ELEMENTS = 8_000_000
"""Elements of all arrays of the metadata together: a vocabulary, its scores, types and merges."""
_ALIGNMENT_KEY, _DEFAULT_ALIGNMENT = "general.alignment", 32
_KEPT_ARRAY = 4096
"""Longer arrays (vocabularies) are skipped; only their length is kept."""

BLOCK_SIZES: dict[int, tuple[str, int, int]] = read_shipped(
    "gguf-types.json", lambda document: {int(kind): tuple(found) for kind, found in document["types"].items()}
)
"""Tensor types by number: name, weights per block, bytes per block (scales included)."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor of the file. ``shape`` is in ggml's order: the innermost dimension first."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    num_bytes: int

    @property
    def num_elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata (long arrays as their length) and tensors."""

    metadata: Mapping[str, Any]
    tensors: tuple[GgufTensor, ...]


class _Reader:
    """A cursor over the header that never reads beyond what a header can be."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.file = file
        self.path = path
        self.elements_left = _MOST_ELEMENTS

    def damaged(self, what: str) -> KvplanError:
        return KvplanError(f"{self.path} is not a readable GGUF file: {what}.", hint="download it again")

    def take(self, count: int) -> bytes:
        if count > _LARGEST_HEADER or self.file.tell() > _LARGEST_HEADER:
            raise self.damaged("its header is larger than a header can be")
        content = self.file.read(count)
        if len(content) != count:
            raise self.damaged("it ends inside its header")
        return content

    def number(self, layout: str) -> Any:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]

    def text(self) -> str:
        return self.take(self.number("<Q")).decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self.array()
        raise self.damaged(f"metadata of type {kind} is not known")

    def array(self) -> Any:
        kind, count = self.number("<I"), self.number("<Q")
        self.elements_left -= count
        if self.elements_left < 0:
            raise self.damaged(f"its arrays have more than {_MOST_ELEMENTS:,} elements")
        if kind in _SCALARS:
            size = struct.calcsize(_SCALARS[kind])
            content = self.take(count * size)
            if count > _KEPT_ARRAY:
                return count
            return [struct.unpack_from(_SCALARS[kind], content, index * size)[0] for index in range(count)]
        if kind != _STRING:
            raise self.damaged(f"an array of type {kind} is not known")
        for _ in range(count):
            self.take(self.number("<Q"))
        return count


def read_gguf_header(path: Path) -> GgufHeader:
    """Metadata and tensors of ``path``. KvplanError when it is not a GGUF file, or a damaged one."""
    with open_file(path, hint="pass a readable .gguf file") as file:
        return _read(_Reader(file, path))


def _read(reader: _Reader) -> GgufHeader:
    if reader.take(4) != _MAGIC:
        raise reader.damaged("it does not begin with GGUF")
    version = reader.number("<I")
    if version not in (2, 3):
        raise reader.damaged(f"version {version} of the format is not known")
    num_tensors, num_entries = reader.number("<Q"), reader.number("<Q")
    if num_tensors > _MOST_TENSORS or num_entries > _MOST_ENTRIES:
        raise reader.damaged("its counts are larger than a model's")
    metadata: dict[str, Any] = {}
    for _ in range(num_entries):
        key = reader.text()
        if key in metadata:
            raise reader.damaged(f"'{key}' stands in it twice")
        metadata[key] = reader.value(reader.number("<I"))
    alignment = _alignment(reader, metadata)
    tensors = tuple(_tensor(reader, alignment) for _ in range(num_tensors))
    if len({tensor.name for tensor in tensors}) < num_tensors:
        raise reader.damaged("two tensors have the same name")
    return GgufHeader(metadata, tensors)


def _alignment(reader: _Reader, metadata: Mapping[str, Any]) -> int:
    """Return what every tensor's offset is a multiple of, in bytes: a power of two, as llama.cpp demands."""
    found = metadata.get(_ALIGNMENT_KEY, _DEFAULT_ALIGNMENT)
    if type(found) is not int or found < 1 or found & (found - 1):
        raise reader.damaged(f"its alignment is {str(found)[:40]!r}, not a power of two")
    return found


def _tensor(reader: _Reader, alignment: int) -> GgufTensor:
    name = reader.text()
    dimensions = reader.number("<I")
    if not 1 <= dimensions <= _MOST_DIMENSIONS:
        raise reader.damaged(f"tensor {name} has {dimensions} dimensions")
    shape = tuple(reader.number("<Q") for _ in range(dimensions))
    kind = reader.number("<I")
    offset = reader.number("<Q")
    if offset % alignment:
        raise reader.damaged(f"tensor {name} begins at {offset:,}, not at a multiple of {alignment}")
    if kind not in BLOCK_SIZES:
        raise reader.damaged(f"tensor {name} has type {kind}, which is not known")
    type_name, block_elements, block_bytes = BLOCK_SIZES[kind]
    elements = prod(shape)
    if not 0 < elements < 2**48 or shape[0] % block_elements:
        raise reader.damaged(f"tensor {name} has a shape of {shape} in {type_name}")
    return GgufTensor(name, shape, type_name, elements // block_elements * block_bytes)
