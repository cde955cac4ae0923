"""Random models with experts written as GGUF files, with llama.cpp's names, by the gguf package's writer.

What transformers' model computes with is what the package itself makes of the stored bytes, in float32.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from dense_models import randomise
from gguf import GGMLQuantizationType as Kind
from quantised_checkpoints import QuantisedCheckpoint
from quantised_mixtures import MIXTURES

_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64} | {
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
}
_LAYER_TYPES = ["sliding_attention", "full_attention"]
_BLOCK_VALUES = 256


@dataclass(frozen=True, slots=True)
class AsGguf:
    """config: the name of transformers' class, made with ``values``. extra: metadata below the architecture's name.

    kinds: of the stored tensors whose names these expressions find, the first that does; F32 elsewhere.
    """

    architecture: str
    config: str
    values: dict[str, Any]
    kinds: Mapping[str, Kind]
    extra: dict[str, Any] = field(default_factory=dict)


def _config(twin: str, **values: Any) -> tuple[str, dict[str, Any]]:
    class_name, others, _ = MIXTURES[twin]
    return class_name, others | values


_MATRICES = r"blk\.\d+\.(attn|ffn_gate_exps|ffn_up_exps|ffn_down_exps|.*_shexp).*weight"
FILES: dict[str, AsGguf] = {
    # gate and up in two formats, in the second layer: these experts are widened
    "mixtral": AsGguf(
        "llama",
        *_config("mixtral-awq"),
        {
            r"norm|ffn_gate_inp|bias": Kind.F32,
            r"blk\.1\.ffn_up_exps": Kind.Q5_0,
            r"ffn_down": Kind.Q8_0,
            r"attn_v": Kind.F16,
            _MATRICES: Kind.Q4_0,
            r"token_embd": Kind.Q4_1,
        },
    ),
    "qwen2-moe": AsGguf(
        "qwen2moe",
        *_config("qwen2-int4-zeros"),
        {
            r"norm|ffn_gate_inp|bias": Kind.F32,
            r"shexp": Kind.Q5_1,
            r"ffn_down": Kind.Q5_0,
            _MATRICES: Kind.Q4_1,
            r"output": Kind.Q8_0,
        },
        {"expert_shared_feed_forward_length": 96},
    ),
    "qwen3-moe": AsGguf(
        "qwen3moe",
        *_config("qwen3-nvfp4", hidden_size=256, moe_intermediate_size=256, head_dim=64, num_hidden_layers=1),
        {r"norm|ffn_gate_inp|bias": Kind.F32, r"ffn_down": Kind.Q6_K, r"ffn": Kind.Q4_K, _MATRICES: Kind.Q8_0},
        {"attention.key_length": 64},
    ),
    "gpt-oss": AsGguf(
        "gpt-oss",
        *_config("gpt-oss", sliding_window=24, layer_types=_LAYER_TYPES, rope_parameters=_YARN),
        {r"norm|ffn_gate_inp|bias|sinks": Kind.F32, r"exps": Kind.MXFP4, _MATRICES: Kind.Q8_0, r"tok": Kind.BF16},
        {"attention.key_length": 32, "attention.sliding_window": 24, "rope.scaling.type": "yarn"}
        | {"rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64, "rope.freq_base": 1e4},
    ),
    "olmoe": AsGguf(
        "olmoe",
        "OlmoeConfig",
        _config("qwen2-int4-zeros")[1] | {"norm_topk_prob": False},
        {r"norm|ffn_gate_inp": Kind.F32, _MATRICES: Kind.Q8_0},
    ),
}
_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.sinks": "attn_sinks.weight",
    "input_layernorm": "attn_norm",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.router": "ffn_gate_inp",
    "mlp.gate": "ffn_gate_inp",
}


def make_file(name: str, folder: Path, *, without: str = "", **extra: Any) -> QuantisedCheckpoint:
    """``path`` of the file for the engine; the model's weights are those that the package dequantises.

    without: tensors and metadata whose names end so are left out. extra: metadata of other values.
    """
    file = FILES[name]
    torch.manual_seed(list(FILES).index(name))
    config = getattr(transformers, file.config)(**file.values)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    randomise(model)
    path = folder / f"{name}.gguf"
    writer = gguf.GGUFWriter(str(path), file.architecture)
    for key, value in (_metadata(file, config) | extra).items():
        if not without or not key.endswith(without):
            adds = {float: writer.add_float32, int: writer.add_uint32, str: writer.add_string}
            adds[type(value)](f"{file.architecture}.{key}", value)
    for stored, view in _views(model, file.architecture):
        if not without or not stored.endswith(without):
            _add_tensor(writer, stored, view, file.kinds)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return QuantisedCheckpoint(path, model)


def _metadata(file: AsGguf, config: Any) -> dict[str, Any]:
    count = getattr(config, "num_local_experts", None) or config.num_experts
    values = {
        "block_count": config.num_hidden_layers,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "context_length": config.max_position_embeddings,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.freq_base": float(config.rope_parameters["rope_theta"]),
        "expert_count": count,
        "expert_used_count": config.num_experts_per_tok,
    }
    own = getattr(config, "moe_intermediate_size", None) if file.architecture != "gpt-oss" else config.intermediate_size
    return values | ({"expert_feed_forward_length": own} if own else {}) | file.extra


def _views(model: torch.nn.Module, architecture: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Each tensor of the file, and the part of the model's that is the same memory; rows [..., out, in] of matrices."""
    for name, tensor in model.state_dict().items():
        layer = re.match(r"model\.layers\.(\d+)\.", name)
        prefix, inner = (f"blk.{layer[1]}.", name[layer.end() :]) if layer else ("", name)
        if inner.startswith("mlp.experts."):
            yield from _experts(prefix, inner.removeprefix("mlp.experts."), tensor, architecture)
            continue
        part, leaf = (inner, "") if inner in _NAMES else inner.rsplit(".", 1)
        norm = "post_attention_norm" if architecture == "gpt-oss" else "ffn_norm"
        stored = norm if part == "post_attention_layernorm" else _NAMES[part]
        heads = {"attn_q": model.config.num_attention_heads, "attn_k": model.config.num_key_value_heads}.get(stored)
        if architecture == "llama" and heads:  # neighbours turn together
            tensor = tensor.unflatten(0, (heads, 2, -1)).swapaxes(1, 2)
        yield prefix + stored + (f".{leaf}" if leaf else ""), tensor.squeeze(0) if "inp_shexp" in stored else tensor


