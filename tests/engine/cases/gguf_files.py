"""Random models of transformers written as GGUF files, with the gguf package's names and llama.cpp's conventions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from dense_models import DenseCheckpoint
from small_models import DENSE, SIZES, WINDOWED, Dense


@dataclass(frozen=True, slots=True)
class AsGguf:
    """model: in the tables of small models, with ``values`` besides. extra: metadata below the architecture's name.

    plus_one: norms' weights have 1 added. permuted: query and key rows that turn together lie side by side. blocks:
    ggml's type of each tensor that is stored in random blocks, by the end of its name.
    """

    architecture: str
    model: Dense
    extra: dict[str, Any] = field(default_factory=dict)
    plus_one: bool = False
    permuted: bool = False
    blocks: dict[str, gguf.GGMLQuantizationType] = field(default_factory=dict)


_GEMMA = {"attention.sliding_window": 20, "attention.key_length": 24}
_PERIOD = {"layer_types": ["sliding_attention"] * 5 + ["full_attention"], "num_hidden_layers": 6}
_Types = gguf.GGMLQuantizationType
_IN_BLOCKS = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4}
FILES: dict[str, AsGguf] = {
    "q4_k_m": AsGguf(
        "llama",
        Dense("LlamaConfig", SIZES | _IN_BLOCKS | {"num_key_value_heads": 2, "max_position_embeddings": 128}),
        {"rope.dimension_count": 64},
        permuted=True,
        blocks={f"{part}_proj.weight": _Types.Q4_K for part in ("q", "k", "o", "gate", "up")}
        | {"v_proj.weight": _Types.Q6_K, "down_proj.weight": _Types.Q5_K, "lm_head.weight": _Types.Q6_K}
        | {"0.self_attn.k_proj.weight": _Types.Q5_0, "1.mlp.down_proj.weight": _Types.Q5_1},
    ),
    "gemma2": AsGguf(
        "gemma2",
        Dense(
            "Gemma2Config",
            WINDOWED["gemma2"].values
            | {"query_pre_attn_scalar": 24, "layer_types": ["sliding_attention", "full_attention"] * 2}
            | {"num_hidden_layers": 4},
        ),
        _GEMMA | {"attn_logit_softcapping": 8.0, "final_logit_softcapping": 12.0},
        plus_one=True,
    ),
    "gemma3": AsGguf(
        "gemma3",
        Dense("Gemma3TextConfig", WINDOWED["gemma3"].values | _PERIOD | {"query_pre_attn_scalar": 24}),
        _GEMMA | {"rope.freq_base": 1e6},
        plus_one=True,
    ),
    "granite": AsGguf(
        "granite",
        Dense("GraniteConfig", DENSE["granite"].values | {"attention_bias": False, "mlp_bias": False}),
        {"attention.scale": 0.2, "embedding_scale": 3.0, "residual_scale": 0.6, "logit_scale": 2.0},
        permuted=True,
    ),
    "olmo2": AsGguf("olmo2", DENSE["olmo2"]),
    "phi3": AsGguf("phi3", DENSE["phi3"], {"attention.sliding_window": 24, "rope.dimension_count": 16}),
}


class GgufCheckpoint(DenseCheckpoint):
    """A saved random model: ``path`` of the GGUF file for the engine, ``model`` for transformers."""

    def __init__(self, name: str, folder: Path) -> None:
        file = FILES[name]
        super().__init__(name, folder, {name: file.model})
        self.path = folder / f"{name}.gguf"
        with written_file(self.path, file.architecture, metadata_of(self.model.config) | file.extra) as writer:
            _add_tensors(writer, file, self.model)


def metadata_of(config: Any) -> dict[str, Any]:
    """What every file says below its architecture's name."""
    return {
        "block_count": config.num_hidden_layers,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "context_length": config.max_position_embeddings,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
    }


@contextmanager
def written_file(path: Path, architecture: str, metadata: Mapping[str, Any]) -> Iterator[gguf.GGUFWriter]:
    """Write what is added in the block, behind ``metadata`` below the architecture's name."""
    writer = gguf.GGUFWriter(str(path), architecture)
    adds = {float: writer.add_float32, int: writer.add_uint32, str: writer.add_string}
    for key, value in metadata.items():
        adds[type(value)](f"{architecture}.{key}", value)
    yield writer
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tensors(writer: gguf.GGUFWriter, file: AsGguf, model: torch.nn.Module) -> None:
    config = model.config
    architecture = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == file.architecture)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.float().numpy()
        if file.plus_one and name.endswith("norm.weight"):
            values = values + 1
        if file.permuted and ("q_proj" in name or "k_proj" in name):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
            values = halves.swapaxes(1, 2).reshape(values.shape)
        stored = names.get_name(name, try_suffixes=(".weight",))
        assert stored is not None, name
        kinds = [kind for end, kind in file.blocks.items() if name.endswith(end)]
        if not kinds:
            writer.add_tensor(stored, np.ascontiguousarray(values))
            continue
        blocks = random_blocks(kinds[-1], *values.shape)
        writer.add_tensor(stored, blocks, raw_dtype=kinds[-1])
        meant = gguf.dequantize(blocks, kinds[-1])
        if file.permuted and ("q_proj" in name or "k_proj" in name):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            meant = meant.reshape(heads, -1, 2, meant.shape[1]).swapaxes(1, 2).reshape(meant.shape)
        tensor.copy_(torch.from_numpy(meant))


_HALVES = {_Types.Q4_K: (0, 2), _Types.Q5_K: (0, 2), _Types.Q6_K: (208,), _Types.Q5_1: (0, 2)}
"""Where a block has numbers in half precision; at its beginning where nothing else is said."""


def random_blocks(kind: gguf.GGMLQuantizationType, num_rows: int, num_inputs: int) -> np.ndarray:
    """uint8 [num_rows, bytes of a row]: any codes, and scales for values of about the inputs' number to -0.5."""
    rng = np.random.default_rng(kind)
    values, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (num_rows * num_inputs // values, num_bytes), dtype=np.uint8)
    first = _HALVES.get(kind, (0,))
    for at in first:
        scales = rng.uniform(0.5, 1.5, len(blocks)) * rng.choice([-1, 1], len(blocks))
        blocks[:, at : at + 2] = scales.astype(np.float16).view(np.uint8).reshape(-1, 2)
    size = gguf.dequantize(blocks, kind).std() * num_inputs**0.5
    for at in first:
        halves = blocks[:, at : at + 2].copy().view(np.float16) / size
        blocks[:, at : at + 2] = halves.astype(np.float16).view(np.uint8)
    return blocks.reshape(num_rows, -1)
