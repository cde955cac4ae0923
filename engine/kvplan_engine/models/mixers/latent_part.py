"""One layer's latent attention (MLA), absorbed: the cache has one row per token, which all heads attend to.

    q  = query without positions | rotary query     of each head, [nope | rope]
    c  = latent | rotary key                        of a token, [kv_rank | rope]: what the pool keeps

A key's part without positions is W_uk c and its value is W_uv c, both per head. So its score is q_nope . (W_uk c) =
(W_uk^T q_nope) . c, and the weighted sum of values is W_uv times that of the latents (DeepSeek-V2, 2024, 2.1.2):
attention is that of one KV head whose key is the whole row and whose value is its latent, and no key or value of a head
is ever made.
"""

from __future__ import annotations

import torch

from kvplan_engine.attention.backend import (
    AttentionBackend,
    AttentionInputs,
    AttentionOptions,
    ChoiceInputs,
    refuse_values,
)
from kvplan_engine.description.mixers import Indexer, LatentAttention
from kvplan_engine.errors import EngineError
from kvplan_engine.layers.head_products import HeadProducts, make_head_products
from kvplan_engine.layers.norm import Norm
from kvplan_engine.memory.breakdown import CHOSEN
from kvplan_engine.models.mixers.attention_part import growth
from kvplan_engine.models.mixers.mixer_part import MixerPart, MixerSource
from kvplan_engine.models.step_batch import StepSpace

# The index of sparse latent attention (DeepSeek V3.2): one small key per token, by which each query chooses tokens.


_EPSILON = 1e-6
"""Of the index keys' LayerNorm, in all models that have one."""


class IndexPart:
    """Queries from the query's latent, a key and a weight of each head from the layer's input."""

    def __init__(self, indexer: Indexer, source: MixerSource) -> None:
        self._indexer, self._rope_table = indexer, source.rope_table
        self._ops, self._backend = source.kernels.ops, source.kernels.attention
        self._query, self._key, self._head_weights = (
            source.projection(f"indexer.{part}") for part in ("query", "key", "head_weights")
        )
        self._key_norm = Norm(source.weights, f"{source.name}.indexer.key_norm", "layer", _EPSILON, self._ops)

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


