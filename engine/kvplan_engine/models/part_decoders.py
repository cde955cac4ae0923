"""Decoders of a part of the stack: a stage of several, and a layer for multi-token prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from kvplan_engine.checkpoints.weights import Weights
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.device.collectives import Collectives
from kvplan_engine.layers.norm import Norm
from kvplan_engine.layers.projection import StoredWeight, make_projection
from kvplan_engine.memory.workspace import Workspace
from kvplan_engine.models.decoder import Decoder, make_embedding, make_final_norm, make_head, make_layers
from kvplan_engine.models.device_kernels import DeviceKernels
from kvplan_engine.models.kv_pool import KvPool
from kvplan_engine.models.step_batch import StepBatch, StepSpace


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


class JoinedDecoder(Decoder):
    """The layers of ``model.joined``: the token of a batch's row is the one behind the position that the row stands at.

    x = projection([norm(embedding of the next token), norm(hidden)])    the embedding of position 0 is taken for 0
    logits = head(norm(layer(x)))
    """

    def __init__(
        self,
        model: ModelDescription,
        weights: Weights,
        kernels: DeviceKernels,
        owners: Sequence[int] | None,
        target: Decoder,
    ) -> None:
        assert model.joined is not None
        self.model, self._joined = model, model.joined
        norm = model.norm
        self._embedding_norm, self._hidden_norm = (
            Norm(weights, f"joined.{name}", norm.kind, norm.eps, kernels.ops)
            for name in ("embedding_norm", "hidden_norm")
        )
        self._projection = make_projection(kernels.projections, StoredWeight(weights, "joined.projection"))
        self._layers = make_layers(model, weights, kernels, owners or range(model.num_layers))
        self._final_norm = final_norm = make_final_norm(model, weights, kernels)
        self._embed, self._head = target._embed, target._head
        self.layer_run = kernels.make_layer_run(self._layers, final_norm, kernels.adapters)

    def predict(
        self, batch: StepBatch, kv: KvPool, workspace: Workspace, hidden: torch.Tensor, rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [S, vocab_size] behind the S sampled rows of ``batch``, and what each row hands on [S, H].

        hidden: the hidden states among which are those of the batch's positions, ``rows`` [T]. What is handed on is the
        hidden state of the next position, for the token that the logits give. Both lie in the workspace.
        """
        self._join(batch, workspace, hidden, rows)
        stream = self._begin(*(workspace[name][: batch.num_tokens] for name in ("hidden", "normed", "delta")))
        if self.layer_run is not None:
            self.layer_run(batch, kv, workspace)
        else:
            self._run_layers(StepSpace(batch, kv, workspace), stream)
        logits = self._logits(batch, stream.normed, workspace)
        source = stream.normed if self._joined.hands_on_normed else stream.hidden
        handed_on = workspace["last_hidden"][: logits.shape[0]]
        if batch.sampled_attention is None:
            torch.index_select(source, 0, batch.sampled_rows, out=handed_on)
        elif self._joined.hands_on_normed:  # of the sampled rows alone; their hidden states are in last_hidden
            handed_on = source[: logits.shape[0]]
        return logits, handed_on

    def _join(self, batch: StepBatch, workspace: Workspace, read: torch.Tensor, rows: torch.Tensor) -> None:
        """Both inputs, normalised and projected, into ``hidden``."""
        assert self._embed is not None
        hidden, normed, delta = (workspace[name][: batch.num_tokens] for name in ("hidden", "normed", "delta"))
        (joined,) = workspace.scratch((batch.num_tokens, 2 * hidden.shape[1]))
        halves = joined.chunk(2, dim=1)
        of_embedding, of_hidden = reversed(halves) if self._joined.hidden_first else halves
        torch.index_select(read, 0, rows, out=delta)
        self._hidden_norm(delta, normed)
        of_hidden.copy_(normed)
        self._embed(batch, hidden, delta)
        hidden.masked_fill_((batch.positions == 0).unsqueeze(1), 0.0)
        self._embedding_norm(hidden, normed)
        of_embedding.copy_(normed)
        self._projection(joined, hidden)