def _experts(prefix: str, part: str, tensor: torch.Tensor, architecture: str) -> Iterator[tuple[str, torch.Tensor]]:
    leaf = "bias" if part.endswith("_bias") else "weight"
    if architecture == "gpt-oss" and leaf == "weight":
        tensor = tensor.transpose(1, 2)
    if part.startswith("down_proj"):
        yield f"{prefix}ffn_down_exps.{leaf}", tensor
    elif architecture == "gpt-oss":
        yield f"{prefix}ffn_gate_exps.{leaf}", tensor[:, 0::2]
        yield f"{prefix}ffn_up_exps.{leaf}", tensor[:, 1::2]
    else:
        gate, up = tensor.chunk(2, dim=1)
        yield f"{prefix}ffn_gate_exps.{leaf}", gate
        yield f"{prefix}ffn_up_exps.{leaf}", up


def _add_tensor(writer: gguf.GGUFWriter, stored: str, view: torch.Tensor, kinds: Mapping[str, Kind]) -> None:
    """``view`` in its kind, and what that stands for back into it."""
    kind = next((kind for pattern, kind in kinds.items() if re.search(pattern, stored)), Kind.F32)
    shape = view.shape if view.ndim < 4 else (view.shape[:3].numel(), view.shape[3])
    values = np.ascontiguousarray(view.reshape(shape).numpy())
    packed = _random_blocks(values.shape, kind) if kind in _K_BLOCKS else gguf.quantize(values, kind)
    writer.add_tensor(stored, packed, raw_dtype=kind)
    view.copy_(torch.from_numpy(np.array(gguf.dequantize(packed, kind))).reshape(view.shape))


_K_BLOCKS: dict[Kind, tuple[int, dict[int, float]]] = {
    Kind.Q4_K: (144, {0: 6e-4, 2: 5e-3}),
    Kind.Q6_K: (210, {208: 1e-4}),
}
"""Bytes of a block, and where it has numbers in half precision, and how large these are."""


def _random_blocks(shape: tuple[int, ...], kind: Kind) -> np.ndarray:
    """The package packs no K formats: any codes, and scales that are numbers."""
    num_bytes, halves = _K_BLOCKS[kind]
    rng = np.random.default_rng(int(kind))
    count = int(np.prod(shape)) // _BLOCK_VALUES
    blocks = rng.integers(0, 256, (count, num_bytes), dtype=np.uint8)
    for first, size in halves.items():
        numbers = (size * rng.uniform(0.5, 1.0, count)).astype(np.float16)
        blocks[:, first : first + 2] = numbers.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(*shape[:-1], -1)
