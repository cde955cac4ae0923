"""The interface between a model's layers and whatever computes paged attention."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch

from kvplan_engine.attention.layer_cache import LayerCache
from kvplan_engine.errors import EngineError

# What one step's attention knows of its batch: the sequences, and where their keys and values lie.


@dataclass(frozen=True, slots=True)
class KvSlots:
    """Where the keys and values of T new tokens are written.

    keys [T] int64: block * block_size + offset; -1 marks padding, for which nothing is written. values: the same, None
    where keys and values lie in the same blocks.
    """

    keys: torch.Tensor
    values: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """Views into the workspace of one step, for S sequences with T new tokens in all.

    The new tokens of sequence s are the rows ``query_starts[s] : query_starts[s + 1]`` of the step's hidden states.
    Its token at position p lies in block ``block_tables[s, p // block_size]`` at offset ``p % block_size``::

        block_tables[s]   [ 7 | 2 | 9 | - ]          seq_lens[s] = 10, block_size = 4
        pool              7: p0 p1 p2 p3   2: p4 p5 p6 p7   9: p8 p9 . .

    Entries of ``block_tables`` beyond the blocks that ``seq_lens`` asks for are never read. Rows of the hidden states
    from ``query_starts[S]`` on are padding: attention does not write their output.
    """

    slots: KvSlots
    """Where each new token's key and value are written."""
    block_tables: torch.Tensor
    """[S, B] int32: the blocks of each sequence's keys, in the order of its tokens."""
    seq_lens: torch.Tensor
    """[S] int32: tokens of each sequence in the cache, the step's new ones included."""
    query_starts: torch.Tensor
    """[S + 1] int32: where each sequence's new tokens begin; query_starts[0] is 0."""
    max_query_len: int
    """The most new tokens that any one sequence has in this step."""
    value_tables: torch.Tensor | None = None
    """Block tables of the values, as ``block_tables``; None where keys and values lie in the same blocks."""


OPTION_NAMES = {
    "window": "sliding windows",
    "softcap": "soft-capped scores",
    "sinks": "attention sinks",
    "slopes": "slopes (ALiBi)",
}
"""The options that a backend may lack, by the field of AttentionOptions."""
ALL_OPTIONS = frozenset(OPTION_NAMES)


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """How a layer attends. ``None`` turns an option off; a backend lists those it has in ``options``.

    scale: what scores are multiplied with. window: only the last ``window`` positions are seen, the query's own
    included. softcap: a score x becomes softcap * tanh(x / softcap). sinks [num_heads] float32: a logit for each head
    that takes its share of the softmax and has no value. slopes [num_heads] float32: times how far a key lies
    behind the query, taken from its score after ``softcap`` (ALiBi).
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None
    slopes: torch.Tensor | None = None
    in_use: frozenset[str] = field(init=False)
    """The options that are on, by field."""

    def __post_init__(self) -> None:
        if (self.window is not None and self.window < 1) or (self.softcap is not None and self.softcap <= 0.0):
            raise ValueError(f"window and softcap are positive or None, got {self.window} and {self.softcap}")
        object.__setattr__(self, "in_use", frozenset(name for name in OPTION_NAMES if getattr(self, name) is not None))


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """One layer's attention in one step.

    query [T, num_heads, head_size]; cache: the layer's; metadata: of the step; out [T, num_heads, value_size]. chosen
    [T, k] int32: the positions that each query token sees, ascending, as many as there are up to its own, at most k
    (see ``ChoiceInputs``); None: all of them. For one KV head, and neither a window nor slopes.
    """

    query: torch.Tensor
    cache: LayerCache
    metadata: AttentionMetadata
    out: torch.Tensor
    options: AttentionOptions
    chosen: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class ChoiceInputs:
    """What sparse attention chooses by, in one layer and step: the k tokens of the largest scores for each query token.

    A token's score is the sum over the index's heads of weight * max(0, query . key) (DeepSeek-V3.2, 2025). query
    [T, heads, size], weights [T, heads]; index: the keys of the index, one head, in ``cache.keys``; metadata: of the
    step, with the index's tables. chosen [T, k] int32: what is written, positions in ascending order.
    """

    query: torch.Tensor
    weights: torch.Tensor
    index: LayerCache
    metadata: AttentionMetadata
    chosen: torch.Tensor


@dataclass(frozen=True, slots=True)
class Rotation:
    """The queries and keys of new tokens, and what RoPE turns them by.

    heads [T, num_heads + num_kv_heads, head_size]: a token's queries and keys side by side, as a fused projection
    leaves them. positions [T] int64. cos_sin [L, r] float32: as for ``Ops.rope_inplace``.
    """

    heads: torch.Tensor
    positions: torch.Tensor
    cos_sin: torch.Tensor


class AttentionBackend(Protocol):
    """Writes keys and values into the paged pool and attends over it.

    Queries, keys and values may be row-strided views (of a fused projection, say) as long as their last dimension is
    contiguous. Tensors that do not fit are ValueError.

    name: for messages and ``EngineConfig.attention_backend``. options: the fields of AttentionOptions that it has.
    is_capturable: its calls never wait for the device, so decode steps may be captured as graphs. takes_any_values:
    values may be of another size than keys, or the beginnings of the keys (``LayerCache.values_in_keys``). chooses: it
    has ``choose``, and attention to what is chosen.
    """

    name: str
    options: frozenset[str]
    is_capturable: bool
    takes_any_values: bool
    chooses: bool

    def write_kv(self, key: torch.Tensor, value: torch.Tensor | None, cache: LayerCache, slots: KvSlots) -> None:
        """Store ``key`` [T, num_kv_heads, head_size] and ``value`` [T, num_kv_heads, value_size] at ``slots``.

        value: None where values are the beginnings of the keys.
        """
        ...

    def rotate_and_write(self, rotation: Rotation, value: torch.Tensor, cache: LayerCache, slots: KvSlots) -> None:
        """Rotate the queries in ``rotation.heads`` in place, and store the rotated keys, and ``value``, at ``slots``.

        The keys are all heads behind the queries, as many as ``value`` has; whether they are rotated in place too is
        up to the backend.
        """
        ...

    def attend(self, inputs: AttentionInputs) -> None:
        """Causal attention of ``inputs.query`` over the pool, into ``inputs.out``.

        Query token i of sequence s sits at position seq_lens[s] - query_len + i and sees the positions up to its own.
        Query head h reads KV head h // (num_heads // num_kv_heads). EngineError for an option that it lacks.
        """
        ...

    def choose(self, inputs: ChoiceInputs) -> None:
        """Write ``inputs.chosen``, of equal scores the earlier tokens. EngineError where the backend cannot choose."""
        ...

    def reserve_decode(
        self, cache: LayerCache, dtype: torch.dtype, num_heads: int, max_num_seqs: int, options: AttentionOptions
    ) -> None:
        """Compile and allocate what decode steps of up to ``max_num_seqs`` sequences need, before one is captured.

        dtype, num_heads: of the queries. No graph captured until now may be replayed afterwards.
        """
        ...

    def release_workspace(self) -> None:
        """Let go of the step before and of its memory: no graph captured until now is replayed any more."""
        ...


def refuse_values(backend: AttentionBackend, attention: str) -> None:
    """EngineError where ``backend`` lacks ``attention``, whose values are of another size than its keys."""
    if not backend.takes_any_values:
        raise EngineError(
            f"the {backend.name} attention backend has no {attention}.",
            hint="attention_backend='reference' has it, slowly",
        )


def refuse_missing_options(backend: AttentionBackend, options: AttentionOptions) -> None:
    """EngineError that names an option in use which ``backend`` lacks."""
    if not options.in_use <= backend.options:
        missing = [OPTION_NAMES[name] for name in sorted(options.in_use - backend.options)]
        raise EngineError(
            f"the {backend.name} attention backend has no {' and no '.join(missing)}.",
            hint="attention_backend='reference' has them all, slowly",
        )
