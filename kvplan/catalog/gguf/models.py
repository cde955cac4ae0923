"""From a GGUF file's header to a ``ModelSpec``: its metadata in the words of a config, its weights by tensor type."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvplan.catalog.architectures import by_gguf_name
from kvplan.catalog.checkpoint.stored import StoredCheckpoint, StoredTensor, StoredWeights, merged
from kvplan.catalog.gguf.header import GgufHeader, GgufTensor, read_gguf_header
from kvplan.catalog.reader import read_config
from kvplan.catalog.spec import ModelSpec, QuantizationSpec
from kvplan.errors import KvplanError, UnknownArchitectureError

_KEYS = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "v_head_dim",
    "attention.sliding_window": "sliding_window",
    "context_length": "max_position_embeddings",
    "expert_count": "num_local_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "expert_shared_count": "n_shared_experts",
    "leading_dense_block_count": "first_k_dense_replace",
    "attention.kv_lora_rank": "kv_lora_rank",
    "attention.q_lora_rank": "q_lora_rank",
    "rope.dimension_count": "rotary_dim",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
}
"""Metadata below the architecture's name, and the config key that says the same."""

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
    counted = sum(tensor.num_elements for tensor in weights)
    notes = spec.assumptions
    if counted != spec.num_parameters:
        notes = (*notes, f"The file holds {counted:,} weights; the formulas give {spec.num_parameters:,}.")
    stored = _stored(weights, spec.num_layers, path, len(files))
    return replace(
        spec,
        checkpoint=stored,
        quantization=_average_format(weights),
        tokenizer=_base_repository(metadata),
        assumptions=notes,
    )


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
        index = int(match.group(1)) if match else num_layers
        part = layers[index] if index < num_layers else outside
        part.append(StoredWeights(tensor.type_name, tensor.num_elements, tensor.num_bytes))
    return StoredCheckpoint(
        source=str(path),
        num_files=num_files,
        num_tensors=len(tensors),
        layers=tuple(map(merged, layers)),
        outside=merged(outside),
        tensors=tuple(StoredTensor(each.name, each.type_name, each.num_elements) for each in tensors),
    )


def gguf_config(header: GgufHeader) -> dict[str, Any]:
    """The metadata in the words of a published config. UnknownArchitectureError for architectures not listed here."""
    name = header.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in by_gguf_name():
        raise UnknownArchitectureError(
            f"Unknown GGUF architecture '{name}'.",
            hint="pass the config.json of the original model; known: " + ", ".join(sorted(by_gguf_name())),
        )
    config: dict[str, Any] = {"architectures": [by_gguf_name()[name].architecture], "torch_dtype": _dtype(header)}
    for key, meant in _KEYS.items():
        value = header.metadata.get(f"{name}.{key}")
        if value is not None:
            config[meant] = value
    _complete(config, name, {tensor.name: tensor for tensor in header.tensors})
    return config


def _dtype(header: GgufHeader) -> str:
    """What the weights become when they are unpacked: bfloat16 where some are stored so, else float16."""
    return "bfloat16" if any(tensor.type_name == "BF16" for tensor in header.tensors) else "float16"


def _complete(config: dict[str, Any], name: str, tensors: Mapping[str, GgufTensor]) -> None:
    """What only the tensors say: vocabulary, tied head, biases; and keys that other architectures call differently."""
    embedding = tensors.get("token_embd.weight")
    if embedding is not None:
        config["vocab_size"] = embedding.shape[-1]
    config["tie_word_embeddings"] = "output.weight" not in tensors
    has_bias = "blk.0.attn_q.bias" in tensors or "blk.0.attn_qkv.bias" in tensors
    config.setdefault("attention_bias", has_bias)
    if config.get("head_dim") is None:
        config.pop("v_head_dim", None)
    if name == "llama" and config.get("num_local_experts"):
        config["architectures"] = ["MixtralForCausalLM"]
    if name in ("qwen2moe", "qwen3moe", "olmoe"):
        config["num_experts"] = config.get("num_local_experts")
    if name in ("qwen2moe", "qwen3moe"):
        _complete_experts(config)
    if name == "deepseek2":
        _complete_latent(config)
    if name == "gpt-oss":
        config["intermediate_size"] = config.get("moe_intermediate_size", config.get("intermediate_size"))
    if name == "gpt2":
        config |= {"n_positions": config.get("max_position_embeddings"), "n_inner": config.get("intermediate_size")}


def _complete_experts(config: dict[str, Any]) -> None:
    """Sizes that older files leave out, as llama.cpp has them then (src/models/qwen2moe.cpp, 623ac8d, 2026)."""
    size, chosen = config.get("intermediate_size"), config.get("num_experts_per_tok")
    if isinstance(size, int) and isinstance(chosen, int) and chosen:
        config.setdefault("moe_intermediate_size", size // chosen)
        config.setdefault("shared_expert_intermediate_size", size)


def _complete_latent(config: dict[str, Any]) -> None:
    """Latent attention: the key length holds the rotary part, and a load-balancing bias makes it DeepSeek V3."""
    rope = config.get("rotary_dim", 64)
    key, value = config.get("head_dim"), config.get("v_head_dim")
    if isinstance(key, int) and isinstance(rope, int) and key <= 256:
        config |= {"qk_rope_head_dim": rope, "qk_nope_head_dim": key - rope, "v_head_dim": value}
    config["n_routed_experts"] = config.pop("num_local_experts", None)
