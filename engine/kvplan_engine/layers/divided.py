"""Products of which each rank has a part: sums over the ranks' inputs, and the rows of a divided vocabulary.

Everything else of a divided layer is computed by each rank for itself, with the kernels of a whole one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from kvplan_engine.checkpoints.weights import Weights
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.device.collectives import Collectives
from kvplan_engine.kernels.mixture_weights import MixtureRoom
from kvplan_engine.layers.linear import Linear
from kvplan_engine.layers.mixture import MixtureKind, MixtureRun, make_mixture
from kvplan_engine.layers.projection import Projection, ProjectionKind, StoredWeight, make_projection


class ShardBuffer:
    """Where the ranks' parts of the logits come together: the workspace's, bound anew with every workspace."""

    def __init__(self) -> None:
        self._buffer: torch.Tensor | None = None

    def bind(self, buffer: torch.Tensor) -> None:
        """buffer: [ranks, most rows, rows of the vocabulary on a rank]."""
        self._buffer = buffer

    def release(self) -> None:
        """Let go of the buffer, which keeps the whole workspace that it is a part of."""
        self._buffer = None

    def of(self, num_rows: int) -> torch.Tensor:
        """[ranks, num_rows, rows of the vocabulary on a rank], contiguous."""
        assert self._buffer is not None, "the workspace comes before the first step"
        ranks, _, columns = self._buffer.shape
        return self._buffer.view(-1)[: ranks * num_rows * columns].view(ranks, num_rows, columns)


class SummedProduct:
    """``inner`` over a rank's inputs, summed over the ranks. Nothing may follow the product in ``inner``."""

    __slots__ = ("_collectives", "_inner")
    activation = None
    layer_args = None

    def __init__(self, inner: Projection, collectives: Collectives) -> None:
        assert inner.activation is None, "an activation is of the sum"
        self._inner, self._collectives = inner, collectives

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """See Projection.__call__."""
        self._inner(x, out)
        self._collectives.sum_inplace(out)

    def rows(self, indices: torch.Tensor, out: torch.Tensor) -> None:
        """Not possible: a rank has a part of each row."""
        raise TypeError("a product that is a sum over ranks is no embedding")


class DividedVocabulary:
    """The rows of ``inner`` are the rank's part of the vocabulary: of the head, of the embedding, or of both in one."""

    __slots__ = ("_collectives", "_inner", "_num_rows", "_shards")
    activation = None
    layer_args = None

    def __init__(self, inner: Projection, num_rows: int, shards: ShardBuffer, collectives: Collectives) -> None:
        self._inner, self._num_rows, self._shards, self._collectives = inner, num_rows, shards, collectives

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """The whole vocabulary's logits into ``out`` on the first rank; the others' ``out`` stays as it is."""
        rank = self._collectives.rank
        shards = self._shards.of(x.shape[0])
        self._inner(x, shards[rank.index])
        self._collectives.gather(shards[rank.index], shards)
        if rank.index == 0:
            for first, shard in zip(range(0, out.shape[1], self._num_rows), shards, strict=False):
                columns = out[:, first : first + self._num_rows]
                columns.copy_(shard[:, : columns.shape[1]])

    def rows(self, indices: torch.Tensor, out: torch.Tensor) -> None:
        """See Projection.rows: each rank gives the rows that it has, and zeros for the others."""
        own = indices - self._collectives.rank.index * self._num_rows
        is_others = (own < 0) | (own >= self._num_rows)
        self._inner.rows(own.masked_fill_(is_others, 0), out)
        out.masked_fill_(is_others.unsqueeze(1), 0)
        self._collectives.sum_inplace(out)


@dataclass(frozen=True)
class DividedProjections:
    """The kind: embedding, head, and the products called ``summed``, stored by the first of ``kinds`` that takes them.

    An embedding that is not the head too stays as it was published.
    """

    kinds: Sequence[ProjectionKind]
    summed: frozenset[str]
    collectives: Collectives
    shards: ShardBuffer = field(default_factory=ShardBuffer)

    def takes(self, stored: StoredWeight) -> bool:
        """See ProjectionKind.takes."""
        return stored.name in self.summed or stored.name in ("embedding", "head")

    def make(self, stored: StoredWeight) -> SummedProduct | DividedVocabulary:
        """See ProjectionKind.make."""
        if stored.name in self.summed:
            return SummedProduct(make_projection(self.kinds, stored), self.collectives)
        num_rows = stored.weight.shape[0]
        inner = make_projection(self.kinds if not stored.only_rows else (Linear,), stored)
        return DividedVocabulary(inner, num_rows, self.shards, self.collectives)


class SummedMixture:
    """``inner`` over a rank's part of each expert, or its whole experts, summed over the ranks."""

    layer_args = None

    def __init__(self, inner: MixtureRun, collectives: Collectives) -> None:
        self._inner, self._collectives = inner, collectives
        self.launches_each_expert = inner.launches_each_expert

    def __call__(self, x: torch.Tensor, out: torch.Tensor, room: MixtureRoom) -> None:
        """See MixtureRun.__call__."""
        self._inner(x, out, room)
        self._collectives.sum_inplace(out)


@dataclass(frozen=True)
class DividedMixtures:
    """The kind: every mixture, by the first of ``kinds`` that takes it."""

    kinds: Sequence[MixtureKind]
    collectives: Collectives

    def takes(self, mixture: Mixture, dtype: torch.dtype, *, is_quantised: bool) -> bool:
        """See MixtureKind.takes."""
        return True

    def make(self, mixture: Mixture, weights: Weights, index: int) -> SummedMixture:
        """See MixtureKind.make."""
        return SummedMixture(make_mixture(self.kinds, mixture, weights, index), self.collectives)
