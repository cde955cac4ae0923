"""The decoder that all families share: embed, then per layer attention and MLP around one residual stream.

    hidden  [T, H]  the residual stream                     normed [T, H]  its normalised copy, input of a projection
    delta   [T, H]  output of a block, added to hidden in the next norm
    scratch         qkv [T, (hq + 2 hkv) d] and attention output [T, hq d]; then the MLP's inner activations

Every product writes into a buffer of the workspace: a step allocates nothing that grows with the batch. Families differ
in ModelConfig's fields, and in what their weights hold (``checkpoints/families``).
"""

from __future__ import annotations

import torch

from kvplan_engine.attention.backend import AttentionInputs, AttentionOptions, Rotation, refuse_missing_options
from kvplan_engine.checkpoints.config import ModelConfig
from kvplan_engine.checkpoints.weights import Weights
from kvplan_engine.layers.activation import activate
from kvplan_engine.layers.norm import Norm
from kvplan_engine.layers.projection import Projection, StoredWeight, make_projection
from kvplan_engine.memory.workspace import Workspace
from kvplan_engine.models.decoder_layer import DecoderLayer
from kvplan_engine.models.device_kernels import DeviceKernels
from kvplan_engine.models.step_batch import StepBatch


class Decoder:
    """A model with its weights; ``forward`` computes one step over the paged pool.

    Weights that a projection keeps in a layout of its own are removed from ``weights``, so that none is held twice.
    EngineError where the attention backend lacks an option of the model's attention.
    """

    def __init__(self, config: ModelConfig, weights: Weights, kernels: DeviceKernels) -> None:
        self.config = config
        self.attention_options = AttentionOptions(config.head_size**-0.5, window=config.window_tokens)
        refuse_missing_options(kernels.attention, self.attention_options)
        self._attention, self._ops = kernels.attention, kernels.ops
        self._positions = weights.get("positions")
        self._layers = [
            DecoderLayer(config, weights, index, kernels.ops, kernels.projections) for index in range(config.num_layers)
        ]
        self._final_norm = Norm(weights, "final_norm", config.norm_eps, kernels.ops)
        is_tied = config.tie_word_embeddings
        head = StoredWeight(weights, "embedding" if is_tied else "head", is_embedding=is_tied)
        self._head: Projection = make_projection(kernels.projections, head)
        self._embedding = None if is_tied else weights["embedding"]
        self.layer_run = kernels.make_layer_run(config, self._layers, self._final_norm)

    def forward(self, batch: StepBatch, kv: torch.Tensor, workspace: Workspace) -> torch.Tensor:
        """Logits [len(batch.sampled), vocab_size] in the workspace; the step's K and V are in ``kv`` afterwards."""
        num_tokens = batch.num_tokens
        hidden, normed, delta = (workspace[name][:num_tokens] for name in ("hidden", "normed", "delta"))
        self._embed(batch, hidden, delta)
        self._layers[0].attention_norm(hidden, normed)
        if self.layer_run is not None:
            self.layer_run(batch, kv, workspace, self.attention_options)
            return self._logits(batch, normed, workspace)
        norms = [layer.attention_norm for layer in self._layers[1:]] + [self._final_norm]
        for index, (layer, next_norm) in enumerate(zip(self._layers, norms, strict=True)):
            query, attended = self._project(layer, index, batch, normed, kv, workspace)
            attention = batch.attention
            if batch.sampled_attention is not None and layer is self._layers[-1]:
                rows, attention = batch.sampled_rows, batch.sampled_attention
                if not rows.shape[0]:
                    break
                hidden, query, attended = self._take_rows(rows, hidden, query, attended, workspace)
                normed, delta = normed[: rows.shape[0]], delta[: rows.shape[0]]
            out = attended.view(query.shape)
            self._attention.attend(AttentionInputs(query, kv, index, attention, out, self.attention_options))
            layer.output(attended, delta)
            layer.mlp_norm.after_adding(delta, hidden, normed)
            self._mlp(layer, normed, workspace, delta)
            next_norm.after_adding(delta, hidden, normed)
        return self._logits(batch, normed, workspace)

    def _embed(self, batch: StepBatch, hidden: torch.Tensor, delta: torch.Tensor) -> None:
        if self._embedding is None:  # tied to the head
            self._head.rows(batch.token_ids, hidden)
        else:
            torch.index_select(self._embedding, 0, batch.token_ids, out=hidden)
        if self._positions is not None:
            torch.index_select(self._positions, 0, batch.positions, out=delta)
            hidden += delta

    def _project(
        self,
        layer: DecoderLayer,
        index: int,
        batch: StepBatch,
        normed: torch.Tensor,
        kv: torch.Tensor,
        workspace: Workspace,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The queries [T, hq, d], and where attention's output goes [T, hq d]; keys and values are in ``kv``."""
        config, num_tokens = self.config, normed.shape[0]
        qkv, attended = workspace.scratch((num_tokens, config.qkv_size), (num_tokens, config.query_size))
        layer.qkv(normed, qkv)
        heads = qkv.view(num_tokens, -1, config.head_size)
        query, key, value = heads.split([config.num_heads, config.num_kv_heads, config.num_kv_heads], dim=1)
        if layer.query_norm is not None and layer.key_norm is not None:
            layer.query_norm(query, query)
            layer.key_norm(key, key)
        slots = batch.attention.slots
        if config.is_rotary:
            rotation = Rotation(heads[:, : -config.num_kv_heads], batch.positions, workspace["rope"])
            self._attention.rotate_and_write(rotation, value, kv, index, slots)
        else:
            self._attention.write_kv(key, value, kv, index, slots)
        return query, attended

    def _take_rows(
        self,
        rows: torch.Tensor,
        hidden: torch.Tensor,
        query: torch.Tensor,
        attended: torch.Tensor,
        workspace: Workspace,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """``hidden`` and ``query`` of ``rows`` alone, and where attention's output goes; at most half of all rows."""
        number = rows.shape[0]
        taken_hidden = workspace["last_hidden"][:number]
        torch.index_select(hidden, 0, rows, out=taken_hidden)
        taken_query = attended[number : 2 * number].view(number, *query.shape[1:])
        torch.index_select(query, 0, rows, out=taken_query)
        return taken_hidden, taken_query, attended[:number]

    def _mlp(self, layer: DecoderLayer, normed: torch.Tensor, workspace: Workspace, delta: torch.Tensor) -> None:
        config = self.config
        is_fused = layer.up.activation is not None
        columns = 2 * config.ffn_size if config.gated_mlp and not is_fused else config.ffn_size
        (inner,) = workspace.scratch((normed.shape[0], columns))
        layer.up(normed, inner)
        layer.down(inner if is_fused else activate(config.activation, inner, self._ops), delta)

    def _logits(self, batch: StepBatch, normed: torch.Tensor, workspace: Workspace) -> torch.Tensor:
        """normed: the last norm's output, of all rows or, with ``batch.sampled_attention``, of the sampled ones."""
        num_rows = batch.sampled_rows.shape[0]
        logits = workspace["logits"][:num_rows]
        if not num_rows:
            return logits
        if batch.sampled_attention is None:
            last_hidden = workspace["last_hidden"][:num_rows]
            torch.index_select(normed, 0, batch.sampled_rows, out=last_hidden)
        else:
            last_hidden = normed[:num_rows]
        self._head(last_hidden, logits)
        return logits
