"""A ``ModelSpec`` from a GGUF file's header: its metadata in the words of a config, its weights by tensor type.

``gguf_config`` is the config.json that a file was made from, as far as sizes go: each key of its header in the reader's
words. Keys and what each converter writes: ``gguf-py/gguf/constants.py`` and ``conversion/`` of ggml-org/llama.cpp. An
architecture whose header does not say enough is left out of the table of architectures, and refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvplan.catalog.architectures import architectures, by_gguf_name
from kvplan.catalog.checkpoint.stored import StoredCheckpoint, StoredTensor, StoredWeights, merged
from kvplan.catalog.gguf.families import OWN_KEYS
from kvplan.catalog.gguf.header import GgufHeader, GgufTensor, read_gguf_header
from kvplan.catalog.gguf.metadata import GgufModel, read_model
from kvplan.catalog.reader import read_config
from kvplan.catalog.spec import ModelSpec, QuantizationSpec
from kvplan.errors import KvplanError, UnknownArchitectureError

_KEYS = {
    "embedding_length": "hidden_size",
    "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "feed_forward_length": "intermediate_size",
    "attention.key_length": "head_dim",
    "attention.value_length": "v_head_dim",
    "attention.sliding_window": "sliding_window",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "leading_dense_block_count": "first_k_dense_replace",
    "attention.kv_lora_rank": "kv_lora_rank",
    "attention.q_lora_rank": "q_lora_rank",
    "rope.dimension_count": "rotary_dim",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
}
"""Metadata below the architecture's name, and the config key that says the same."""

_PER_LAYER = frozenset({"attention.head_count", "attention.head_count_kv", "feed_forward_length"})
_NONE_IS_ZERO = frozenset({"attention.sliding_window", "expert_count", "expert_used_count"})
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


def gguf_config(header: GgufHeader) -> dict[str, Any]:
    """Return the metadata in the words of a published config. UnknownArchitectureError for one that is not known."""
    name = header.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in by_gguf_name():
        raise UnknownArchitectureError(
            f"Unknown GGUF architecture '{name}'.",
            hint=f"pass the original model's config.json; docs/models.md lists the {len(by_gguf_name())} known names",
        )
    model = read_model(header, name)
    config: dict[str, Any] = {"architectures": [by_gguf_name()[name].architecture], "torch_dtype": _dtype(header)}
    config |= _shared(model)
    for keys in OWN_KEYS.get(name, ()):
        config |= keys(model, config)
    types = architectures()[config["architectures"][0]].model_types
    config["model_type"] = types[0] if types else None
    return {key: value for key, value in config.items() if value is not None}


def _dtype(header: GgufHeader) -> str:
    """What the weights become when they are unpacked: bfloat16 where some are stored so, else float16."""
    return "bfloat16" if any(tensor.type_name == "BF16" for tensor in header.tensors) else "float16"


def _shared(model: GgufModel) -> dict[str, Any]:
    """What most readers ask for, and what only the tensors say: vocabulary, tied head, biases."""
    config: dict[str, Any] = {
        meant: model.one(key) if key in _PER_LAYER else model.keys.config.get(key) for key, meant in _KEYS.items()
    }
    for key in _NONE_IS_ZERO:
        config[_KEYS[key]] = config[_KEYS[key]] or None
    config["num_hidden_layers"] = model.num_layers
    config["num_nextn_predict_layers"] = model.num_multi_token or None
    config["num_local_experts"] = config["num_experts"]
    if model.keys.has("expert_shared_count"):
        count = model.keys.integer("expert_shared_count", minimum=0)
        config["n_shared_experts"] = config["num_shared_experts"] = count
    if config["head_dim"] is None:
        config["v_head_dim"] = None
        # The heads' share of the hidden size, which llama.cpp takes where no key says another.
        heads = model.one("attention.head_count")
        config["head_dim"] = model.keys.integer("embedding_length") // heads or None if heads else None
    config["rope_scaling"] = _rope_scaling(model)
    embedding = model.shapes.get("token_embd.weight")
    if embedding is not None:
        config["vocab_size"] = embedding[-1]
    config["tie_word_embeddings"] = "output.weight" not in model.shapes
    config["attention_bias"] = model.has("attn_q.bias") or model.has("attn_qkv.bias")
    config["mlp_bias"] = model.has("ffn_up.bias")
    return config


def _rope_scaling(model: GgufModel) -> dict[str, Any] | None:
    kind = model.keys.config.get("rope.scaling.type")
    if kind not in ("linear", "yarn"):
        return None
    length = model.keys.optional_integer("rope.scaling.original_context_length")
    scaling = {"rope_type": kind, "factor": model.keys.number("rope.scaling.factor", default=1.0)}
    return scaling if length is None else {**scaling, "original_max_position_embeddings": length}
