"""Small quantised checkpoints, packed here by the formats' published layouts, and the same weights in transformers.

The packers share nothing with the readers: each code is put in its place one by one, as the formats' own tools do.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from float4_packers import pack_llm_int8, pack_mxfp4, pack_nf4, pack_nvfp4
from safetensors.torch import save_file
from small_models import VOCAB_SIZE

Packed = tuple[dict[str, torch.Tensor], torch.Tensor]
"""What stands in the checkpoint instead of a weight, by leaf, and the weight that it means."""

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def _codes(weight: torch.Tensor, group: int, bits: int, *, symmetric: bool) -> tuple[np.ndarray, ...]:
    """codes and zeros as whole numbers, scales in float16: [out, in], [out, groups], [out, groups]."""
    groups = weight.numpy().reshape(weight.shape[0], -1, group)
    most = 2**bits - 1
    if symmetric:
        scales = np.abs(groups).max(axis=2) / (most // 2)
        zeros = np.full(scales.shape, 2 ** (bits - 1))
    else:
        least = np.minimum(groups.min(axis=2), 0)
        scales = (np.maximum(groups.max(axis=2), 0) - least) / most
        zeros = np.clip(np.round(-least / scales), 1, most)
    scales = scales.astype(np.float16)
    codes = np.clip(np.round(groups / scales[..., None].astype(np.float32) + zeros[..., None]), 0, most)
    return codes.reshape(weight.shape).astype(np.int64), zeros.astype(np.int64), scales


def _value(codes: np.ndarray, zeros: np.ndarray, scales: np.ndarray, group_of: np.ndarray) -> torch.Tensor:
    wide = (codes - zeros[:, group_of]) * scales[:, group_of].astype(np.float64)
    return torch.from_numpy(wide.astype(np.float32))


def _words(codes: np.ndarray, bits: int, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """[n, m] to int32 [n, m x bits / 32]: code ``order[i]`` of each word at its i-th bits."""
    number = 32 // bits
    words = np.zeros((codes.shape[0], codes.shape[1] // number), dtype=np.uint64)
    for column in range(words.shape[1]):
        for i in range(number):
            source = column * number + (i if order is None else order[i])
            words[:, column] |= codes[:, source].astype(np.uint64) << np.uint64(bits * i)
    return torch.from_numpy(words.astype(np.uint32).view(np.int32))


def pack_gptq(weight: torch.Tensor, section: dict[str, Any]) -> Packed:
    inputs = weight.shape[1]
    bits, group, rng = section["bits"], section["group_size"], np.random.default_rng(inputs)
    order = rng.permutation(inputs) if section["desc_act"] else np.arange(inputs)
    group_of = np.empty(inputs, dtype=np.int64)
    group_of[order] = np.arange(inputs) // group
    sorted_codes, zeros, scales = _codes(weight[:, torch.from_numpy(order)], group, bits, symmetric=section["sym"])
    codes = np.empty_like(sorted_codes)
    codes[:, order] = sorted_codes
    tensors = {
        "qweight": _words(codes, bits).t().contiguous(),
        "qzeros": _words((zeros - 1).T, bits).contiguous(),
        "scales": torch.from_numpy(scales.T.copy()),
        "g_idx": torch.from_numpy(group_of.astype(np.int32)),
    }
    return tensors, _value(codes, zeros, scales, group_of)


def pack_awq(weight: torch.Tensor, section: dict[str, Any]) -> Packed:
    group = section["group_size"]
    codes, zeros, scales = _codes(weight, group, 4, symmetric=False)
    tensors = {
        "qweight": _words(codes.T, 4, AWQ_ORDER),
        "qzeros": _words(zeros.T, 4, AWQ_ORDER),
        "scales": torch.from_numpy(scales.T.copy()),
    }
    return tensors, _value(codes, zeros, scales, np.arange(weight.shape[1]) // group)


def pack_compressed(weight: torch.Tensor, section: dict[str, Any]) -> Packed:
    """int4 and int8 in words, with and without zero points; int8 in bytes with a scale for each output."""
    options = section["config_groups"]["group_0"]["weights"]
    bits, group = options["num_bits"], options.get("group_size") or weight.shape[1]
    codes, zeros, scales = _codes(weight, group, bits, symmetric=options["symmetric"])
    meant = _value(codes, zeros, scales, np.arange(weight.shape[1]) // group)
    tensors = {"weight_scale": torch.from_numpy(scales)}
    if section["format"] == "int-quantized":
        return tensors | {"weight": torch.from_numpy((codes - 128).astype(np.int8))}, meant
    tensors |= {"weight_packed": _words(codes, bits), "weight_shape": torch.tensor(weight.shape)}
    if not options["symmetric"]:
        tensors["weight_zero_point"] = _words(zeros.T, bits).t().contiguous()
    return tensors, meant


def pack_fp8(weight: torch.Tensor, section: dict[str, Any]) -> Packed:
    """One scale for the tensor, or one for each block of 128 x 128."""
    block = section.get("weight_block_size")
    if block is None:
        scale = (weight.abs().max() / 448).reshape(1)
        stored = (weight / scale).to(torch.float8_e4m3fn)
        return {"weight": stored, "weight_scale": scale}, stored.float() * scale
    rows, columns = (-(-size // 128) for size in weight.shape)
    scales = torch.empty(rows, columns)
    stored, meant = torch.empty(weight.shape, dtype=torch.float8_e4m3fn), torch.empty_like(weight)
    for row in range(rows):
        for column in range(columns):
            at = slice(row * 128, row * 128 + 128), slice(column * 128, column * 128 + 128)
            scales[row, column] = weight[at].abs().max() / 448
            stored[at] = (weight[at] / scales[row, column]).to(torch.float8_e4m3fn)
            meant[at] = stored[at].float() * scales[row, column]
    return {"weight": stored, "weight_scale_inv": scales}, meant


def _float4(group: int) -> dict[str, Any]:
    return {"num_bits": 4, "group_size": group, "strategy": "tensor_group" if group == 16 else "group", "type": "float"}


def _compressed(stored: str, **weights: Any) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": stored,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"type": "int"} | weights}},
        "ignore": ["lm_head"],
    }


_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
FORMATS: dict[str, tuple[dict[str, Any], Callable[[torch.Tensor, dict[str, Any]], Packed]]] = {
    "gptq": (_GPTQ, pack_gptq),
    "gptq-zeros": (_GPTQ | {"sym": False, "group_size": 128}, pack_gptq),
    "gptq-act-order": (_GPTQ | {"sym": False, "desc_act": True}, pack_gptq),
    "gptq-8-bits": (_GPTQ | {"bits": 8}, pack_gptq),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}, pack_awq),
    "int4": (
        _compressed("pack-quantized", num_bits=4, group_size=128, strategy="group", symmetric=True),
        pack_compressed,
    ),
    "int4-zeros": (
        _compressed("pack-quantized", num_bits=4, group_size=32, strategy="group", symmetric=False),
        pack_compressed,
    ),
    "int8": (_compressed("int-quantized", num_bits=8, strategy="channel", symmetric=True), pack_compressed),
    "fp8": ({"quant_method": "fp8", "activation_scheme": "static"}, pack_fp8),
    "fp8-block": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, pack_fp8),
    "mxfp4": (_compressed("mxfp4-pack-quantized", **_float4(32)), pack_mxfp4),
    "nvfp4": (_compressed("nvfp4-pack-quantized", **_float4(16)), pack_nvfp4),
    "modelopt-nvfp4": ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}, pack_nvfp4),
    "modelopt-fp8": ({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}, pack_fp8),
    "nf4": ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, pack_nf4),
    "llm-int8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, pack_llm_int8),
}


@dataclass(frozen=True, slots=True)
class QuantisedCheckpoint:
    """path: for the engine. model: transformers', with the dequantised weights in float32."""

    path: Path
    model: torch.nn.Module
    shortest: int = 1


