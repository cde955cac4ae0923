"""Random models of transformers written as GGUF files, with the gguf package's names and llama.cpp's conventions."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from dense_models import DENSE, Dense, DenseCheckpoint
from window_models import WINDOWED


@dataclass(frozen=True, slots=True)
class AsGguf:
    """model: in the tables of small models, with ``values`` besides. extra: metadata below the architecture's name.

    plus_one: norms' weights have 1 added. permuted: query and key rows that turn together lie side by side.
    """

    architecture: str
    model: Dense
    extra: dict[str, Any] = field(default_factory=dict)
    plus_one: bool = False
    permuted: bool = False


_GEMMA = {"attention.sliding_window": 20, "attention.key_length": 24}
_PERIOD = {"layer_types": ["sliding_attention"] * 5 + ["full_attention"], "num_hidden_layers": 6}
FILES: dict[str, AsGguf] = {
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
        writer = gguf.GGUFWriter(str(self.path), file.architecture)
        _add_metadata(writer, file, self.model.config)
        _add_tensors(writer, file, self.model)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def _add_metadata(writer: gguf.GGUFWriter, file: AsGguf, config: Any) -> None:
    numbers = {
        "block_count": config.num_hidden_layers,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "context_length": config.max_position_embeddings,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
    }
    for key, value in (numbers | file.extra).items():
        add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        add(f"{file.architecture}.{key}", value)


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
        writer.add_tensor(stored, np.ascontiguousarray(values))
