"""A model in a GGUF file: its config and its weights. Those of products stay as they are stored, others are widened."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from kvplan_engine.checkpoints.families import FAMILIES, family_of
from kvplan_engine.checkpoints.families.family import Family, Gguf, rope_scaling
from kvplan_engine.checkpoints.gguf_header import GgufFile, read_gguf
from kvplan_engine.checkpoints.parameters import stored_parameters
from kvplan_engine.checkpoints.quantised.ggml_blocks import BLOCK_FORMATS
from kvplan_engine.checkpoints.quantised.reader import Checkpoint
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.description.model import ModelDescription, uniform_attention
from kvplan_engine.description.weight_format import WeightFormat
from kvplan_engine.errors import EngineError
from kvplan_engine.kernels.quantised_weight import QuantisedWeight

# A config.json's keys, from the header of a GGUF file.


def read_gguf_config(path: Path) -> dict[str, Any]:
    """What the file says of its model. EngineError when it is not one the engine loads."""
    file = read_gguf(path)
    family, gguf = _family_in(path, file.metadata)
    prefix = f"{gguf.architecture}."
    own = {name.removeprefix(prefix): value for name, value in file.metadata.items() if name.startswith(prefix)}
    _check_layers(path, own, file)
    try:
        config = _shared_keys(own, file, gguf) | {"architectures": [family.architectures[0]]}
        scaling = rope_scaling(own)
        if scaling is not None:
            config["rope_scaling"] = scaling
        return config | ({} if gguf.keys is None else gguf.keys(own))
    except KeyError as missing:
        raise EngineError(
            f"{path.name} says nothing of {missing}, without which a GGUF of {gguf.architecture} is not loaded.",
            hint="download it again, or convert it with a newer llama.cpp",
        ) from None
    except (TypeError, ValueError, ArithmeticError, IndexError, AttributeError) as problem:
        raise EngineError(f"the metadata of {path.name} is malformed: {problem}.", hint="download it again") from None


def _check_layers(path: Path, own: dict[str, Any], file: GgufFile) -> None:
    """EngineError for more layers than there are tensors: a description of as many would fill the memory."""
    number = own.get("block_count", 1)
    if type(number) is not int or not 0 < number <= len(file.tensors):
        raise EngineError(
            f"{path.name} says that it has {str(number)[:40]} layers, and holds {len(file.tensors):,} tensors.",
            hint="download it again",
        )


def _shared_keys(own: dict[str, Any], file: GgufFile, gguf: Gguf) -> dict[str, Any]:
    shapes = {name: tensor.shape for name, tensor in file.tensors.items()}
    query_bias = f"{gguf.names.layer.format(0)}.{gguf.names.qkv[0]}.bias"
    return {
        "num_hidden_layers": own["block_count"],
        "hidden_size": own["embedding_length"],
        "intermediate_size": own["feed_forward_length"],
        "num_attention_heads": own["attention.head_count"],
        "num_key_value_heads": own.get("attention.head_count_kv"),
        "head_dim": own.get("attention.key_length"),
        "rms_norm_eps": own["attention.layer_norm_rms_epsilon"],
        "rope_theta": own.get("rope.freq_base"),
        "max_position_embeddings": own["context_length"],
        "vocab_size": int(shapes[f"{gguf.names.embedding}.weight"][1]),
        "tie_word_embeddings": f"{gguf.names.head}.weight" not in shapes,
        "attention_bias": gguf.may_have_attention_bias and query_bias in shapes,
        "eos_token_id": file.metadata.get("tokenizer.ggml.eos_token_id"),
        "torch_dtype": "bfloat16",
    }


def _family_in(path: Path, metadata: dict[str, Any]) -> tuple[Family, Gguf]:
    architecture = metadata.get("general.architecture")
    known = [(family, family.gguf) for family in FAMILIES if family.gguf is not None]
    has_experts = bool(metadata.get(f"{architecture}.expert_count"))
    found = [each for each in known if each[1].architecture == architecture and each[1].has_experts == has_experts]
    if not found:
        what = f"a GGUF of architecture '{architecture}'" + (" with experts" if has_experts else "")
        raise EngineError(
            f"{path.name} is {what}, which the engine does not load.",
            hint="it loads " + ", ".join(sorted({gguf.architecture for _, gguf in known})),
        )
    return found[0]


# The tensors of a GGUF file under the names that a family's parameters have.
#
# The experts of a layer are one tensor there, [experts, outputs, inputs] ("blk.0.ffn_up_exps.weight"), and one each
# here ("blk.0.ffn_up_exps.3.weight"): so one expert is read at a time, and rows are stacked as everywhere.


_ONE_EXPERT = re.compile(r"(.+_exps)\.(\d+)(\.\w+)")


class StoredRows(NamedTuple):
    """shape: of the values, outermost first. kind: ggml's number of the type. rows: uint8 [..., bytes of a row]."""

    shape: tuple[int, ...]
    kind: int
    rows: np.ndarray