def small_llama(seed: int = 0, **changes: Any) -> torch.nn.Module:
    """Wide random weights, so that the next token is decided by more than rounding."""
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "vocab_size": VOCAB_SIZE}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
    ends = {"bos_token_id": 0, "eos_token_id": 0, "tie_word_embeddings": False}
    config = transformers.LlamaConfig(**sizes | heads | ends | changes, attention_bias=True, initializer_range=0.15)
    torch.manual_seed(seed)
    model: torch.nn.Module = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.3 * torch.randn_like(parameter)
    return model


def make_checkpoint(name: str, folder: Path) -> QuantisedCheckpoint:
    """A small Llama in the format called ``name``."""
    section, pack = FORMATS[name]
    model = small_llama()
    tensors = dict(model.state_dict())
    for key, weight in model.state_dict().items():
        if ".layers." in key and key.endswith("_proj.weight"):
            packed, meant = pack(weight, section)
            del tensors[key]
            tensors |= {key.removesuffix("weight") + leaf: tensor for leaf, tensor in packed.items()}
            weight.copy_(meant)
    path = folder / name
    path.mkdir()
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, path / "model.safetensors")
    config = model.config.to_dict() | {"quantization_config": section, "architectures": ["LlamaForCausalLM"]}
    (path / "config.json").write_text(json.dumps(config))
    return QuantisedCheckpoint(path, model)
