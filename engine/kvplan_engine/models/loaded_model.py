"""A model's weights on a device, with the kernels that compute it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kvplan_engine.attention.backend import AttentionBackend
from kvplan_engine.attention.cuda import CudaBackend
from kvplan_engine.attention.select import select_backend
from kvplan_engine.checkpoints.config import ModelConfig, load_model_config
from kvplan_engine.checkpoints.gguf import fill_from_gguf, read_gguf_config
from kvplan_engine.checkpoints.loading import (
    Weights,
    allocate_weights,
    fill_dummy,
    fill_from_safetensors,
    weight_bytes,
    weight_fingerprint,
)
from kvplan_engine.config import EngineConfig
from kvplan_engine.device.device import Device
from kvplan_engine.errors import EngineError
from kvplan_engine.kernels import torch_ops
from kvplan_engine.kernels.cpu import ops as compiled_ops
from kvplan_engine.kernels.cuda.driver import current_runtime
from kvplan_engine.kernels.cuda.ops import CudaOps
from kvplan_engine.kernels.interface import Ops
from kvplan_engine.models.decoder import Decoder

logger = logging.getLogger("kvplan_engine")


@dataclass(frozen=True, slots=True)
class Kernels:
    """What computes everything but the matrix products: attention, and the operations around it."""

    attention: AttentionBackend
    ops: Ops


def select_kernels(name: str, device: torch.device, dtype: torch.dtype) -> Kernels:
    """The kernels called ``name`` (see ``select_backend``) with the operations that go with them."""
    attention = select_backend(name, device, dtype)
    if attention.name == "cuda":
        return Kernels(attention, CudaOps(current_runtime()))
    return Kernels(attention, torch_ops if attention.name == "reference" else compiled_ops)


class LoadedModel:
    """A model's config and weights on a device; stays while pools come and go. is_dummy: the values mean nothing."""

    def __init__(self, config: EngineConfig, source: Any, device: Device, dtype_of: Any) -> None:
        is_gguf = isinstance(source, (str, Path)) and str(source).endswith(".gguf")
        self.config: ModelConfig = load_model_config(read_gguf_config(Path(source)) if is_gguf else source)
        self.dtype: str = dtype_of(self.config.dtype)
        torch_dtype = getattr(torch, self.dtype)
        self.weights: Weights = allocate_weights(self.config, torch_dtype, device.torch_device)
        self.weight_bytes = weight_bytes(self.weights)
        self.is_dummy = self._fill(config, source, is_gguf)
        self.weight_fingerprint = weight_fingerprint(self.weights)  # of all, before the decoder packs most of them
        kernels = select_kernels(config.attention_backend, device.torch_device, torch_dtype)
        self.ops = kernels.ops
        self.attention = kernels.attention
        self.decoder = Decoder(self.config, self.weights, self.attention, self.ops)
        self._scalar = torch_dtype

    def _fill(self, config: EngineConfig, source: Any, is_gguf: bool) -> bool:
        """Give the weights their values, by ``load_format``; whether they are dummies."""
        wanted = config.load_format
        folder = Path(source) if isinstance(source, (str, Path)) and Path(source).is_dir() else None
        if wanted == "gguf" and not is_gguf:
            raise EngineError(f"load_format 'gguf' needs a .gguf file, got '{source}'.")
        if wanted == "safetensors" and folder is None:
            raise EngineError(f"load_format 'safetensors' needs a directory with safetensors, got '{source}'.")
        if is_gguf and wanted in ("auto", "gguf"):
            fill_from_gguf(self.weights, self.config, Path(source))
        elif folder is not None and (
            wanted == "safetensors" or (wanted == "auto" and any(folder.glob("*.safetensors")))
        ):
            fill_from_safetensors(self.weights, self.config, folder)
        else:
            if wanted == "auto":
                logger.warning("no weights found: running with dummy weights (shapes and speed are right, text is not)")
            fill_dummy(self.weights, self.config, config.seed)
            return True
        return False

    def reserve_decode(self, kv: torch.Tensor, max_num_seqs: int) -> None:
        """Let the CUDA attention compile and make what decode steps need, so that they can be captured."""
        if isinstance(self.attention, CudaBackend):
            heads, window = self.config.num_heads, self.config.window_tokens
            self.attention.forget_retired()
            self.attention.reserve(self._scalar, kv, heads, max_num_seqs, windows=(window,))
