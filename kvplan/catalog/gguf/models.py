"""From a GGUF file's header to a ``ModelSpec``: its metadata in the words of a config, its weights by tensor type."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvplan.catalog.checkpoint.stored import StoredCheckpoint, StoredTensor, StoredWeights, merged
from kvplan.catalog.gguf.config import gguf_config
from kvplan.catalog.gguf.header import GgufHeader, GgufTensor, read_gguf_header
from kvplan.catalog.reader import read_config
from kvplan.catalog.spec import ModelSpec, QuantizationSpec
from kvplan.errors import KvplanError

_LAYER = re.compile(r"blk\.(\d+)\.")
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


def read_gguf(path: Path, *, assumptions: Mapping[str, str] | None = None) -> ModelSpec:
    """The model in a GGUF file, its weights as stored. KvplanError for damaged files and unknown architectures."""
    files = _shards(path)
    headers = [read_gguf_header(part) for part in files]
    metadata = headers[0].metadata
    tensors = tuple(tensor for header in headers for tensor in header.tensors)
    config = gguf_config(GgufHeader(metadata, tensors))
    name = str(metadata.get("general.name") or path.stem)
    spec = read_config(config, model_id=name, source=str(path), assumptions=assumptions)
    # A rotary table is not a parameter: some converters store one, and no formula counts it.
    weights = [tensor for tensor in tensors if not tensor.name.startswith("rope_")]
    own = [tensor for tensor in weights if not _drafts(tensor, spec.num_layers)]
    counted = sum(tensor.num_elements for tensor in own)
    notes = spec.assumptions
    if counted != spec.num_parameters:
        notes = (*notes, f"The file holds {counted:,} weights; the formulas give {spec.num_parameters:,}.")
    drafting = [tensor for tensor in weights if _drafts(tensor, spec.num_layers)]
    stored = replace(_stored(own, spec.num_layers, path, len(files)), multi_token=merged(map(_weights, drafting)))
    return replace(
        spec,
        checkpoint=stored,
        quantization=_average_format(own),
        tokenizer=_base_repository(metadata),
        assumptions=notes,
    )


def _drafts(tensor: GgufTensor, num_layers: int) -> bool:
    """Whether a tensor is of a block behind the layers, which is one for multi-token prediction."""
    match = _LAYER.match(tensor.name)
    return match is not None and int(match.group(1)) >= num_layers


def _weights(tensor: GgufTensor) -> StoredWeights:
    return StoredWeights(tensor.type_name, tensor.num_elements, tensor.num_bytes)


_HUB_PAGE = re.compile(r"https://huggingface\.co/([A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})/?")


def _base_repository(metadata: Mapping[str, Any]) -> str | None:
    """The hub id of the model that the file was made from, where the converter wrote down exactly one."""
    if metadata.get("general.base_model.count", 1) != 1:
        return None
    match = _HUB_PAGE.fullmatch(str(metadata.get("general.base_model.0.repo_url", "")))
    return None if match is None else match.group(1)


def _average_format(tensors: list[GgufTensor]) -> QuantizationSpec | None:
    """The matrices of the layers as one format of fractional bits, for engines that divide weights among ranks."""
    packed = [each for each in tensors if each.name.startswith("blk.") and len(each.shape) > 1]
    elements = sum(each.num_elements for each in packed)
    if not elements:
        return None
    bits = 8 * sum(each.num_bytes for each in packed) / elements
    return QuantizationSpec("gguf", bits, "tensor") if bits < 16 else None


def _shards(path: Path) -> list[Path]:
    """All parts of a split file, in order. KvplanError when one is missing."""
    match = _SHARD.search(path.name)
    if match is None:
        return [path]
    count = int(match.group(2))
    parts = [
        path.with_name(_SHARD.sub(f"-{index:05d}-of-{count:05d}.gguf", path.name)) for index in range(1, count + 1)
    ]
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise KvplanError(f"{len(missing)} of the {count} parts of {path.name} are missing.", hint=f"get {missing[0]}")
    return parts


def _stored(tensors: list[GgufTensor], num_layers: int, path: Path, num_files: int) -> StoredCheckpoint:
    """The weights layer by layer, in the file's own types, which engines keep."""
    layers: list[list[StoredWeights]] = [[] for _ in range(num_layers)]
    outside: list[StoredWeights] = []
    for tensor in tensors:
        match = _LAYER.match(tensor.name)
        part = layers[int(match.group(1))] if match else outside
        part.append(_weights(tensor))
    return StoredCheckpoint(
        source=str(path),
        num_files=num_files,
        num_tensors=len(tensors),
        layers=tuple(map(merged, layers)),
        outside=merged(outside),
        tensors=tuple(StoredTensor(each.name, each.type_name, each.num_elements) for each in tensors),
    )
