"""Two ways to run a step in a class of transformers; which of them is right for a model is tried when it is loaded."""

from __future__ import annotations

from itertools import pairwise
from typing import Protocol

import torch

from kvplan_engine.attention.backend import AttentionBackend
from kvplan_engine.description.mixers import Attention
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.models.kv_pool import KvPool
from kvplan_engine.models.step_batch import StepBatch
from kvplan_engine.transformers_backend.paged_attention import NAME, PagedAttention
from kvplan_engine.transformers_backend.split_model import SplitModel


class Way(Protocol):
    """How the tokens of a step go through the layers of a class. name: for messages."""

    name: str

    def hidden_states(self, batch: StepBatch, kv: KvPool) -> torch.Tensor:
        """[T, H] of the step's tokens; what they leave behind is in ``kv`` afterwards."""
        ...


class Together:
    """All sequences in one forward pass, with the engine's attention in the class's place."""

    name = "all sequences in one forward pass"

    def __init__(self, model: ModelDescription, split: SplitModel, backend: AttentionBackend) -> None:
        self._split, self._attention = split, PagedAttention(model, backend)
        self._attention.attach(split.layers)

    def hidden_states(self, batch: StepBatch, kv: KvPool) -> torch.Tensor:
        """See Way.hidden_states. EngineError where the class does not ask for the engine's attention in every layer."""
        self._split.model.set_attn_implementation(NAME)
        self._attention.begin(batch, kv)
        states = self._split.hidden_states(batch.token_ids, batch.positions)
        self._attention.end()
        return states


class OneByOne:
    """One sequence after the other, each with a cache of transformers that is filled from the pool.

    by_token: what follows a sequence's first piece goes token by token: some classes go on from a state only so.
    """

    def __init__(self, model: ModelDescription, split: SplitModel, attention: str, *, by_token: bool = False) -> None:
        from kvplan_engine.transformers_backend.pool_cache import PoolCaches  # imports transformers

        self.name = "one sequence after the other" + (", token by token" if by_token else "")
        self._split, self._implementation, self._by_token = split, attention, by_token
        self._caches = PoolCaches(model, split.model.config)

    def hidden_states(self, batch: StepBatch, kv: KvPool) -> torch.Tensor:
        """See Way.hidden_states."""
        self._split.model.set_attn_implementation(self._implementation)
        step = batch.states if batch.states is not None else next(iter(batch.attention.values()))
        starts = step.query_starts.tolist()
        return torch.cat([
            self._hidden_states_of(batch, kv, sequence, slice(first, end))
            for sequence, (first, end) in enumerate(pairwise(starts))
        ])  # fmt: skip

    def _hidden_states_of(self, batch: StepBatch, kv: KvPool, sequence: int, rows: slice) -> torch.Tensor:
        pieces = [rows]
        if self._by_token and int(batch.positions[rows.start]):
            pieces = [slice(row, row + 1) for row in range(rows.start, rows.stop)]
        states = []
        for piece in pieces:
            made = self._caches.cache_of(batch, kv, sequence, piece)
            states.append(self._split.hidden_states(batch.token_ids[piece], batch.positions[piece], made.cache))
            made.keep()
        return torch.cat(states)


def treats_rows_alike(model: ModelDescription) -> bool:
    """Whether everything but paged attention treats each token of ``model`` by itself and its position."""
    return all(_is_plain(mixer) for layer in model.distinct_layers for mixer in layer.mixers) and all(
        len(layer.mixers) == 1 for layer in model.distinct_layers
    )


def _is_plain(mixer: object) -> bool:
    if not isinstance(mixer, Attention) or mixer.kept.kind not in ("full", "window"):
        return False
    return not mixer.alibi and mixer.indexer is None and mixer.key_size == mixer.value_size
