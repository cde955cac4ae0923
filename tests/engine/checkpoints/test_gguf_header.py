"""The header of GGUF files, beside the gguf package's own reader."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from kvplan_engine.checkpoints.gguf_header import read_gguf
from kvplan_engine.errors import EngineError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with every kind of value, and tensors of four formats."""
    file = tmp_path / "small.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_uint8("a.u8", 200)
    writer.add_int8("a.i8", -100)
    writer.add_uint16("a.u16", 60_000)
    writer.add_int16("a.i16", -30_000)
    writer.add_uint32("a.u32", 4_000_000_000)
    writer.add_int32("a.i32", -2_000_000_000)
    writer.add_uint64("a.u64", 2**63)
    writer.add_int64("a.i64", -(2**62))
    writer.add_float32("a.f32", 0.5)
    writer.add_float64("a.f64", 0.1)
    writer.add_bool("a.bool", True)
    writer.add_string("a.text", "Größe 🙂")
    writer.add_array("a.numbers", [1, -2, 3])
    writer.add_array("tokenizer.ggml.tokens", ["the", "ä", ""])
    writer.add_array("a.floats", [0.25, -1.5])
    writer.add_uint32("z.last", 7)
    values = np.random.default_rng(0).standard_normal((6, 64)).astype(np.float32)
    writer.add_tensor("f32", values)
    writer.add_tensor("f16", values.astype(np.float16))
    for kind in (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_1):
        writer.add_tensor(kind.name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def test_it_is_what_the_gguf_package_reads(path: Path) -> None:
    reader, file = gguf.GGUFReader(path), read_gguf(path)
    expected = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    del expected["tokenizer.ggml.tokens"]
    assert file.metadata == expected
    assert list(file.tensors) == [tensor.name for tensor in reader.tensors]
    for tensor in reader.tensors:
        stored = file.tensors[tensor.name]
        assert (stored.shape, stored.kind) == (tuple(tensor.shape.tolist()), tensor.tensor_type)
        assert stored.first_byte == tensor.data_offset
        ours = gguf.dequantize(file.bytes_of(tensor.name), tensor.tensor_type)
        np.testing.assert_array_equal(ours, gguf.dequantize(tensor.data, tensor.tensor_type))


def test_what_is_no_gguf_file_is_said(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    other = tmp_path / "other.gguf"
    for content, says in (
        (b"", "mmap"),
        (b"safetensors", "does not begin as one"),
        (data[:4] + b"\x01\0\0\0" + data[8:], "version is 1"),
        *((data[:length], "not a readable GGUF file") for length in (5, 30, 100, 400)),
    ):
        other.write_bytes(content)
        with pytest.raises(EngineError, match=says):
            read_gguf(other)
    with pytest.raises(EngineError, match="No such file"):
        read_gguf(tmp_path / "missing.gguf")


def test_a_tensor_that_is_not_all_there_is_said(path: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.gguf"
    short.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(EngineError, match="tensor Q4_1 of a GGUF file cannot be read"):
        read_gguf(short).bytes_of("Q4_1")
