"""A layer for multi-token prediction: it reads a decoder's hidden states and shares its embedding and head."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvplan_engine.checkpoints.weights import Weights
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.layers.norm import Norm
from kvplan_engine.layers.projection import StoredWeight, make_projection
from kvplan_engine.memory.workspace import Workspace
from kvplan_engine.models.decoder import Decoder, make_final_norm, make_layers
from kvplan_engine.models.device_kernels import DeviceKernels
from kvplan_engine.models.kv_pool import KvPool
from kvplan_engine.models.step_batch import StepBatch
from kvplan_engine.models.step_space import StepSpace


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
        self.attention_parts = [layer.attention for layer in self._layers if layer.attention is not None]
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
