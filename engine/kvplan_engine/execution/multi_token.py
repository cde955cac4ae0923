"""A model's own layer for multi-token prediction (MTP), which drafts from the hidden states of the step before.

At position p it reads the model's hidden state of p and the token of p + 1, and guesses that of p + 2. So it runs right
behind a step, over the step's rows, once the tokens that follow them are known; where drafts were rejected, over the
rows before. Its KV lies in the same slots as the model's, layer ``num_layers`` of the pool's blocks:

    step computes      t   d1  d2        t: the last token of a sequence; d1 is accepted, d2 is not, b follows d1
    draws              d1  b   x
    MTP reads   h(t)  h(d1)              beside d1 and b, and guesses e1, the token behind b

Further drafts follow before the next step, whose blocks they are written to, each from the layer's own hidden state of
the draft before (vLLM's ``TargetDependentARSpeculator`` with one layer). The next step's pass writes over their KV.

The layer's KV of a position follows from the next token too. Where a cached block, or the last token of a prompt with
several samples, is continued otherwise than it was first, that one position's is the first one's: a draft may be worse,
and no token changes. Samples but the first have no drafts in their first step.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Rows

import torch

from kvplan_engine.blocks.layout import KvLayout
from kvplan_engine.execution.drafting import DraftRunner, row_of
from kvplan_engine.memory.step_buffers import HANDED_ON
from kvplan_engine.memory.workspace import Workspace
from kvplan_engine.models.joined_decoder import JoinedDecoder
from kvplan_engine.models.loaded_model import LoadedModel
from kvplan_engine.requests.request import ScheduledSequence, Sequence
from kvplan_engine.requests.status import SequenceStatus
from kvplan_engine.requests.step_plan import StepPlan
from kvplan_engine.sampling.sampler import SampledTokens


class MultiTokenRunner(DraftRunner):
    """Runs the layer behind each step, and before the next one for further drafts."""

    reads_hidden = True

    def __init__(self, model: LoadedModel, workspace: Workspace, layout: KvLayout, names: Rows[str], first_layer: int):
        super().__init__(model, workspace, layout, names, first_layer)
        assert isinstance(model.decoder, JoinedDecoder)
        self._decoder = model.decoder
        self._handed_on = self._space[HANDED_ON]
        self._rows: dict[Sequence, int] = {}  # of what is handed on, which sequence's it is

    def drop_pool(self) -> None:
        """Let go of the blocks, and of what their tokens gave."""
        super().drop_pool()
        self.first_drafts.clear()
        self._rows.clear()

    def follow(self, plan: StepPlan, sampled: SampledTokens, hidden: torch.Tensor) -> None:
        """See StepRunner.follow."""
        runs = sampled.runs
        ends = [[token.token_id for token in run] for run in runs] if runs else [[each] for each in sampled.token_ids]
        drawn = dict(zip(plan.sampled, ends, strict=True))
        items: list[ScheduledSequence] = []
        drafting: list[Sequence] = []
        tokens: list[int] = []
        rows: list[int] = []
        for first_row, item in _rows_of(plan):
            sequence, number = item.sequence, item.num_new_tokens
            first = sequence.num_computed_tokens - number
            is_drafting = item.needs_sampling and sequence.request.beams is None
            end = drawn[sequence] if is_drafting else [0]  # nothing reads what follows a beam
            following = (sequence.token_ids[first + 1 : first + 1 + number] + end)[:number]  # of accepted rows
            items.append(row_of(sequence, first, len(following), is_sampled=is_drafting))
            drafting += [sequence] * is_drafting
            tokens += following
            rows += range(first_row, first_row + len(following))
        places = self._take_places(drafting)
        best = self._predict(items, tokens, hidden, rows, places)
        self.first_drafts.clear()
        self.first_drafts.update(zip((each.number for each in drafting), best, strict=True))

    def fill(self, plan: StepPlan) -> None:
        """Put drafts in the places behind the first, which is there."""
        going = [item.sequence for item in plan.chunks if item.num_drafts > 1]
        drafts = {sequence: list(sequence.draft_token_ids[:1]) for sequence in going}
        while going:
            firsts = [len(each.token_ids) - 2 + len(drafts[each]) for each in going]
            items = [row_of(each, first, 1, is_sampled=True) for each, first in zip(going, firsts, strict=True)]
            places = [self._rows[each] for each in going]
            best = self._predict(items, [drafts[each][-1] for each in going], self._handed_on, places, places)
            for sequence, token in zip(going, best, strict=True):
                drafts[sequence].append(token)
            going = [each for each in going if len(drafts[each]) < len(each.draft_token_ids)]
        for sequence, found in drafts.items():
            sequence.draft_token_ids = found

    def _predict(
        self,
        items: list[ScheduledSequence],
        tokens: list[int],
        hidden: torch.Tensor,
        rows: list[int],
        places: list[int],
    ) -> list[int]:
        """The likeliest token behind each of ``items`` that is sampled; what it hands on is put in ``places``.

        tokens, rows: of each position of ``items`` the token that follows, and its row of ``hidden``.
        """
        assert self._kv is not None
        batch = self._build(items)
        batch.token_ids.copy_(torch.tensor(tokens))
        logits, handed_on = self._decoder.predict(batch, self._kv, self._space, hidden, torch.tensor(rows))
        self._handed_on.index_copy_(0, torch.tensor(places, dtype=torch.int64), handed_on)
        return self._likeliest(logits)

    def _take_places(self, sequences: list[Sequence]) -> list[int]:
        """A row of what is handed on for each. Those whose drafts are not to be verified any more leave theirs."""
        kept = {each: row for each, row in self._rows.items() if _awaits(each)}
        taken = set(kept.values())
        free = (row for row in range(self._handed_on.shape[0]) if row not in taken)
        self._rows = kept | {each: next(free) for each in sequences if each not in kept}
        return [self._rows[each] for each in sequences]


def _rows_of(plan: StepPlan) -> Iterator[tuple[int, ScheduledSequence]]:
    """Each sequence of a step with the first of its rows."""
    row = 0
    for item in plan.scheduled:
        yield row, item
        row += item.num_new_tokens


def _awaits(sequence: Sequence) -> bool:
    """Whether drafts of ``sequence`` are to be verified."""
    return sequence.status is SequenceStatus.RUNNING and bool(sequence.draft_token_ids)
