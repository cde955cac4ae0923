"""GGUF files by their header: the same shape as the config's, weights by tensor type, damage refused."""

from __future__ import annotations

import struct

import gguf
import pytest
from gguf_bytes import header, tensor, text
from small_gguf import LAYERS, write

from kvplan.catalog.gguf.header import BLOCK_SIZES, read_gguf_header
from kvplan.catalog.models import resolve_model
from kvplan.errors import KvplanError, UnknownArchitectureError
from kvplan.estimate.weights import size_weights


@pytest.mark.parametrize("tied", [False, True])
def test_shapes_and_weights_come_from_the_header(tmp_path, tied):
    path = write(tmp_path / "small.gguf", tied=tied)
    spec = resolve_model(str(path))
    stored = gguf.GGUFReader(path)
    assert spec.num_parameters == sum(int(tensor.n_elements) for tensor in stored.tensors)
    assert size_weights(spec, "float16").total_bytes == sum(int(tensor.n_bytes) for tensor in stored.tensors)
    assert {each.type_name for each in spec.checkpoint.language_model} == {"F32", "Q8_0"}
    assert (spec.num_layers, spec.max_position_embeddings, spec.tie_word_embeddings) == (LAYERS, 256, tied)
    assert spec.assumptions == ()


def test_types_are_those_of_the_gguf_package():
    for kind, (elements, num_bytes) in gguf.constants.GGML_QUANT_SIZES.items():
        if int(kind) in BLOCK_SIZES:
            assert BLOCK_SIZES[int(kind)] == (kind.name, elements, num_bytes)


def test_a_file_cut_anywhere_in_its_header_is_refused(tmp_path):
    whole = write(tmp_path / "small.gguf").read_bytes()
    end = whole.rfind(b"ffn_norm.weight")
    for length in range(0, end, 97):
        cut = tmp_path / "cut.gguf"
        cut.write_bytes(whole[:length])
        with pytest.raises(KvplanError, match="GGUF"):
            read_gguf_header(cut)


def test_damaged_counts_are_refused(tmp_path):
    whole = bytearray(write(tmp_path / "small.gguf").read_bytes())
    whole[8:16] = b"\xff" * 8
    (tmp_path / "huge.gguf").write_bytes(whole)
    with pytest.raises(KvplanError, match="larger than a model's"):
        resolve_model(str(tmp_path / "huge.gguf"))


def test_an_unknown_architecture_is_refused_by_name(tmp_path):
    with pytest.raises(UnknownArchitectureError, match="Unknown GGUF architecture 'wizard'"):
        resolve_model(str(write(tmp_path / "small.gguf", "wizard")))


def test_a_missing_part_of_a_split_file_is_named(tmp_path):
    write(tmp_path / "big-00001-of-00003.gguf")
    with pytest.raises(KvplanError, match="2 of the 3 parts"):
        resolve_model(str(tmp_path / "big-00001-of-00003.gguf"))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(KvplanError, match="cannot be read"):
        resolve_model(str(tmp_path / "none.gguf"))


def test_a_directory_with_one_gguf_model_is_that_model(tmp_path):
    write(tmp_path / "small.gguf")
    (tmp_path / "mmproj-small.gguf").write_bytes(b"another kind of file")
    assert resolve_model(str(tmp_path)).num_layers == LAYERS


def test_a_directory_with_two_gguf_models_asks_for_one(tmp_path):
    for name in ("small-Q4_K_M.gguf", "small-Q8_0.gguf"):
        write(tmp_path / name)
    with pytest.raises(KvplanError, match="holds 2 GGUF models") as caught:
        resolve_model(str(tmp_path))
    assert caught.value.hint == f"name one of them: {tmp_path / 'small-Q4_K_M.gguf'}"


ALIGNMENT = text("general.alignment")
STRAY = {
    "alignment 0": (header(ALIGNMENT + struct.pack("<II", 4, 0)), "its alignment is '0', not a power of two"),
    "alignment 48": (header(ALIGNMENT + struct.pack("<II", 4, 48)), "its alignment is '48'"),
    "alignment -7": (header(ALIGNMENT + struct.pack("<Ii", 5, -7)), "its alignment is '-7'"),
    "alignment in words": (header(ALIGNMENT + struct.pack("<I", 8) + text("many")), "its alignment is 'many'"),
    "alignment true": (header(ALIGNMENT + struct.pack("<I?", 7, True)), "its alignment is 'True'"),
    "key twice": (header(*[text("a") + struct.pack("<II", 4, 1)] * 2), "'a' stands in it twice"),
    "lists in lists": (header(text("a") + struct.pack("<IIQ", 9, 9, 1)), "an array of type 9"),
    "long array": (header(text("a") + struct.pack("<IIQ", 9, 8, 2**60)), "more than 8,000,000 elements"),
    "five dimensions": (header(tensors=(tensor("w", 1, 1, 1, 1, 1),)), "tensor w has 5 dimensions"),
    "no element": (header(tensors=(tensor("w", 32, 0),)), "tensor w has a shape of"),
    "2^62 elements": (header(tensors=(tensor("w", 2**31, 2**31),)), "tensor w has a shape of"),
    "half a block": (header(tensors=(tensor("w", 16, 2, kind=8),)), "tensor w has a shape of"),
    "offset": (header(tensors=(tensor("w", 32, offset=7),)), "tensor w begins at 7, not at a multiple of 32"),
    "tensor twice": (header(tensors=(tensor("w", 32), tensor("w", 32))), "two tensors have the same name"),
}


@pytest.mark.parametrize(("content", "says"), STRAY.values(), ids=STRAY)
def test_a_header_that_llama_cpp_refuses_is_refused(tmp_path, content, says):
    (tmp_path / "stray.gguf").write_bytes(content)
    with pytest.raises(KvplanError) as caught:
        read_gguf_header(tmp_path / "stray.gguf")
    assert says in caught.value.message


def test_a_larger_alignment_is_read(tmp_path):
    content = header(ALIGNMENT + struct.pack("<II", 4, 4096), tensors=(tensor("a", 8), tensor("b", 8, offset=4096)))
    (tmp_path / "wide.gguf").write_bytes(content)
    assert [each.name for each in read_gguf_header(tmp_path / "wide.gguf").tensors] == ["a", "b"]


@pytest.mark.parametrize(
    ("pages", "tokenizer"),
    [
        (["https://huggingface.co/meta-llama/Llama-3.1-8B-Instruct"], "meta-llama/Llama-3.1-8B-Instruct"),
        (["https://example.org/meta-llama/Llama-3.1-8B-Instruct"], None),
        (["https://huggingface.co/a/b", "https://huggingface.co/c/d"], None),
        ([], None),
    ],
    ids=["one", "elsewhere", "merged", "none"],
)
def test_a_file_is_served_from_its_path_with_the_tokenizer_of_its_one_base(tmp_path, monkeypatch, pages, tokenizer):
    """Converters write down what a file was made from (``general.base_model``)."""
    add = gguf.GGUFWriter.add_block_count

    def with_bases(writer, count):
        add(writer, count)
        writer.add_base_model_count(len(pages))
        for index, page in enumerate(pages):
            writer.add_base_model_repo_url(index, page)

    monkeypatch.setattr(gguf.GGUFWriter, "add_block_count", with_bases)
    path = write(tmp_path / "small.gguf")
    monkeypatch.chdir(tmp_path)
    spec = resolve_model("./small.gguf")
    assert (spec.served_id, spec.tokenizer) == (str(path), tokenizer)
    assert spec.is_gguf and spec.sized_as is None
