"""The header of a GGUF file: its metadata, and where its tensors lie.

The gguf package's own reader makes several arrays for every word of the vocabulary, which takes seconds. Format: the
specification in ggml's docs/gguf.md, versions 2 and 3; all numbers are little-endian.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from kvplan_engine.errors import EngineError
from kvplan_engine.files import open_file

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
# of struct and numpy alike, by the format's number of the type
_NUMBERS = {0: "B", 1: "b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "?", 10: "<Q", 11: "<q", 12: "<d"}
_NUMPY_KINDS = {"B": "u1", "b": "i1", "<H": "<u2", "<h": "<i2", "<I": "<u4", "<i": "<i4", "<f": "<f4", "?": "?"} | {
    "<Q": "<u8",
    "<q": "<i8",
    "<d": "<f8",
}
_DEFAULT_ALIGNMENT = 32
_MOST_TENSORS, _MOST_KEYS, _MOST_DIMENSIONS, _MOST_VALUES = 1_000_000, 100_000, 4, 2**48
_MOST_ELEMENTS = 8_000_000
"""Elements of all arrays of the metadata together: a vocabulary, its scores, types and merges."""
_Entry = TypeVar("_Entry")


class GgufTensor(NamedTuple):
    """shape: as stored, the fastest extent first. kind: ggml's number of the quantisation. first_byte: in the file."""

    shape: tuple[int, ...]
    kind: int
    first_byte: int


class GgufFile(NamedTuple):
    """metadata: without arrays of strings, which are the vocabulary. data: the whole file, uint8, mapped."""

    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]
    data: np.ndarray

    def bytes_of(self, name: str) -> np.ndarray:
        """A tensor as ``gguf.dequantize`` takes it: rows of bytes, uint8 [..., bytes of a row].

        EngineError where its format is unknown or the file ends within it.
        """
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        shape, kind, first = self.tensors[name]
        try:
            block_elements, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
            if shape[0] % block_elements:
                raise ValueError(f"its rows of {shape[0]:,} are no whole blocks of {block_elements}")
            row_bytes = shape[0] // block_elements * block_bytes
            rows = tuple(reversed(shape[1:]))
            return self.data[first : first + math.prod(rows) * row_bytes].reshape(*rows, row_bytes)
        except (ValueError, IndexError) as problem:
            raise EngineError(f"tensor {name} of a GGUF file cannot be read: {problem}.") from None


def read_gguf(path: Path) -> GgufFile:
    """Read and check the whole header, before any library looks at the file.

    EngineError where ``path`` is no GGUF file, ends early, or has counts, shapes or offsets that no model's file has.
    """
    with open_file(path) as file:
        try:
            mapped = np.memmap(file, dtype=np.uint8, mode="r")
            return _read(mapped)
        except (ValueError, struct.error) as problem:
            raise EngineError(f"{path} is not a readable GGUF file: {problem}.", hint="download it again") from None


def _read(mapped: np.memmap[Any, np.dtype[np.uint8]]) -> GgufFile:
    cursor = _Cursor(mapped.data)
    if cursor.take_bytes(4) != _MAGIC:
        raise ValueError("it does not begin as one")
    if (version := cursor.number("<I")) not in _VERSIONS:
        raise ValueError(f"its version is {version}, not 2 or 3")
    num_tensors, num_keys = cursor.number("<Q"), cursor.number("<Q")
    if num_tensors > _MOST_TENSORS or num_keys > _MOST_KEYS:
        raise ValueError(f"it counts {num_tensors:,} tensors and {num_keys:,} keys")
    metadata = _named(cursor.entry() for _ in range(num_keys))
    stored = _named(cursor.tensor() for _ in range(num_tensors))
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"its alignment is {str(alignment)[:40]!r}, not a power of two")
    for name, tensor in stored.items():
        if tensor.first_byte % alignment:
            raise ValueError(f"tensor {name} begins at {tensor.first_byte:,}, not at a multiple of {alignment}")
    start = -(-cursor.position // alignment) * alignment
    tensors = {name: tensor._replace(first_byte=start + tensor.first_byte) for name, tensor in stored.items()}
    return GgufFile({name: value for name, value in metadata.items() if value is not None}, tensors, mapped)


def _named(entries: Iterable[tuple[str, _Entry]]) -> dict[str, _Entry]:
    """ValueError where two have the same name."""
    found: dict[str, _Entry] = {}
    for name, entry in entries:
        if name in found:
            raise ValueError(f"'{name}' stands in it twice")
        found[name] = entry
    return found


class _Cursor:
    """Reads one thing after the other. struct.error at the end of the file."""

    def __init__(self, data: memoryview) -> None:
        self.position = 0
        self._data = data
        self._elements_left = _MOST_ELEMENTS
        self._readers: dict[str, Callable[..., tuple[Any, ...]]] = {
            kind: struct.Struct(kind).unpack_from for kind in _NUMBERS.values()
        }

    def number(self, kind: str) -> Any:
        (value,) = self._readers[kind](self._data, self.position)
        self.position += struct.calcsize(kind)
        return value

    def take_bytes(self, number: int) -> bytes:
        start, self.position = self.position, self.position + number
        if self.position > len(self._data):
            raise ValueError("it ends early")
        return bytes(self._data[start : self.position])

    def string(self) -> str:
        return self.take_bytes(self.number("<Q")).decode("utf-8")

    def entry(self) -> tuple[str, Any]:
        """A key and its value; None for an array of strings."""
        name = self.string()
        return name, self._value(self.number("<I"))

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY and kind not in _NUMBERS:
            raise ValueError(f"a value in it has type {kind}, which is not known")
        return self._array() if kind == _ARRAY else self.number(_NUMBERS[kind])

    def _array(self) -> list[Any] | None:
        kind, number = self.number("<I"), self.number("<Q")
        self._elements_left -= number
        if self._elements_left < 0:
            raise ValueError(f"its arrays have more than {_MOST_ELEMENTS:,} elements")
        if kind in _NUMBERS:
            element = np.dtype(_NUMPY_KINDS[_NUMBERS[kind]])
            return list(np.frombuffer(self.take_bytes(number * element.itemsize), dtype=element).tolist())
        if kind != _STRING:
            raise ValueError(f"an array in it has elements of type {kind}, which are not known")
        for _ in range(number):
            self.position += 8 + self._readers["<Q"](self._data, self.position)[0]
            if self.position > len(self._data):
                raise ValueError("it ends early")
        return None

    def tensor(self) -> tuple[str, GgufTensor]:
        name, dimensions = self.string(), self.number("<I")
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            raise ValueError(f"tensor {name} has {dimensions} dimensions")
        shape = tuple(self.number("<Q") for _ in range(dimensions))
        if not 0 < math.prod(shape) < _MOST_VALUES:
            raise ValueError(f"tensor {name} has a shape of {shape}")
        return name, GgufTensor(shape, self.number("<I"), self.number("<Q"))
