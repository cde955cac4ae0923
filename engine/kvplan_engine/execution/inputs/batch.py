"""One step's inputs: a plan of sequences turned into the tensors the model reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import torch

from kvplan_engine.attention.layer_cache import TablePlace
from kvplan_engine.blocks.layout import KvLayout
from kvplan_engine.description.mixers import FULL
from kvplan_engine.execution.inputs.group_tables import (
    FullTables,
    GroupTables,
    StateTables,
    metadata_of,
    state_tables_name,
    states_of,
)
from kvplan_engine.execution.inputs.staging import InputStage, PendingInputs
from kvplan_engine.execution.inputs.step_inputs import SAMPLED_ROWS, SAMPLED_STARTS, StepIndices, StepInputs
from kvplan_engine.memory.workspace import Workspace
from kvplan_engine.models.step_batch import GraphSize, KeptViews, StepBatch
from kvplan_engine.requests.request import ScheduledSequence
from kvplan_engine.requests.request import Sequence as SampledSequence
from kvplan_engine.requests.step_plan import StepPlan


class BatchBuilder:
    """Fills the workspace's index buffers from one plan after the other, through ``stage`` where there is one.

    A decoding sequence that keeps its row has grown by one token since the plan before: its position, length and slot
    grow by one, and from time to time its row of the block tables by a block. All other rows are written anew.

    buffers: the names of the index buffers. tables: of each layer with keys and values, which tables it reads.
    keeps_rows: every step computes the last layer for all rows.
    """

    def __init__(
        self,
        workspace: Workspace,
        layout: KvLayout,
        buffers: Sequence[str],
        tables: Sequence[TablePlace],
        stage: InputStage | None = None,
        *,
        keeps_rows: bool = False,
    ) -> None:
        self._keeps_rows = keeps_rows
        self._workspace = workspace
        self._places, self._last_place = tuple(dict.fromkeys(tables)), tables[-1] if tables else None
        self._inputs = inputs = StepInputs(workspace, layout, buffers, self._places, stage)
        self._token_ids, self._positions, self._query_starts = (
            inputs.arrays[name] for name in ("token_ids", "positions", "query_starts")
        )
        self._groups = _group_tables(inputs.host, layout)
        self._state_tables = state_tables_name(layout)
        self._numbers = torch.arange(self._query_starts.shape[0], device=workspace["token_ids"].device)
        self._starts = np.arange(self._query_starts.shape[0], dtype=np.int32)
        self._of_sampled: dict[str, np.ndarray] = {}  # of the last step: see StepInputs.send
        self._kept: dict[int, KeptViews] = {}

    def build(
        self,
        plan: StepPlan,
        latest: np.ndarray | None = None,
        *,
        pending: PendingInputs | None = None,
        graph: GraphSize | None = None,
    ) -> StepBatch:
        """The step's tensors; valid until the next call, which must get the plan that follows this one.

        ``latest``: the tokens that the previous plan's sampled sequences got, by row, where they are on the host.
        ``pending``: those that are not. ``graph``: see StepBatch; the inputs are padded to it.
        """
        num_decodes, num_seqs, num_tokens = len(plan.decodes), plan.num_seqs, plan.num_tokens
        self._query_starts[: num_decodes + 1] = self._starts[: num_decodes + 1]
        self._fill_decodes(plan)
        self._fill_decode_tokens(plan, latest)
        sampled, num_sampled_rows, max_query_len = plan.decodes, num_decodes, 1
        if plan.chunks:
            counts = self._fill_chunks(plan)
            max_query_len = int(counts.max())
            sampled = plan.decodes + [item.sequence for item in plan.chunks if item.needs_sampling]
            num_sampled_rows = len(sampled) + plan.num_draft_tokens
        if pending is not None:
            self._token_ids[pending.places] = pending.values
        skips_rows = 2 * num_sampled_rows <= num_tokens and not (plan.wants_prompt_logprobs or self._keeps_rows)
        if plan.has_adapters and (self._inputs.stage is not None or plan.num_draft_tokens):
            skips_rows = False  # the groups of sampled rows would have to be staged too, or have several of a sequence
        of_sampled = {SAMPLED_ROWS: self._sampled_rows(plan)} if plan.chunks else {}
        if graph is not None:
            skips_rows = False  # a captured step with prompts computes all rows of its last layer
        if skips_rows:
            of_sampled[SAMPLED_STARTS] = self._sampled_starts(plan)
        self._of_sampled = of_sampled
        sent = self._inputs.send(num_tokens, num_seqs, graph, of_sampled)
        rows = sent.get(SAMPLED_ROWS, self._numbers[:num_decodes])
        starts, longest = sent.get(SAMPLED_STARTS), _longest_query(of_sampled.get(SAMPLED_STARTS))
        batch = self._batch(num_tokens, num_seqs, max_query_len, rows, starts, sampled, longest)
        return batch if graph is None else replace(batch, graph=graph)

    def _batch(
        self,
        num_tokens: int,
        num_seqs: int,
        max_query_len: int,
        sampled_rows: torch.Tensor,
        sampled_starts: torch.Tensor | None,
        sampled: list[SampledSequence],
        max_sampled_len: int,
    ) -> StepBatch:
        """Views of the buffers as they are filled now. sampled_starts: where a step skips rows of the last layer."""
        is_kept = num_tokens == num_seqs and max_query_len == 1
        views = self._kept_views(num_seqs) if is_kept else self._make_views(num_tokens, num_seqs, max_query_len)
        last = views.attention[self._last_place] if self._last_place is not None else None
        of_sampled = None
        if last is not None and sampled_starts is not None:
            of_sampled = replace(last, query_starts=sampled_starts, max_query_len=max_sampled_len)
        return StepBatch(
            token_ids=views.token_ids,
            positions=views.positions,
            attention=views.attention,
            sampled=sampled,
            sampled_rows=sampled_rows,
            sampled_attention=of_sampled,
            states=views.states,
            views=views if is_kept else None,
        )

    def indices_of(self, batch: StepBatch) -> StepIndices:
        """What another rank's ``rebuild`` needs for ``batch``, the last that was built. Nothing is read back for it."""
        number, of_sampled = batch.num_seqs, self._of_sampled
        return StepIndices(
            batch.num_tokens,
            number,
            next(iter(batch.attention.values())).max_query_len if batch.attention else 1,
            self._inputs.filled(batch.num_tokens, number),
            of_sampled.get(SAMPLED_ROWS, self._starts[:number].astype(np.int64)),
            of_sampled.get(SAMPLED_STARTS),
            batch.graph,
        )

    def rebuild(self, indices: StepIndices) -> StepBatch:
        """The batch that another rank's builder made of its plan, without its sequences."""
        for name, filled in indices.buffers.items():
            place = self._inputs.arrays[name][: filled.shape[0]]
            (place if filled.ndim == 1 else place[:, : filled.shape[1]])[:] = filled
        of_sampled = {SAMPLED_ROWS: indices.sampled_rows}
        if indices.sampled_starts is not None:
            of_sampled[SAMPLED_STARTS] = indices.sampled_starts
        sent = self._inputs.send(indices.num_tokens, indices.num_seqs, indices.graph, of_sampled)
        counts = (indices.num_tokens, indices.num_seqs, indices.max_query_len)
        longest = _longest_query(indices.sampled_starts)
        batch = self._batch(*counts, sent[SAMPLED_ROWS], sent.get(SAMPLED_STARTS), [], longest)
        return batch if indices.graph is None else replace(batch, graph=indices.graph)

    def _kept_views(self, num_seqs: int) -> KeptViews:
        """Views for steps in which each of so many sequences has one token, which are repeated."""
        kept = self._kept.get(num_seqs)
        if kept is None:
            kept = self._kept[num_seqs] = self._make_views(num_seqs, num_seqs, 1)
        return kept

    def _make_views(self, num_tokens: int, num_seqs: int, max_query_len: int) -> KeptViews:
        """The parts of the buffers that a step of so many tokens and sequences fills."""
        sizes = self._inputs.sizes(num_tokens, num_seqs)
        views = {name: self._workspace[name][:size] for name, size in sizes.items()}
        return KeptViews(
            views["token_ids"],
            views["positions"],
            {place: metadata_of(place, views, views, max_query_len) for place in self._places},
            states_of(self._state_tables, views, views),
        )

    def _sampled_rows(self, plan: StepPlan) -> np.ndarray:
        """Rows of the hidden states: each decoding sequence's only row, and the last row of each completed prompt.

        And those of drafts, behind it.
        """
        number = len(plan.decodes)
        ending = [row for row, item in enumerate(plan.chunks, start=number + 1) if item.needs_sampling]
        last = self._query_starts[ending] - 1
        if plan.num_draft_tokens:
            drafts = np.array([item.num_drafts for item in plan.chunks if item.needs_sampling])
            ends = np.cumsum(1 + drafts)
            last = np.repeat(last - drafts - (ends - 1 - drafts), 1 + drafts) + np.arange(ends[-1])
        return np.concatenate([self._starts[:number], last]).astype(np.int64)

    def _sampled_starts(self, plan: StepPlan) -> np.ndarray:
        """Where queries begin if only sampled sequences have any: one each, and one for each of their drafts."""
        number = len(plan.decodes)
        starts = np.zeros(plan.num_seqs + 1, np.int32)
        starts[1 : number + 1] = 1
        starts[number + 1 :] = [item.needs_sampling + item.num_drafts for item in plan.chunks]
        return np.cumsum(starts, dtype=np.int32)

    # ---- rows that decode

    def _fill_decodes(self, plan: StepPlan) -> None:
        self._positions[: len(plan.decodes)] += 1
        for row in plan.fresh_rows:
            self._positions[row] = plan.decodes[row].num_computed_tokens
        for group in self._groups:
            group.fill_decodes(plan)

    def _fill_decode_tokens(self, plan: StepPlan, latest: np.ndarray | None) -> None:
        """The last token of each; 0 where it is not known yet."""
        number = len(plan.decodes)
        if latest is None:
            self._token_ids[:number] = [
                0 if sequence.num_pending_tokens else sequence.token_ids[-1] for sequence in plan.decodes
            ]
            return
        number = min(number, len(latest))
        self._token_ids[:number] = latest[:number]
        for row in plan.fresh_rows:
            sequence = plan.decodes[row]
            self._token_ids[row] = 0 if sequence.num_pending_tokens else sequence.token_ids[-1]

    # ---- the other rows

    def _fill_chunks(self, plan: StepPlan) -> np.ndarray:
        """Fill in the chunks, behind the rows that decode; returns how many tokens each has."""
        first_row, number = len(plan.decodes), len(plan.chunks)
        counts = np.fromiter((item.num_new_tokens for item in plan.chunks), np.int64, number)
        firsts = np.fromiter((item.sequence.num_computed_tokens for item in plan.chunks), np.int64, number)
        rows = slice(first_row, first_row + number)
        starts = self._query_starts
        starts[first_row + 1 : first_row + number + 1] = first_row + np.cumsum(counts)
        tokens = slice(first_row, plan.num_tokens)
        row_of_token = np.repeat(np.arange(number), counts)
        positions = np.arange(first_row, plan.num_tokens) - starts[rows][row_of_token] + firsts[row_of_token]
        self._positions[tokens] = positions
        for group in self._groups:
            group.fill_chunks(plan, counts, row_of_token, positions)
        self._token_ids[tokens] = list(chain.from_iterable(map(_tokens_of, plan.chunks)))
        return counts


def _group_tables(host: Mapping[str, torch.Tensor], layout: KvLayout) -> list[FullTables | GroupTables | StateTables]:
    if layout.is_uniform and layout.groups[0].kept == FULL:
        return [FullTables(host, layout.block_size)]
    return [
        StateTables(host, index) if group.is_state else GroupTables(host, index, group, layout.block_size)
        for index, group in enumerate(layout.groups)
    ]


def _longest_query(starts: np.ndarray | None) -> int:
    """Most rows between two of ``starts``; 1 where there are none."""
    return 1 if starts is None else int(np.diff(starts).max(initial=1))


def _tokens_of(item: ScheduledSequence) -> list[int]:
    """The tokens that ``item`` computes, drafts last; 0 for one whose value is not known yet."""
    first = item.sequence.num_computed_tokens
    tokens = item.sequence.token_ids[first : first + item.num_new_tokens]
    tokens += item.sequence.draft_token_ids[: item.num_drafts]
    return tokens + [0] * (item.num_new_tokens - len(tokens))