class LatentPart(MixerPart):
    """Queries by way of a latent of their own or directly, the row that is kept, and attention over such rows.

    EngineError where the attention backend takes no values that are parts of the keys.
    """

    def __init__(self, attention: LatentAttention, source: MixerSource) -> None:
        kernels, projection = source.kernels, source.projection
        refuse_values(kernels.attention, "latent attention")
        if attention.sparse_top_k is not None:
            refuse_choice(kernels.attention)
        self.description, self.index = attention, source.index
        self._rope_table, self._ops, self._backend = source.rope_table, kernels.ops, kernels.attention
        self.options = AttentionOptions(attention.scale)

        def norm(part: str) -> Norm:
            return Norm(source.weights, f"{source.name}.{part}", "rms", attention.latent_norm_eps, kernels.ops)

        has_query_latent = attention.q_rank is not None
        self._query_down = projection("query_down") if has_query_latent else None
        self._query_norm = norm("query_latent_norm") if has_query_latent else None
        self._query_up = projection("query_up" if has_query_latent else "query")
        self._kv_down, self._kv_norm = projection("kv_down"), norm("kv_latent_norm")
        self._into_latent, self._out_of_latent = _absorbed(attention, source)
        self._output = projection("output")
        self._index = None if attention.indexer is None else IndexPart(attention.indexer, source)

    def __call__(self, normed: torch.Tensor, step: StepSpace, delta: torch.Tensor) -> None:
        """See MixerPart.__call__."""
        attention, tokens = self.description, normed.shape[0]
        heads, row, rank = attention.num_heads, attention.row_size, attention.kv_rank
        columns = attention.head_columns
        by_head, wide, latents = step.workspace.scratch(
            (tokens, columns), (tokens, self._wide_columns), (tokens, max(heads * rank, attention.down_columns))
        )
        query = by_head.view(-1)[: tokens * attention.query_size].view(tokens, heads, -1)
        self._project(normed, step, query, latents, wide)
        kept = wide.view(-1)[: tokens * heads * row].view(tokens, heads, row)
        attended = latents.view(-1)[: tokens * heads * rank]
        self._into_latent.multiply(query[..., : attention.nope_size], kept[..., :rank])
        kept[..., rank:] = query[..., attention.nope_size :]
        self._attend(kept, attended.view(tokens, heads, rank), step)
        values = by_head.view(-1)[: tokens * heads * attention.value_size].view(tokens, heads, -1)
        self._out_of_latent.multiply(attended.view(tokens, heads, rank), values)
        self._output(values.flatten(1), delta)

    @property
    def _wide_columns(self) -> int:
        """Columns of what holds the index's vectors first, and then queries as wide as the rows."""
        attention = self.description
        index = 0 if attention.indexer is None else attention.indexer.columns
        return max(attention.num_heads * attention.row_size, index)

    def _project(
        self, normed: torch.Tensor, step: StepSpace, query: torch.Tensor, room: torch.Tensor, index_room: torch.Tensor
    ) -> None:
        """``query`` [T, heads, nope + rope], turned; the tokens' rows are in the pool. room: for the latents."""
        attention, tokens = self.description, normed.shape[0]
        query_rank = attention.q_rank or 0
        flat = room.view(-1)
        query_latent = flat[: tokens * query_rank].view(tokens, query_rank)
        row = flat[tokens * query_rank :][: tokens * attention.row_size].view(tokens, attention.row_size)
        source = normed
        if self._query_down is not None and self._query_norm is not None:
            self._query_down(normed, query_latent)
            self._query_norm(query_latent, query_latent)
            source = query_latent
        self._query_up(source, query.flatten(1))
        if self._index is not None:
            self._index(self.index, normed, source, step, index_room.view(-1))
        self._kv_down(normed, row)
        latent = row[:, : attention.kv_rank]
        self._kv_norm(latent, latent)
        self._turn(query, row, step)
        cache = step.kv.of(self.index)
        self._backend.write_kv(row[:, None], None, cache, step.batch.attention[cache.tables].slots)

    def _turn(self, query: torch.Tensor, row: torch.Tensor, step: StepSpace) -> None:
        """RoPE of the queries' last part and of the rotary key, and what queries grow by."""
        attention, positions = self.description, step.batch.positions
        if self._rope_table is not None:
            table = step.workspace[self._rope_table]
            self._ops.rope_inplace(query[..., attention.nope_size :], positions, table)
            self._ops.rope_inplace(row[:, None, attention.kv_rank :], positions, table)
        if attention.growing_scale is not None:
            query.mul_(growth(positions, *attention.growing_scale).to(query.dtype)[:, None, None])

    def _attend(self, query: torch.Tensor, out: torch.Tensor, step: StepSpace) -> None:
        cache = step.kv.of(self.index)
        metadata = step.batch.attention[cache.tables]
        top_k = self.description.sparse_top_k
        chosen = None if top_k is None else chosen_of(step, top_k)
        self._backend.attend(AttentionInputs(query, cache, metadata, out, self.options, chosen))


def _absorbed(attention: LatentAttention, source: MixerSource) -> tuple[HeadProducts, HeadProducts]:
    """Each head's W_uk transposed, [kv_rank, nope], and W_uv, [value, kv_rank]: rows of ``kv_up``, taken apart."""
    key = f"{source.name}.kv_up.weight"
    stored = source.weights[key].view(attention.num_heads, attention.nope_size + attention.value_size, -1)
    of_keys, of_values = stored.split([attention.nope_size, attention.value_size], dim=1)
    kinds = source.kernels.head_products
    into_latent, out_of_latent = (make_head_products(kinds, each) for each in (of_keys.transpose(1, 2), of_values))
    if into_latent.keeps_own and out_of_latent.keeps_own:
        del source.weights[key]
    return into_latent, out_of_latent
