"""A model that runs in its class of transformers, as the engine sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    pass
import logging
from collections.abc import Callable, Sequence
from functools import partial

from kvplan_engine.attention.backend import AttentionBackend
from kvplan_engine.checkpoints.loaders import read_config
from kvplan_engine.checkpoints.weights import weight_fingerprint
from kvplan_engine.config import EngineConfig
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.description.parameters import num_parameters
from kvplan_engine.device.device import Device
from kvplan_engine.kernels.cuda.sampling import CudaDraws
from kvplan_engine.kernels.interface import Ops
from kvplan_engine.memory.breakdown import BufferSpec
from kvplan_engine.memory.step_buffers import draw_buffers
from kvplan_engine.memory.workspace import Workspace
from kvplan_engine.models.device_kernels import select_kernels
from kvplan_engine.models.kv_pool import KvPool
from kvplan_engine.models.loaded_model import LoadedModel
from kvplan_engine.models.step_batch import StepBatch
from kvplan_engine.transformers_backend.loading import load_class
from kvplan_engine.transformers_backend.ways import OneByOne, SplitModel, Together, Way, treats_rows_alike

logger = logging.getLogger("kvplan_engine")


class TransformersDecoder:
    """Takes the place of Decoder. The tensors of a step, but for its logits, are transformers' own."""

    layer_run = None

    def __init__(self, split: SplitModel, way: Way) -> None:
        self._split, self.way = split, way
        self._hidden: torch.Tensor | None = None

    def forward(self, batch: StepBatch, kv: KvPool, workspace: Workspace) -> torch.Tensor:
        """See Decoder.forward."""
        self._hidden = None  # not two steps' at once
        self._hidden = self.way.hidden_states(batch, kv)
        logits = workspace["logits"][: batch.sampled_rows.shape[0]]
        if batch.sampled_rows.shape[0]:
            logits.copy_(self._split.logits(self._hidden[batch.sampled_rows]))
        return logits

    def logits_of_rows(self, workspace: Workspace, first: int, last: int) -> torch.Tensor:
        """See Decoder.logits_of_rows."""
        assert self._hidden is not None, "a step comes first"
        return workspace["logits"][: last - first].copy_(self._split.logits(self._hidden[first:last]))


class TransformersModel:
    """Config and weights on a device, run by a class of transformers; stays while pools come and go.

    is_dummy, weight_fingerprint, kernels_name: see EngineModel. ``decoder`` runs the first of ``ways`` until one is
    chosen.
    """

    implementation = "transformers"
    adapters: Any = None  # corrections are the decoder's
    adapter_bytes = 0
    is_capturable = False  # nobody knows what a class does on the host

    def __init__(self, config: EngineConfig, source: Any, device: Device, dtype_of: Callable[[str], str]) -> None:
        self.config: ModelDescription = read_config(source)
        self.dtype: str = dtype_of(self.config.dtype)
        scalar: torch.dtype = getattr(torch, self.dtype)
        model, self.is_dummy = load_class(config, source, self.config, scalar, device.torch_device)
        self.weight_bytes = num_parameters(self.config) * scalar.itemsize
        self.weight_fingerprint = weight_fingerprint(model.state_dict())
        kernels = select_kernels(config.attention_backend, device.torch_device, scalar)
        kernels = kernels.checked(self.config, config, self.dtype)
        self.ops: Ops = kernels.ops
        self.overlap_launches = kernels.overlap_launches
        self.draws: CudaDraws | None = kernels.draws
        self.kernels_name: str | None = kernels.name
        self.attention: AttentionBackend = kernels.attention
        self.split = SplitModel(model)
        self._own_attention = model.config._attn_implementation
        self.decoder: TransformersDecoder

    @property
    def ways(self) -> Sequence[Callable[[], Way]]:
        """How its steps might run, the fastest first; making one raises EngineError where it cannot be right."""
        one_by_one = partial(OneByOne, self.config, self.split, self._own_attention)
        if treats_rows_alike(self.config):
            return (partial(Together, self.config, self.split, self.attention), one_by_one)
        return (one_by_one, partial(one_by_one, by_token=True))

    def run_by(self, way: Way) -> None:
        """Let ``way`` run the steps from now on."""
        self.decoder = TransformersDecoder(self.split, way)

    def use_own_attention(self) -> None:
        """Let the class attend by itself, as before a step set another attention."""
        self.split.model.set_attn_implementation(self._own_attention)

    def reserve_decode(self, kv: KvPool, max_num_seqs: int) -> None:
        """Nothing is captured."""

    def kernel_buffers(self, config: EngineConfig) -> list[BufferSpec]:
        """What choosing tokens takes: the products are torch's."""
        return [] if self.draws is None else draw_buffers(config, self.config)

    def use_workspace(self, workspace: Workspace) -> None:
        """Its layers bring buffers of their own."""

    def release_workspace(self) -> None:
        """There is none to let go of."""


RunnableModel = LoadedModel | TransformersModel
"""What steps run: the engine's decoder, or a class of transformers."""
