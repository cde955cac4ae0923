"""The tensors of an engine and what runs over them: weights, workspace, KV pool, one step."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kvplan_engine.attention.backend import AttentionBackend
from kvplan_engine.attention.cuda import CudaBackend
from kvplan_engine.attention.select import select_backend
from kvplan_engine.batch import INDEX_BUFFERS, BatchBuilder, StepBatch
from kvplan_engine.config import EngineConfig
from kvplan_engine.device.allocation import allocating
from kvplan_engine.device.device import Device
from kvplan_engine.errors import EngineError
from kvplan_engine.graphs import DecodeGraphs, PaddedBatches, ladder_of
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
from kvplan_engine.staging import InputStage, TokensOnTheirWay, TokenStage
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
        stage = None
        if device.is_queued:
            stage = InputStage(device, self.workspace, INDEX_BUFFERS, config.block_size)
        self._batches = BatchBuilder(self.workspace, config.block_size, stage)
        self._tokens = TokenStage(device, config.max_num_seqs)
        self.kv: torch.Tensor | None = None
        self.graphs: DecodeGraphs | None = None
        self._replayed = False  # whether the last step was, and its likeliest tokens chosen with it

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

    def drop_pool(self) -> None:
        """Give the pool back, and the graphs with it, which know where it lies."""
        self.graphs = None
        self.kv = None

    # ---- one step

    def prepare(self, plan: StepPlan, latest: np.ndarray | None = None, before: StepPlan | None = None) -> StepBatch:
        """The step's inputs: see BatchBuilder.build. before: the plan whose tokens are still on their way, if any."""
        batch = self._batches.build(plan, latest)
        if before is not None:
            self._tokens.fill_in(batch.token_ids, plan, before)
        return batch

    def forward(self, batch: StepBatch) -> torch.Tensor:
        """Logits [len(batch.sampled), vocab_size] of one step; its K and V are in the pool afterwards."""
        assert self.kv is not None
        num_seqs = batch.attention.seq_lens.shape[0]
        size = self._graph_size(batch, num_seqs)
        self._replayed = size is not None
        if size is None:
            return self._model.decoder.forward(batch, self.kv, self.workspace)
        assert self.graphs is not None
        self.graphs.replay(num_seqs, size)
        return self.workspace["logits"][:num_seqs]

    def choose_likeliest(self, logits: torch.Tensor, plan: StepPlan) -> TokensOnTheirWay:
        """The likeliest token for each of ``plan.sampled``, kept on the device and sent to the host."""
        number = len(plan.sampled)
        if plan.logits_rows is None:
            if not self._replayed:
                self._model.ops.argmax_rows(logits, self._tokens.chosen[:number])
        else:
            best = self.sampler.likeliest(logits)
            rows = torch.tensor(plan.logits_rows).to(best.device, non_blocking=True)
            torch.index_select(best, 0, rows, out=self._tokens.chosen[:number])
        return self._tokens.send(number)

    # ---- graphs

    @property
    def graph_sizes(self) -> tuple[int, ...]:
        """Sizes at which decode steps are captured: none without a GPU, or with kernels that wait, or if so wanted."""
        if not self.device.is_queued or self._model.attention.name != "cuda" or self._config.enforce_eager:
            return ()
        return ladder_of(self.workspace["logits"].shape[0])

    @property
    def num_graph_replays(self) -> int:
        """Steps that were replayed and not launched op by op."""
        return self.graphs.num_replays if self.graphs is not None else 0

    def capture_graphs(self) -> DecodeGraphs:
        """Capture the decode step at every size of the ladder; OutOfDeviceMemory(phase="graph_capture")."""
        assert self.kv is not None
        sizes = self.graph_sizes
        with allocating("graph_capture"):
            self._model.reserve_decode(self.kv, sizes[-1])
            graphs = DecodeGraphs(self.device, PaddedBatches(self.workspace, sizes[-1]), sizes)
            graphs.capture(self._decode)
        self.graphs = graphs
        return graphs

    def _decode(self, batch: StepBatch) -> None:
        """What is captured: the step and the likeliest token of each row."""
        assert self.kv is not None
        logits = self._model.decoder.forward(batch, self.kv, self.workspace)
        self._model.ops.argmax_rows(logits, self._tokens.chosen[: logits.shape[0]])

    def _graph_size(self, batch: StepBatch, num_seqs: int) -> int | None:
        """The graph for ``batch``: one new token for each sequence, and one to choose. None for any other batch."""
        if self.graphs is None or not batch.num_tokens == num_seqs == len(batch.sampled):
            return None
        return self.graphs.size_for(num_seqs)
