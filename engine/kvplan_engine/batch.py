"""One step's inputs: a plan of sequences turned into the tensors the model reads."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch

from kvplan_engine.attention.metadata import AttentionMetadata
from kvplan_engine.block_table import BlockTable
from kvplan_engine.request import Sequence
from kvplan_engine.step_plan import StepPlan
from kvplan_engine.workspace import Workspace


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Views into the workspace for T tokens of S sequences.

    token_ids, positions [T] int64. sampled: the sequences whose next token is chosen, in row order of the logits.
    sampled_rows [len(sampled)] int64: the row of the hidden states each of them is predicted from.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    attention: AttentionMetadata
    sampled: list[Sequence]
    sampled_rows: torch.Tensor

    @property
    def num_tokens(self) -> int:
        return self.token_ids.shape[0]


_INDEX_BUFFERS = ("token_ids", "positions", "slots", "block_tables", "seq_lens", "query_starts")


def _host_buffer(buffer: torch.Tensor, staged: bool) -> torch.Tensor:
    """Where the host fills ``buffer``: in place, or in a twin (pinned for a GPU) that is copied to the device."""
    if not staged:
        return buffer
    return torch.empty_like(buffer, device="cpu", pin_memory=buffer.is_cuda)


@dataclass(slots=True, eq=False)
class _TableRow:
    """What a row of the block tables holds: the first ``num_blocks`` blocks of ``table`` as of ``version``."""

    table: BlockTable | None = None
    version: int = -1
    num_blocks: int = 0


class BatchBuilder:
    """Fills the workspace's index buffers from a plan; ``staged`` when the device cannot be written to directly."""

    def __init__(self, workspace: Workspace, block_size: int, *, staged: bool = False) -> None:
        self._workspace = workspace
        self._block_size = block_size
        self._host = {name: _host_buffer(workspace[name], staged) for name in _INDEX_BUFFERS}
        self._staged = staged
        # numpy views of the workspace: assigning Python lists to them is several times faster than to tensors
        arrays = [self._host[name].numpy() for name in _INDEX_BUFFERS]
        self._token_ids, self._positions, self._slots, self._block_tables, self._seq_lens, self._query_starts = arrays
        self._rows: list[_TableRow] = []

    def build(self, plan: StepPlan) -> StepBatch:
        """The step's tensors; valid until the next call."""
        counts = np.fromiter((item.num_new_tokens for item in plan.scheduled), np.int64, len(plan.scheduled))
        firsts = np.fromiter(
            (item.sequence.num_computed_tokens for item in plan.scheduled), np.int64, len(plan.scheduled)
        )
        num_seqs, num_tokens = len(plan.scheduled), plan.num_tokens
        starts = self._query_starts
        starts[0] = 0
        np.cumsum(counts, out=starts[1 : num_seqs + 1])
        self._seq_lens[:num_seqs] = firsts + counts
        self._fill_tables(plan)
        self._fill_tokens(plan, counts, firsts)
        sampled = [(row, item.sequence) for row, item in enumerate(plan.scheduled) if item.needs_sampling]
        rows = starts[1 : num_seqs + 1][[row for row, _ in sampled]].astype(np.int64) - 1
        if self._staged:
            self._upload(num_tokens, num_seqs)
        return StepBatch(
            token_ids=self._workspace["token_ids"][:num_tokens],
            positions=self._workspace["positions"][:num_tokens],
            attention=AttentionMetadata(
                slots=self._workspace["slots"][:num_tokens],
                block_tables=self._workspace["block_tables"][:num_seqs],
                seq_lens=self._workspace["seq_lens"][:num_seqs],
                query_starts=self._workspace["query_starts"][: num_seqs + 1],
                max_query_len=int(counts.max()),
            ),
            sampled=[sequence for _, sequence in sampled],
            sampled_rows=torch.from_numpy(rows).to(self._workspace["token_ids"].device),
        )

    def _upload(self, num_tokens: int, num_seqs: int) -> None:
        """Copy what this step filled to the device. The host buffers are free again once its tokens have been read."""
        rows = dict.fromkeys(("token_ids", "positions", "slots"), num_tokens)
        rows |= {"block_tables": num_seqs, "seq_lens": num_seqs, "query_starts": num_seqs + 1}
        for name, count in rows.items():
            self._workspace[name][:count].copy_(self._host[name][:count], non_blocking=True)

    def _fill_tables(self, plan: StepPlan) -> None:
        """Write what changed since the last step: a row that has the same table again has mostly not changed at all."""
        tables, rows = self._block_tables, self._rows
        del rows[len(plan.scheduled) :]
        rows += [_TableRow() for _ in range(len(plan.scheduled) - len(rows))]
        for number, (item, row) in enumerate(zip(plan.scheduled, rows, strict=True)):
            table = item.sequence.table
            num_blocks = len(table.blocks)
            if row.table is not table or row.version != table.version:
                row.table, row.version, row.num_blocks = table, table.version, 0
            if row.num_blocks < num_blocks:
                tables[number, row.num_blocks : num_blocks] = table.blocks[row.num_blocks :]
                row.num_blocks = num_blocks

    def _fill_tokens(self, plan: StepPlan, counts: np.ndarray, firsts: np.ndarray) -> None:
        num_tokens = plan.num_tokens
        if num_tokens == len(plan.scheduled):  # every sequence adds one token
            self._token_ids[:num_tokens] = [
                item.sequence.token_ids[item.sequence.num_computed_tokens] for item in plan.scheduled
            ]
            positions = firsts
            rows = np.arange(num_tokens)
        else:
            pieces = (
                item.sequence.token_ids[first : first + item.num_new_tokens]
                for item, first in zip(plan.scheduled, firsts.tolist(), strict=True)
            )
            self._token_ids[:num_tokens] = list(chain.from_iterable(pieces))
            rows = np.repeat(np.arange(len(counts)), counts)
            positions = np.arange(num_tokens) - np.repeat(self._query_starts[: len(counts)], counts) + firsts[rows]
        self._positions[:num_tokens] = positions
        blocks = self._block_tables[rows, positions // self._block_size].astype(np.int64)
        self._slots[:num_tokens] = blocks * self._block_size + positions % self._block_size