class GgufTensors:
    """The tensors of ``file``, called ``where`` in messages, for ``model``."""

    def __init__(self, file: GgufFile, where: str, model: ModelDescription) -> None:
        self._file, self._where = file, where
        mixtures = {layer.feed_forward.num_experts for layer in model.layers if isinstance(layer.feed_forward, Mixture)}
        self._num_experts = next(iter(mixtures), 0)

    def kind(self, name: str) -> int | None:
        """ggml's number of the type of tensor ``name``; None where the file has none."""
        stored = self._file.tensors.get(_place_of(name)[0])
        return None if stored is None else stored.kind

    def read(self, name: str) -> StoredRows:
        """EngineError where there is no such tensor, or the file ends within it, or has another number of experts."""
        stored, expert = _place_of(name)
        if stored not in self._file.tensors:
            raise EngineError(f"{self._where} holds no tensor '{stored}'.", hint="is it a complete file of this model?")
        tensor, rows = self._file.tensors[stored], self._file.bytes_of(stored)
        shape = tensor.shape[::-1]
        if expert is None:
            return StoredRows(shape, tensor.kind, rows)
        if shape[0] != self._num_experts:
            raise EngineError(
                f"'{stored}' in {self._where} holds {shape[0]} experts, its metadata says {self._num_experts}.",
                hint="download it again",
            )
        return StoredRows(shape[1:], tensor.kind, rows[expert])


def _place_of(name: str) -> tuple[str, int | None]:
    """The tensor of the file that ``name`` is in, and which of its experts; None where it is all of it."""
    found = _ONE_EXPERT.fullmatch(name)
    return (name, None) if found is None else (found[1] + found[3], int(found[2]))


_PLAIN_KINDS = (0, 1, 30)
"""Of ggml's types, float32, float16 and bfloat16: all others have scales."""
_ONE_ROW = "ffn_gate_inp_shexp.weight"
"""The shared expert's gate, whose one row is stored as a vector."""


def open_gguf(model: ModelDescription, path: Path) -> Checkpoint:
    """EngineError where ``path`` is damaged, or holds what the engine does not read."""
    from gguf import GGMLQuantizationType, dequantize

    gguf = family_of(model.architecture).gguf
    assert gguf is not None, "read_gguf_config knows no other families"
    file = read_gguf(path)
    if "rope_freqs.weight" in file.tensors:
        raise EngineError(f"{path.name} stores scaled RoPE frequencies, which the engine does not read yet.")

    tensors = GgufTensors(file, path.name, model)

    def read(name: str) -> torch.Tensor:
        shape, kind, rows = tensors.read(name)
        try:
            widened = dequantize(rows, GGMLQuantizationType(kind))
        except NotImplementedError:
            raise EngineError(f"'{name}' is stored in {GGMLQuantizationType(kind).name}, not in weights.") from None
        values = np.array(widened.reshape(shape))  # a copy: unquantised tensors are read-only views of the mapped file
        if kind not in _PLAIN_KINDS and not np.isfinite(values).all():
            raise EngineError(f"'{name}' has scales that are no numbers.", hint="download it again")
        if gguf.norms_as_used and name.endswith("norm.weight"):
            values -= 1
        if name.endswith(_ONE_ROW) and values.ndim == 1:
            values = values.reshape(1, -1)
        num_heads = _heads_of_pairs(name, gguf, model)
        return torch.from_numpy(values if num_heads is None else _halves_of_heads(values, num_heads))

    is_quantised = any(tensor.kind in BLOCK_FORMATS for tensor in file.tensors.values())
    blocks = _GgufBlocks(tensors, gguf, model) if is_quantised else None
    return Checkpoint(path.name, stored_parameters(model, gguf.names), read, blocks)


class _GgufBlocks:
    """The tensors of a GGUF file in ggml's blocks."""

    def __init__(self, tensors: GgufTensors, gguf: Gguf, model: ModelDescription) -> None:
        self._tensors, self._gguf, self._model = tensors, gguf, model

    def format_of(self, name: str, num_inputs: int) -> WeightFormat | None:
        """See QuantisedReader.format_of."""
        kind = self._tensors.kind(name)
        blocks = None if kind is None else BLOCK_FORMATS.get(kind)
        return None if blocks is None or num_inputs % blocks.values else blocks.held

    def read(self, name: str) -> QuantisedWeight:
        """See QuantisedReader.read."""
        _, kind, rows = self._tensors.read(name)
        weight = BLOCK_FORMATS[kind].read(rows)
        num_heads = _heads_of_pairs(name, self._gguf, self._model)
        if num_heads is None:
            return weight
        return weight.with_rows(lambda rows: torch.from_numpy(_halves_of_heads(rows.numpy(), num_heads)))


def _heads_of_pairs(name: str, gguf: Gguf, model: ModelDescription) -> int | None:
    """How many heads the rows of tensor ``name`` are, if pairs that rotate together lie side by side in each."""
    if not gguf.pairs_side_by_side:
        return None
    attention = uniform_attention(model)
    assert attention is not None, "the families that have it are uniform"
    query, key, _ = gguf.names.qkv
    return {query: attention.num_heads, key: attention.num_kv_heads}.get(name.split(".")[-2])


def _halves_of_heads(values: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of heads with pairs side by side as Hugging Face stores them: the first of all pairs, then the second.

    EngineError where the rows are no whole pairs for every head.
    """
    rows = values.shape[0]
    if not rows or rows % (2 * num_heads):
        raise EngineError(
            f"a GGUF file has {rows:,} rows for {num_heads} heads, no whole pairs.", hint="download it again"
        )
    pairs = values.reshape(num_heads, rows // num_heads // 2, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(values.shape))
