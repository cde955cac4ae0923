"""What a model reads in one step: views of the workspace's index buffers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from kvplan_engine.attention.backend import AttentionMetadata
from kvplan_engine.attention.layer_cache import TablePlace
from kvplan_engine.kernels.states.rows import StateStep
from kvplan_engine.memory.workspace import Workspace
from kvplan_engine.models.kv_pool import KvPool
from kvplan_engine.requests.request import Sequence


@dataclass(frozen=True, slots=True)
class GraphSize:
    """What one captured step computes, padding included.

    has_prompts: a sequence may have several of the tokens; otherwise each has one, and is sampled.
    """

    num_tokens: int
    num_seqs: int
    has_prompts: bool = False


@dataclass(frozen=True, eq=False)
class KeptViews:
    """Views of the index buffers for steps in which each of so many sequences has one token.

    Who builds batches keeps one for each number of sequences and hands it out with every such step, so what follows
    from the buffers' addresses alone can be kept for as long as this is the same object.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    attention: Mapping[TablePlace, AttentionMetadata]
    states: StateStep | None


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Views into the workspace for T tokens of S sequences.

    token_ids, positions [T] int64. attention: by which tables a layer's tokens are found (``LayerCache.tables``), each
    with the same sequences and queries. states: the sequences' states; None where no layer has one. sampled: the
    sequences whose next token is chosen, in row order of the logits. sampled_rows [len(sampled)] int64: the row of the
    hidden states each of them is predicted from. sampled_attention: the same sequences with only these rows as their
    queries, or None where they are more than half of all rows, or no layer attends: once its keys and values are
    written, nothing reads the last layer's other rows.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    attention: Mapping[TablePlace, AttentionMetadata]
    sampled: list[Sequence]
    sampled_rows: torch.Tensor
    sampled_attention: AttentionMetadata | None = None
    """Of the tables of the last layer with attention."""
    states: StateStep | None = None
    graph: GraphSize | None = None
    """The captured step that computes it, to which its inputs are padded; None: it is launched."""
    num_filled: torch.Tensor | None = None
    """[1] int32: how many of the tokens are a sequence's, in a captured step; they come first. None: all are."""
    views: KeptViews | None = None
    """The kept views that this batch has; None: its own."""

    @property
    def num_tokens(self) -> int:
        return self.token_ids.shape[0]

    @property
    def num_seqs(self) -> int:
        if self.states is not None:
            return self.states.num_seqs
        return next(iter(self.attention.values())).seq_lens.shape[0]


@dataclass(frozen=True, slots=True)
class StepSpace:
    """One step's inputs and where it writes: keys and values into the pool ``kv``, all else into the workspace."""

    batch: StepBatch
    kv: KvPool
    workspace: Workspace

    @property
    def states(self) -> StateStep:
        """The sequences' states, in a model whose layers have some."""
        assert self.batch.states is not None, "no layer of this model has a state"
        return self.batch.states
