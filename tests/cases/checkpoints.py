"""Checkpoints of the right shape and size without weights: safetensors headers before files that are all hole."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from tiny_configs import llama_config

_SIZES = {"F32": 4, "I32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "U8": 1}

LLAMA: dict[str, Any] = llama_config(max_position_embeddings=256, tie_word_embeddings=False, torch_dtype="bfloat16")

Tensors = dict[str, tuple[str, tuple[int, ...]]]


def llama_tensors(config: Mapping[str, Any], stored: str = "BF16", *, head: bool = True) -> Tensors:
    """Names, types and shapes as a published Llama has them."""
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    kv = hidden * config["num_key_value_heads"] // config["num_attention_heads"]
    shapes = {"model.embed_tokens": (vocab, hidden), "model.norm": (hidden,)}
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        shapes |= {f"{layer}.self_attn.{name}_proj": (hidden, hidden) for name in "qo"}
        shapes |= {f"{layer}.self_attn.{name}_proj": (kv, hidden) for name in "kv"}
        shapes |= {f"{layer}.mlp.{name}_proj": (inner, hidden) for name in ("gate", "up")}
        shapes |= {f"{layer}.mlp.down_proj": (hidden, inner)}
        shapes |= {f"{layer}.{name}_layernorm": (hidden,) for name in ("input", "post_attention")}
    if head:
        shapes["lm_head"] = (vocab, hidden)
    return {f"{name}.weight": (stored, shape) for name, shape in shapes.items()}


def num_bytes(tensors: Tensors) -> int:
    return sum(_SIZES[kind] * prod(shape) for kind, shape in tensors.values())


def write_file(path: Path, tensors: Tensors) -> None:
    header, offset = {}, 0
    for name, (kind, shape) in tensors.items():
        size = _SIZES[kind] * prod(shape)
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    content = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(len(content).to_bytes(8, "little") + content)
    os.truncate(path, 8 + len(content) + offset)


def write_checkpoint(
    folder: Path, config: Mapping[str, Any], tensors: Tensors, *, shards: int = 1, index: bool = True
) -> Path:
    """A directory as the hub has it: config.json, weights in ``shards`` files and, with several, their index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if shards == 1:
        write_file(folder / "model.safetensors", tensors)
        return folder
    names = list(tensors)
    weight_map = {}
    for number in range(shards):
        own = names[number::shards]
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        write_file(folder / file, {name: tensors[name] for name in own})
        weight_map |= dict.fromkeys(own, file)
    if index:
        document = {"metadata": {"total_size": num_bytes(tensors)}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(document), encoding="utf-8")
    return folder
