"""The index of sparse latent attention (DeepSeek V3.2): one small key per token, by which each query chooses tokens."""

from __future__ import annotations

import torch

from kvplan_engine.attention.backend import AttentionBackend, ChoiceInputs
from kvplan_engine.description.mixers import Indexer
from kvplan_engine.errors import EngineError
from kvplan_engine.layers.norm import Norm
from kvplan_engine.layers.projection import Projection, StoredWeight, make_projection
from kvplan_engine.memory.breakdown import CHOSEN
from kvplan_engine.models.mixers.mixer_part import MixerSource
from kvplan_engine.models.part_kernels import PartKernels
from kvplan_engine.models.step_space import StepSpace

_EPSILON = 1e-6
"""Of the index keys' LayerNorm, in all models that have one."""


class IndexPart:
    """Queries from the query's latent, a key and a weight of each head from the layer's input."""

    def __init__(self, indexer: Indexer, source: MixerSource, kernels: PartKernels) -> None:
        self._indexer, self._rope_table = indexer, source.rope_table
        self._ops, self._backend = kernels.ops, kernels.attention

        def projection(part: str) -> Projection:
            return make_projection(kernels.projections, StoredWeight(source.weights, f"{source.name}.indexer.{part}"))

        self._query, self._key = projection("query"), projection("key")
        self._head_weights = projection("head_weights")
        self._key_norm = Norm(source.weights, f"{source.name}.indexer.key_norm", "layer", _EPSILON, kernels.ops)

    def __call__(
        self, layer: int, normed: torch.Tensor, query_latent: torch.Tensor, step: StepSpace, room: torch.Tensor
    ) -> None:
        """The tokens' keys into the pool of ``layer``; what each token sees into the workspace, where it has to choose.

        room: flat scratch memory of ``Indexer.columns`` for each token.
        """
        indexer, tokens = self._indexer, normed.shape[0]
        queries = room[: tokens * indexer.query_size].view(tokens, -1)
        rest = room[tokens * indexer.query_size :]
        keys = rest[: tokens * indexer.head_size].view(tokens, -1)
        weights = rest[tokens * indexer.head_size :][: tokens * indexer.num_heads].view(tokens, -1)
        self._key(normed, keys)
        self._key_norm(keys, keys)
        self._turn(keys[:, None], step)
        cache = step.kv.index_of(layer)
        metadata = step.batch.attention[cache.tables]
        self._backend.write_kv(keys[:, None], None, cache, metadata.slots)
        chosen = chosen_of(step, indexer.top_k)
        if chosen is None:
            return
        self._query(query_latent, queries)
        self._head_weights(normed, weights)
        heads = queries.view(tokens, indexer.num_heads, -1)
        self._turn(heads, step)
        self._backend.choose(ChoiceInputs(heads, weights, cache, metadata, chosen))

    def _turn(self, heads: torch.Tensor, step: StepSpace) -> None:
        if self._rope_table is not None:
            self._ops.rope_inplace(heads, step.batch.positions, step.workspace[self._rope_table])


def chosen_of(step: StepSpace, top_k: int) -> torch.Tensor | None:
    """Where the step's choice lies, [T, top_k] int32; None where no token has more than ``top_k`` to choose from."""
    if int(step.batch.positions.max()) < top_k:
        return None
    return step.workspace[CHOSEN].view(-1)[: step.batch.num_tokens * top_k].view(-1, top_k)


def refuse_choice(backend: AttentionBackend) -> None:
    """EngineError where ``backend`` cannot choose tokens."""
    if not backend.chooses:
        raise EngineError(
            f"the {backend.name} attention backend has no index of keys.",
            hint="attention_backend='reference' has one, slowly",
        )
