"""GGUF files: headers that are read, refused or damaged, and blocks of weights as ggml has them."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_bytes import header, tensor, text

from kvplan.estimate.kvplan import held_weights
from kvplan_engine.checkpoints.gguf import open_gguf, read_gguf_config
from kvplan_engine.checkpoints.gguf_header import read_gguf
from kvplan_engine.checkpoints.loaders import read_config
from kvplan_engine.checkpoints.quantised.ggml_blocks import BLOCK_FORMATS
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
    assert list(file.tensors) == [each.name for each in reader.tensors]
    for each in reader.tensors:
        stored = file.tensors[each.name]
        assert (stored.shape, stored.kind) == (tuple(each.shape.tolist()), each.tensor_type)
        assert stored.first_byte == each.data_offset
        ours = gguf.dequantize(file.bytes_of(each.name), each.tensor_type)
        np.testing.assert_array_equal(ours, gguf.dequantize(each.data, each.tensor_type))


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


ALIGNMENT = text("general.alignment")
STRAY = {
    "alignment 0": (header(ALIGNMENT + struct.pack("<II", 4, 0)), "its alignment is '0', not a power of two"),
    "alignment 48": (header(ALIGNMENT + struct.pack("<II", 4, 48)), "its alignment is '48'"),
    "alignment -7": (header(ALIGNMENT + struct.pack("<Ii", 5, -7)), "its alignment is '-7'"),
    "alignment in words": (header(ALIGNMENT + struct.pack("<I", 8) + text("many")), "its alignment is 'many'"),
    "key twice": (header(*[text("a") + struct.pack("<II", 4, 1)] * 2), "'a' stands in it twice"),
    "lists in lists": (header(text("a") + struct.pack("<IIQ", 9, 9, 1)), "elements of type 9"),
    "long array": (header(text("a") + struct.pack("<IIQ", 9, 8, 2**60)), "more than 8,000,000 elements"),
    "string beyond the end": (header(text("a") + struct.pack("<IIQQ", 9, 8, 2, 2**63)), "it ends early"),
    "unknown type": (header(text("a") + struct.pack("<I", 99)), "type 99, which is not known"),
    "counts": (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0), "it counts 9,223,372,036,854,775,808 tensors"),
    "five dimensions": (header(tensors=(tensor("w", 1, 1, 1, 1, 1),)), "tensor w has 5 dimensions"),
    "no element": (header(tensors=(tensor("w", 32, 0),)), "tensor w has a shape of"),
    "2^62 elements": (header(tensors=(tensor("w", 2**31, 2**31),)), "tensor w has a shape of"),
    "offset": (header(tensors=(tensor("w", 32, offset=7),)), "tensor w begins at 7, not at a multiple of 32"),
    "tensor twice": (header(tensors=(tensor("w", 32), tensor("w", 32))), "'w' stands in it twice"),
}


@pytest.mark.parametrize(("content", "says"), STRAY.values(), ids=STRAY)
def test_a_header_that_llama_cpp_refuses_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "stray.gguf").write_bytes(content)
    with pytest.raises(EngineError) as caught:
        read_gguf(tmp_path / "stray.gguf")
    assert says in caught.value.message


def test_a_tensor_far_behind_the_end_is_said(tmp_path: Path) -> None:
    far = header(tensors=(tensor("w", 32, offset=2**63), tensor("v", 33, kind=8), tensor("u", 32, kind=99)))
    (tmp_path / "far.gguf").write_bytes(far)
    file = read_gguf(tmp_path / "far.gguf")
    for name in ("w", "v", "u"):
        with pytest.raises(EngineError, match=f"tensor {name} of a GGUF file cannot be read"):
            file.bytes_of(name)


@pytest.mark.parametrize("blocks", [-1, 0, 2**31, 10**12, "many"])
def test_more_layers_than_tensors_are_not_described(path: Path, blocks: int | str) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("llama.block_count", blocks) if isinstance(blocks, str) else writer.add_int64(
        "llama.block_count", blocks
    )
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(EngineError, match=f"says that it has {blocks} layers, and holds 1 tensors"):
        read_gguf_config(path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(EngineError, match="is not a regular file"):
        read_gguf(tmp_path / "pipe.gguf")


def llama(path: Path, query: np.ndarray) -> Path:
    """A file of two heads, as far as the tensor of queries."""
    writer = gguf.GGUFWriter(path, "llama")
    for name in ("block_count", "embedding_length", "feed_forward_length", "context_length"):
        writer.add_uint32(f"llama.{name}", 1 if name == "block_count" else 32)
    writer.add_uint32("llama.attention.head_count", 2)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.add_tensor("blk.0.attn_q.weight", query)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("query", "says"),
    [
        (np.zeros((3, 32), np.float32), "3 rows for 2 heads, no whole pairs"),
        (np.zeros((32, 32), np.int16), "is stored in I16, not in weights"),
    ],
    ids=["rows", "integers"],
)
def test_a_tensor_that_is_no_weight_is_said(tmp_path: Path, query: np.ndarray, says: str) -> None:
    path = llama(tmp_path / "model.gguf", query)
    checkpoint = open_gguf(read_config(path), path)
    with pytest.raises(EngineError, match=says):
        checkpoint.read("blk.0.attn_q.weight")


NAMES = {kind: gguf.GGMLQuantizationType(kind).name for kind in BLOCK_FORMATS}
HALVES = {12: (0, 2), 13: (0, 2), 3: (0, 2), 7: (0, 2), 14: (208,), 39: ()}
"""Where a block has numbers in half precision; at its beginning where nothing else is said. MXFP4 has none."""


def random_blocks(kind: int, num_rows: int, num_blocks: int) -> np.ndarray:
    """uint8 [num_rows, bytes of a row]: any codes, and scales that are numbers."""
    rng = np.random.default_rng(kind)
    blocks = rng.integers(0, 256, (num_rows * num_blocks, BLOCK_FORMATS[kind].num_bytes), dtype=np.uint8)
    for at in HALVES.get(kind, (0,)):
        scales = rng.normal(0, 0.02, len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    if kind == 39:  # an exponent, of which the last is no number
        blocks[:, 0] = rng.integers(0, 255, len(blocks))
    return blocks.reshape(num_rows, -1)


@pytest.mark.parametrize("kind", list(BLOCK_FORMATS), ids=NAMES.get)
def test_values_are_those_of_ggml(kind: int) -> None:
    rows = random_blocks(kind, 7, 3)
    weight = BLOCK_FORMATS[kind].read(rows)
    want = gguf.dequantize(rows, gguf.GGMLQuantizationType(kind))
    np.testing.assert_array_equal(weight.dequantised().numpy(), want)


@pytest.mark.parametrize("kind", list(BLOCK_FORMATS), ids=NAMES.get)
def test_bytes_are_a_formula_on_both_sides(kind: int) -> None:
    weight = BLOCK_FORMATS[kind].read(random_blocks(kind, 5, 2))
    outputs, inputs = weight.num_outputs, weight.num_inputs
    assert weight.num_bytes == BLOCK_FORMATS[kind].held.num_bytes(outputs, inputs)
    assert weight.num_bytes == held_weights.GGUF_TYPES[NAMES[kind]].num_bytes(outputs * inputs)
    assert set(held_weights.GGUF_TYPES) == set(NAMES.values())


@pytest.mark.parametrize("kind", list(BLOCK_FORMATS), ids=NAMES.get)
def test_plain_weights_have_the_same_values_and_the_bytes_predicted_for_gpus(kind: int) -> None:
    weight = BLOCK_FORMATS[kind].read(random_blocks(kind, 5, 2))
    assert weight.plain.bits in (4, 8) and weight.plain.block_scales is None
    assert weight.plain.dequantised().equal(weight.dequantised())
    outputs, inputs = weight.num_outputs, weight.num_inputs
    assert weight.plain.num_bytes == BLOCK_FORMATS[kind].held.plain.num_bytes(outputs, inputs)
    assert weight.plain.num_bytes == held_weights.GGUF_TYPES[NAMES[kind]].on_gpu.num_bytes(outputs * inputs)
