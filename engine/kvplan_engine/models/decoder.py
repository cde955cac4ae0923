"""The decoder that all families share: embed, then per layer attention and MLP around one residual stream.

    hidden, normed, delta  [T, H] each: see ResidualStream
    scratch                qkv [T, (hq + 2 hkv) d] and attention output [T, hq d]; then the MLP's inner activations

Every product writes into a buffer of the workspace: a step allocates nothing that grows with the batch. Families differ
in their ModelDescription, and in what their weights hold (``checkpoints/families``).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from kvplan_engine.checkpoints.weights import Weights
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.layers.norm import Norm
from kvplan_engine.layers.projection import Projection, StoredWeight, make_projection
from kvplan_engine.memory.breakdown import rope_tables
from kvplan_engine.memory.workspace import Workspace
from kvplan_engine.models.decoder_layer import DecoderLayer
from kvplan_engine.models.device_kernels import DeviceKernels
from kvplan_engine.models.kv_pool import KvPool
from kvplan_engine.models.layer_end_part import LayerInputsPart
from kvplan_engine.models.mixers.attention_part import AttentionPart
from kvplan_engine.models.residual_stream import Embedding, ResidualStream
from kvplan_engine.models.step_batch import StepBatch, StepSpace


class Decoder:
    """A model with its weights; ``forward`` computes one step over the paged pool.

    Weights that a projection keeps in a layout of its own are removed from ``weights``, so that none is held twice.
    owners: for each layer the one whose weights it uses, None where every layer has its own. EngineError where the
    attention backend lacks an option of the model's attention. layers_seconds: what the layers of the last step took on
    the host.
    """

    layers_seconds = 0.0
    _num_run: int | None = None  # the first so many layers alone; None: all

    def __init__(
        self, model: ModelDescription, weights: Weights, kernels: DeviceKernels, owners: Sequence[int] | None = None
    ) -> None:
        self.model = model
        self._layers = make_layers(model, weights, kernels, owners or range(model.num_layers))
        final_norm = make_final_norm(model, weights, kernels)
        self._final_norm: Norm | None = final_norm
        self._head: Projection | None = make_head(model, weights, kernels)
        self._embed: Embedding | None = make_embedding(model, weights, kernels, self._head)
        inputs = model.layer_inputs
        self._layer_inputs = None if inputs is None else LayerInputsPart(inputs, model, weights, kernels)
        self.layer_run = kernels.make_layer_run(self._layers, final_norm, kernels.adapters)

    @property
    def attention_parts(self) -> list[AttentionPart]:
        """Attention over keys and values of each KV head, of the layers that have it."""
        return [layer.attention for layer in self._layers if layer.attention is not None]

    @property
    def launches_each_expert(self) -> bool:
        """Whether what a layer launches grows with its experts."""
        parts = (layer.feed_forward for layer in self._layers)
        return any(part.launches_each_expert for part in parts if part is not None)

    def forward(self, batch: StepBatch, kv: KvPool, workspace: Workspace) -> torch.Tensor:
        """Logits [len(batch.sampled), vocab_size] in the workspace; the step's K and V are in ``kv`` afterwards."""
        hidden, normed, delta = (workspace[name][: batch.num_tokens] for name in ("hidden", "normed", "delta"))
        assert self._embed is not None
        self._embed(batch, hidden, delta)
        if self._layer_inputs is not None:
            self._layer_inputs(batch, hidden, workspace)
        stream = self._begin(hidden, normed, delta)
        started = time.perf_counter()
        if self.layer_run is not None:
            self.layer_run(batch, kv, workspace, self._num_run)
        else:
            self._run_layers(StepSpace(batch, kv, workspace), stream)
        self.layers_seconds = time.perf_counter() - started
        return self._logits(batch, stream.normed, workspace)

    @contextmanager
    def shortened(self, num_layers: int) -> Iterator[None]:
        """Let steps run the first ``num_layers`` layers alone. Their logits mean nothing."""
        self._num_run = num_layers
        try:
            yield
        finally:
            self._num_run = None

    def _begin(self, hidden: torch.Tensor, normed: torch.Tensor, delta: torch.Tensor) -> ResidualStream:
        """The stream before the first layer, with its norm applied."""
        stream = ResidualStream(hidden, normed, delta, hidden)
        first_norm = self._layers[0].first_norm
        if first_norm is not None:
            first_norm(hidden, normed)
            stream.source = normed
        return stream

    def _run_layers(self, step: StepSpace, stream: ResidualStream) -> None:
        """Layer by layer, up to the last norm's output in ``stream.normed``."""
        layers = self._layers[: self._num_run]
        next_norms = [*(layer.first_norm for layer in layers[1:]), self._final_norm]
        for layer, next_norm in zip(layers, next_norms, strict=True):
            if step.batch.sampled_attention is not None and layer is layers[-1]:
                _mix_for_sampled(layer, step, stream)
                if not step.batch.sampled_rows.shape[0]:
                    return
            else:
                layer.mix(stream, step)
            layer.feed(stream, step, next_norm)

    def _logits(self, batch: StepBatch, normed: torch.Tensor, workspace: Workspace) -> torch.Tensor:
        """normed: the last norm's output, of all rows or, with ``batch.sampled_attention``, of the sampled ones."""
        num_rows = batch.sampled_rows.shape[0]
        logits = workspace["logits"][:num_rows]
        if not num_rows:
            return logits
        if batch.sampled_attention is not None or (num_rows == batch.num_tokens and batch.graph is None):
            last_hidden = normed[:num_rows]  # every row is sampled, in order
        else:
            last_hidden = workspace["last_hidden"][:num_rows]
            torch.index_select(normed, 0, batch.sampled_rows, out=last_hidden)
        return self._apply_head(last_hidden, logits)

    def logits_of_rows(self, workspace: Workspace, first: int, last: int) -> torch.Tensor:
        """Logits [last - first, vocab_size] of these rows of the last step, in the place of the step's own.

        The step must have computed the last layer for all rows: with ``batch.sampled_attention`` None.
        """
        return self._apply_head(workspace["normed"][first:last], workspace["logits"][: last - first])

    def _apply_head(self, last_hidden: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        assert self._head is not None
        self._head(last_hidden, logits)
        if self.model.logits_scale != 1.0:
            logits.mul_(self.model.logits_scale)
        if self.model.logits_softcap is not None:
            logits.div_(self.model.logits_softcap).tanh_().mul_(self.model.logits_softcap)
        return logits


def make_final_norm(model: ModelDescription, weights: Weights, kernels: DeviceKernels) -> Norm:
    """Make the norm of the last layer's output."""
    return Norm(weights, "final_norm", model.norm.kind, model.norm.eps, kernels.ops, width=model.hidden_size)


def make_head(model: ModelDescription, weights: Weights, kernels: DeviceKernels) -> Projection:
    """The output head, which may be the embedding too."""
    is_tied = model.tie_word_embeddings
    head = StoredWeight(weights, "embedding" if is_tied else "head", is_embedding=is_tied)
    return make_projection(kernels.projections, head)


def make_embedding(
    model: ModelDescription, weights: Weights, kernels: DeviceKernels, head: Projection | None
) -> Embedding:
    """head: that is the embedding too, where they are tied; None where the head is another rank's."""
    table = head if model.tie_word_embeddings else None
    if table is None and (stored := StoredWeight.quantised(weights, "embedding", is_embedding=True)) is not None:
        table = make_projection(kernels.projections, stored)
    if table is None and model.num_ranks > 1:
        rows = StoredWeight(weights, "embedding", is_embedding=True, only_rows=True)
        table = make_projection(kernels.projections, rows)
    return Embedding(model, weights, table, kernels.ops)


def make_layers(
    model: ModelDescription, weights: Weights, kernels: DeviceKernels, owners: Sequence[int]
) -> list[DecoderLayer]:
    width, tables = model.hidden_size, rope_tables(model)
    layers: list[DecoderLayer] = []
    for index, (layer, owner) in enumerate(zip(model.layers, owners, strict=True)):
        if owner != index:
            layers.append(layers[owner].at(index))
            continue
        layers.append(DecoderLayer(layer, weights, index, kernels, width=width, rope_tables=tables))
    return layers


def _mix_for_sampled(layer: DecoderLayer, step: StepSpace, stream: ResidualStream) -> None:
    """The last layer's mixers, of which only the rows that are sampled are read: ``stream`` goes on with these.

    All tokens leave their KV and their traces in the states; attention is computed for the sampled rows alone.
    """
    rows, metadata = step.batch.sampled_rows, step.batch.sampled_attention
    number = rows.shape[0]
    room = step.workspace["last_hidden"][:number]
    mixer = layer.mixers[0] if len(layer.mixers) == 1 else None
    if not isinstance(mixer, AttentionPart) or metadata is None or not mixer.description.has_equal_sizes:
        layer.mix(stream, step)
        stream.take_rows(rows, room, with_delta=bool(layer.mixers))
        return
    query, attended = mixer.project(stream.source, step)
    if number:
        query, attended = _take_queries(rows, query, attended)
        stream.take_rows(rows, room, with_delta=False)
        residual = layer.residual_of_mixed(stream)
        stream.is_added = mixer.attend(query, attended, metadata, step, stream.delta, stream.source, residual)


def _take_queries(rows: torch.Tensor, query: torch.Tensor, attended: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``query`` of ``rows`` alone, and where attention's output goes; they are at most half of all rows."""
    number = rows.shape[0]
    taken = attended[number : 2 * number].view(number, *query.shape[1:])
    torch.index_select(query, 0, rows, out=taken)
    return taken, attended[:number]
