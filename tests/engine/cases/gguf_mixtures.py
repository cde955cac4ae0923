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
from gguf_files import metadata_of, random_blocks, written_file
from quantised_checkpoints import QuantisedCheckpoint
from quantised_mixtures import MIXTURES

_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64} | {
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
}
_LAYER_TYPES = ["sliding_attention", "full_attention"]


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
    said = {key: value for key, value in (_metadata(file, config) | extra).items() if _is_kept(key, without)}
    with written_file(path, file.architecture, said) as writer:
        for stored, view in _views(model, file.architecture):
            if _is_kept(stored, without):
                _add_tensor(writer, stored, view, file.kinds)
    return QuantisedCheckpoint(path, model)


def _is_kept(name: str, without: str) -> bool:
    return not without or not name.endswith(without)


def _metadata(file: AsGguf, config: Any) -> dict[str, Any]:
    count = getattr(config, "num_local_experts", None) or config.num_experts
    values = metadata_of(config) | {"rope.freq_base": float(config.rope_parameters["rope_theta"])}
    values |= {"expert_count": count, "expert_used_count": config.num_experts_per_tok}
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
    packed = gguf.quantize(values, kind) if kind not in _NOT_PACKED else _in_blocks(values, kind)
    writer.add_tensor(stored, packed, raw_dtype=kind)
    view.copy_(torch.from_numpy(np.array(gguf.dequantize(packed, kind))).reshape(view.shape))


_NOT_PACKED = (Kind.Q4_K, Kind.Q6_K)
"""Formats that the package reads alone: their codes are drawn."""


def _in_blocks(values: np.ndarray, kind: Kind) -> np.ndarray:
    blocks = random_blocks(kind, int(np.prod(values.shape[:-1])), values.shape[-1])
    return blocks.reshape(*values.shape[:-1], -1)
