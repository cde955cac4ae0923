"""A decoder's part of the stack: what goes in comes from the stage before, and what comes out goes to the next one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from kvplan_engine.checkpoints.weights import Weights
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.device.collectives import Collectives
from kvplan_engine.memory.workspace import Workspace
from kvplan_engine.models.decoder import Decoder, make_embedding, make_final_norm, make_head, make_layers
from kvplan_engine.models.device_kernels import DeviceKernels
from kvplan_engine.models.kv_pool import KvPool
from kvplan_engine.models.step_batch import StepBatch
from kvplan_engine.models.step_space import StepSpace


class StageDecoder(Decoder):
    """The layers of ``model.stage``, with the embedding on the first stage and the head on the last one.

    A step passes through all stages. The logits come back to the first of all ranks, which samples.
    """

    def __init__(
        self,
        model: ModelDescription,
        weights: Weights,
        kernels: DeviceKernels,
        owners: Sequence[int] | None,
        collectives: Collectives,
    ) -> None:
        self.model, self._collectives = model, collectives
        stage, self.layer_run = model.stage, None
        self._layers = make_layers(model, weights, kernels, owners or range(model.num_layers))
        self._final_norm = make_final_norm(model, weights, kernels) if stage.is_last else None
        self._head = make_head(model, weights, kernels) if stage.is_last else None
        self._embed = None
        if stage.is_first:
            table = make_head(model, weights, kernels) if model.tie_word_embeddings else None
            self._embed = make_embedding(model, weights, kernels, table)
        self.attention_parts = [layer.attention for layer in self._layers if layer.attention is not None]

    def forward(self, batch: StepBatch, kv: KvPool, workspace: Workspace) -> torch.Tensor:
        """Compute as Decoder.forward does on the first of all ranks; what others return means nothing."""
        hidden, normed, delta = (workspace[name][: batch.num_tokens] for name in ("hidden", "normed", "delta"))
        if self._embed is None:
            self._collectives.receive_from_last_stage(hidden)
        else:
            self._embed(batch, hidden, delta)
        stream = self._begin(hidden, normed, delta)
        if self._head is None:  # the next stage reads all rows
            batch = replace(batch, sampled_attention=None)
        self._run_layers(StepSpace(batch, kv, workspace), stream)
        logits = workspace["logits"][: batch.sampled_rows.shape[0]]
        if self._head is None:
            self._collectives.send_to_next_stage(hidden)
        else:
            self._logits(batch, stream.normed, workspace)
        if logits.shape[0]:
            self._collectives.bring_to_first(logits)
        return logits

    def logits_of_rows(self, workspace: Workspace, first: int, last: int) -> torch.Tensor:
        """See Decoder.logits_of_rows."""
        logits = workspace["logits"][: last - first]
        if self._head is not None:
            super().logits_of_rows(workspace, first, last)
        self._collectives.bring_to_first(logits)
        return logits
