"""The tensors of an engine and what runs over them: weights, workspace, KV pool, one step."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kvplan_engine.attention.backend import AttentionBackend
from kvplan_engine.attention.select import select_backend
from kvplan_engine.batch import BatchBuilder, StepBatch
from kvplan_engine.config import EngineConfig
from kvplan_engine.device.device import Device
from kvplan_engine.errors import EngineError
from kvplan_engine.kernels import ops as compiled_ops
from kvplan_engine.kernels import torch_ops
from kvplan_engine.kernels.cuda_driver import current_runtime
from kvplan_engine.kernels.cuda_ops import CudaOps
from kvplan_engine.kv_cache import allocate_kv_pool
from kvplan_engine.layers.ops import Ops
from kvplan_engine.memory import workspace_buffers
from kvplan_engine.model_config import ModelConfig, load_model_config
from kvplan_engine.models.decoder import Decoder
from kvplan_engine.models.gguf_loading import fill_from_gguf, read_gguf_config
from kvplan_engine.models.loading import (
    Weights,
    allocate_weights,
    fill_dummy,
    fill_from_safetensors,
    weight_bytes,
    weight_fingerprint,
)
from kvplan_engine.models.rope import fill_rope_table
from kvplan_engine.sampling.sampler import Sampler
from kvplan_engine.step_plan import StepPlan
from kvplan_engine.workspace import Workspace

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


class ModelRunner:
    """One carving of the device's memory: workspace, KV pool, and the step that runs over them."""

    def __init__(self, model: LoadedModel, config: EngineConfig, device: Device, max_model_len: int) -> None:
        self._model = model
        self._config = config
        self.device = device
        self.workspace = Workspace(
            workspace_buffers(
                model.config,
                model.dtype,
                max_num_batched_tokens=config.max_num_batched_tokens,
                max_num_seqs=config.max_num_seqs,
                max_model_len=max_model_len,
                block_size=config.block_size,
            ),
            device.torch_device,
        )
        self._fill_tables()
        self.sampler = Sampler(self.workspace["sampler"], model.config.vocab_size, model.ops, engine_seed=config.seed)
        self._batches = BatchBuilder(self.workspace, config.block_size, staged=device.torch_device.type != "cpu")
        self.kv: torch.Tensor | None = None

    def _fill_tables(self) -> None:
        rope = self._model.config.rope
        if rope is not None:
            fill_rope_table(self.workspace["rope"], rope)

    def touch(self, num_blocks: int) -> None:
        """Have the workspace and ``num_blocks`` blocks backed by physical memory before a step is measured."""
        assert self.kv is not None
        self.workspace.touch()
        self._fill_tables()
        self.kv[:num_blocks].zero_()

    def carve_pool(self, num_blocks: int, kv_dtype: str) -> None:
        """Allocate the pool of ``num_blocks`` blocks."""
        self.kv = allocate_kv_pool(
            self._model.config,
            num_blocks=num_blocks,
            block_size=self._config.block_size,
            dtype=getattr(torch, kv_dtype),
            device=self.device.torch_device,
        )

    def prepare(self, plan: StepPlan) -> StepBatch:
        return self._batches.build(plan)

    def forward(self, batch: StepBatch) -> torch.Tensor:
        """Logits [len(batch.sampled), vocab_size] of one step; its K and V are in the pool afterwards."""
        assert self.kv is not None
        return self._model.decoder.forward(batch, self.kv, self.workspace)
