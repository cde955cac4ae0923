"""From token ids to the residual stream: embedding, its scale, learned positions, a norm."""

from __future__ import annotations

import torch

from kvplan_engine.checkpoints.weights import Weights
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.kernels.interface import Ops
from kvplan_engine.layers.norm import Norm
from kvplan_engine.layers.projection import Projection
from kvplan_engine.models.step_batch import StepBatch


class Embedding:
    """head: what gives the embedding's rows back, being the output head too, quantised or divided; None for a table."""

    def __init__(self, model: ModelDescription, weights: Weights, head: Projection | None, ops: Ops) -> None:
        self._head = head
        self._table = None if head is not None else weights["embedding.weight"]
        self._positions = None
        if model.learned_positions is not None:
            self._positions = weights["positions.weight"][model.position_offset :]
        self._norm = Norm(weights, "embedding_norm", "layer", model.norm.eps, ops) if model.embedding_norm else None
        self._scale = model.embedding_scale

    def __call__(self, batch: StepBatch, hidden: torch.Tensor, scratch: torch.Tensor) -> None:
        """The first residual stream into ``hidden`` [T, H]; ``scratch`` [T, H] is overwritten."""
        if self._head is not None:
            self._head.rows(batch.token_ids, hidden)
        elif self._table is not None:
            torch.index_select(self._table, 0, batch.token_ids, out=hidden)
        if self._scale != 1.0:
            hidden.mul_(self._rounded_scale(hidden.dtype))
        if self._positions is not None:
            torch.index_select(self._positions, 0, batch.positions, out=scratch)
            hidden += scratch
        if self._norm is not None:
            self._norm(hidden, hidden)

    def _rounded_scale(self, dtype: torch.dtype) -> float:
        """Return the scale, rounded as a weight of the model's dtype would be: Gemma's published code rounds it so."""
        return float(torch.tensor(self._scale, dtype=dtype))
