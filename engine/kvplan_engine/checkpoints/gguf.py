"""Weights and config of a Llama-family or GPT-2 model from a GGUF file, dequantised to the engine's dtype."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kvplan_engine.checkpoints.config import ModelConfig
from kvplan_engine.checkpoints.loading import Weights, _fill
from kvplan_engine.errors import EngineError

# llama.cpp's tensor names and the Hugging Face names they stand for.
_TOP_LEVEL = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_IN_LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")


def read_gguf_config(path: Path) -> dict[str, Any]:
    """A config.json's keys, from the metadata of a GGUF file. EngineError when it is not one we run."""
    reader = _open(path)
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    architecture = metadata.get("general.architecture")
    if architecture not in _ARCHITECTURES:
        raise EngineError(
            f"{path.name} is a GGUF of architecture '{architecture}', which the engine does not load.",
            hint="it loads " + ", ".join(sorted(_ARCHITECTURES)),
        )
    tensor_names = {tensor.name for tensor in reader.tensors}
    embedding = next(tensor for tensor in reader.tensors if tensor.name == "token_embd.weight")

    def number(key: str) -> Any:
        return metadata[f"{architecture}.{key}"]

    return {
        "architectures": [_ARCHITECTURES[architecture]],
        "num_hidden_layers": number("block_count"),
        "hidden_size": number("embedding_length"),
        "intermediate_size": number("feed_forward_length"),
        "num_attention_heads": number("attention.head_count"),
        "num_key_value_heads": metadata.get(f"{architecture}.attention.head_count_kv"),
        "head_dim": metadata.get(f"{architecture}.attention.key_length"),
        "rms_norm_eps": number("attention.layer_norm_rms_epsilon"),
        "rope_theta": metadata.get(f"{architecture}.rope.freq_base"),
        "max_position_embeddings": number("context_length"),
        "vocab_size": int(embedding.shape[1]),
        "tie_word_embeddings": "output.weight" not in tensor_names,
        "attention_bias": architecture == "llama" and "blk.0.attn_q.bias" in tensor_names,
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id"),
        "torch_dtype": "bfloat16",
    }


def fill_from_gguf(weights: Weights, config: ModelConfig, path: Path) -> None:
    """Dequantise every tensor of ``path`` into ``weights``."""
    from gguf import dequantize

    tensors = {tensor.name: tensor for tensor in _open(path).tensors}
    if "rope_freqs.weight" in tensors:
        raise EngineError(f"{path.name} stores scaled RoPE frequencies, which the engine does not read yet.")

    def read(name: str) -> torch.Tensor:
        stored = tensors[_gguf_name(name)]
        values = dequantize(stored.data, stored.tensor_type)
        # a copy: unquantised tensors are read-only views of the mapped file
        values = np.array(values.reshape([int(extent) for extent in reversed(stored.shape)]))
        if config.family in ("llama", "mistral") and ("q_proj" in name or "k_proj" in name):
            values = _unpermute(values, config.num_heads if "q_proj" in name else config.num_kv_heads)
        return torch.from_numpy(values)

    _fill(weights, config, read, path.name)


def _gguf_name(name: str) -> str:
    match = _LAYER.fullmatch(name)
    if match:
        return f"blk.{match[1]}.{_IN_LAYER[match[2]]}.{match[3]}"
    stem, _, kind = name.rpartition(".")
    return f"{_TOP_LEVEL[stem]}.{kind}"


def _unpermute(values: np.ndarray, num_heads: int) -> np.ndarray:
    """llama.cpp stores Llama's query and key rows with RoPE pairs side by side; Hugging Face as two halves per head."""
    rows = values.shape[0]
    pairs = values.reshape(num_heads, rows // num_heads // 2, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(values.shape))


def _open(path: Path) -> Any:
    from gguf import GGUFReader

    try:
        return GGUFReader(str(path))
    except (OSError, ValueError, IndexError) as problem:
        raise EngineError(f"{path} is not a readable GGUF file: {problem}.") from None
