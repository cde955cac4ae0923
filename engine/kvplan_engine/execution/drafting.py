"""A draft model beside the engine's own: its KV lies in the same blocks, and it runs before each step.

Its layers are further layers of the pool's blocks, behind the model's. So one block table serves both, and what is
shared, copied, swapped or evicted takes the draft model's KV with it. The same is true of a model's own layer that
drafts (``multi_token``). Before a step a draft model computes the same known tokens as the step, and then, for the
sequences that are to verify drafts, one token after the other:

    step computes       t  d1 d2 d3        t: the last token of a sequence
    draft model   1   s t                  s: the one before, whose KV is not there where it was an accepted draft
                  2        d1
                  3           d2

The likeliest tokens are proposed, as vLLM's draft models do (``draft_sample_method`` greedy).
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Rows
from dataclasses import dataclass

import torch

from kvplan_engine.blocks.block_table import BlockTable
from kvplan_engine.blocks.layout import KvLayout
from kvplan_engine.config import EngineConfig
from kvplan_engine.description.mixers import FULL
from kvplan_engine.errors import EngineError
from kvplan_engine.execution.inputs.batch import BatchBuilder
from kvplan_engine.layers.rope import fill_rope_table
from kvplan_engine.memory.breakdown import rope_tables
from kvplan_engine.memory.step_buffers import DRAFT_PREFIX, HANDED_ON
from kvplan_engine.memory.workspace import Workspace
from kvplan_engine.models.kv_pool import KvPool, places_of
from kvplan_engine.models.loaded_model import LoadedModel
from kvplan_engine.models.part_decoders import JoinedDecoder
from kvplan_engine.models.step_batch import StepBatch
from kvplan_engine.requests.request import Request, ScheduledSequence, Sequence
from kvplan_engine.requests.status import SequenceStatus
from kvplan_engine.requests.step_plan import StepPlan
from kvplan_engine.sampling.sampler import SampledTokens
from kvplan_engine.transformers_backend.model import RunnableModel


@dataclass(frozen=True, slots=True)
class _Row:
    """A sequence as the draft model's batch reads it. draft_token_ids: the draft that it computes, if it does."""

    request: Request
    table: BlockTable
    token_ids: list[int]
    num_computed_tokens: int
    draft_token_ids: Rows[int] = ()


class DraftRunner:
    """Runs the draft model over its part of the workspace and of the pool. first_layer: of its layers in the layout."""

    reads_hidden = False
    """Whether it reads the last layer's output of every row of a step."""

    def __init__(self, model: LoadedModel, workspace: Workspace, layout: KvLayout, names: Rows[str], first_layer: int):
        self._model, self._layout, self._first_layer = model, layout, first_layer
        self._space = workspace.part(DRAFT_PREFIX)
        places = places_of(layout, model.config, first_layer)
        self._batches = BatchBuilder(self._space, layout, names, places)
        self._best = torch.empty(self._space["logits"].shape[0], dtype=torch.int64)
        self._kv: KvPool | None = None
        self.fill_tables()
        self.first_drafts: dict[int, int] = {}
        """Tokens behind the last step's, by the numbers of their sequences, until they are proposed."""

    def fill_tables(self) -> None:
        """Write the cosines and sines, which somebody else may have overwritten."""
        for name, rope in rope_tables(self._model.config).items():
            fill_rope_table(self._space[name], rope)

    def use_pool(self, kv: KvPool) -> None:
        """Keep the draft model's KV in the blocks of ``kv``."""
        dtypes = (kv.dtype, getattr(torch, self._model.dtype))
        self._kv = KvPool(kv.planes, self._layout, self._model.config, *dtypes, first_layer=self._first_layer)

    def drop_pool(self) -> None:
        """Let go of the blocks."""
        self._kv = None

    def fill(self, plan: StepPlan) -> None:
        """Put drafts in the places that the scheduler has kept for them."""
        drafting = [item.sequence for item in plan.chunks if item.num_drafts]
        wanted = [len(sequence.draft_token_ids) for sequence in drafting]
        drafts: list[list[int]] = [[token] for token in self._run([_known(item) for item in plan.scheduled])]
        for number in range(1, max(wanted, default=0)):
            going = [index for index, count in enumerate(wanted) if count > number]
            tokens = self._run([_behind(drafting[index], drafts[index]) for index in going])
            for index, token in zip(going, tokens, strict=True):
                drafts[index].append(token)
        for sequence, found in zip(drafting, drafts, strict=True):
            sequence.draft_token_ids = found

    def follow(self, plan: StepPlan, sampled: SampledTokens, hidden: torch.Tensor) -> None:
        """See StepRunner.follow. A draft model reads tokens alone."""

    def _run(self, items: list[ScheduledSequence]) -> list[int]:
        """The likeliest token behind each of ``items`` that is sampled."""
        assert self._kv is not None
        return self._likeliest(self._model.decoder.forward(self._build(items), self._kv, self._space))

    def _build(self, items: list[ScheduledSequence]) -> StepBatch:
        plan = StepPlan(chunks=items, num_tokens=sum(item.num_new_tokens for item in items))
        return self._batches.build(plan)

    def _likeliest(self, logits: torch.Tensor) -> list[int]:
        best = self._best[: logits.shape[0]]
        self._model.ops.argmax_rows(logits, best)
        tokens: list[int] = best.tolist()
        return tokens


def _known(item: ScheduledSequence) -> ScheduledSequence:
    """What a step computes of known tokens, and one before where drafts are to follow."""
    sequence, number = item.sequence, item.num_new_tokens - item.num_drafts
    first = sequence.num_computed_tokens
    if item.num_drafts and first:
        first, number = first - 1, number + 1
    return row_of(sequence, first, number, is_sampled=item.num_drafts > 0)


def row_of(sequence: Sequence, first: int, number: int, *, is_sampled: bool) -> ScheduledSequence:
    """``number`` tokens of ``sequence`` from its ``first`` on, computed without a trace in it."""
    row = _Row(sequence.request, sequence.table, sequence.token_ids, first)
    return ScheduledSequence(row, number, is_sampled)  # type: ignore[arg-type]  # what a batch reads of one


def _behind(sequence: Sequence, drafts: list[int]) -> ScheduledSequence:
    """The last of ``drafts``, computed behind ``sequence`` and the others."""
    first = len(sequence.token_ids) + len(drafts) - 1
    row = _Row(sequence.request, sequence.table, sequence.token_ids, first, drafts[-1:])
    return ScheduledSequence(row, 1, True, num_drafts=1)  # type: ignore[arg-type]


def drafter_of(model: RunnableModel, config: EngineConfig) -> LoadedModel | None:
    """The draft model that ``config`` asks for, None for none. EngineError where another was loaded, or none."""
    if not config.drafts_with_model:
        return None
    drafter = model.drafter if isinstance(model, LoadedModel) else None
    assert config.speculative_config is not None
    is_own = config.drafts_with_own_layer
    name = config.model if is_own else config.speculative_config.model
    if drafter is None or drafter.name != name or (drafter.config.joined is not None) != is_own:
        what = "the layer for multi-token prediction" if is_own else "this draft model"
        raise EngineError(f"the engine was started without {what}.", hint="start a new one")
    return drafter


def refuse_pair(model: RunnableModel, drafter: LoadedModel, layout: KvLayout) -> None:
    """EngineError for a draft model that cannot draft for ``model``, or whose KV does not lie in its blocks."""
    if model.config.vocab_size != drafter.config.vocab_size:
        raise EngineError(
            f"the draft model has a vocabulary of {drafter.config.vocab_size:,} tokens, and the model one of "
            f"{model.config.vocab_size:,}.",
            hint="use a draft model of the same family",
        )
    if model.dtype != drafter.dtype:
        raise EngineError(
            f"the draft model computes in {drafter.dtype}, and the model in {model.dtype}.", hint="name one: dtype"
        )
    if not (layout.is_uniform and layout.groups[0].kept == FULL):
        raise EngineError(
            "methods 'draft_model' and 'mtp' are for models whose layers all keep every token alike.",
            hint="use method 'ngram'",
        )


# A model's own layer for multi-token prediction (MTP), which drafts from the hidden states of the step before.
#
# At position p it reads the model's hidden state of p and the token of p + 1, and guesses that of p + 2. So it runs
# right behind a step, over the step's rows, once the tokens that follow them are known; where drafts were rejected,
# over the rows before. Its KV lies in the same slots as the model's, layer ``num_layers`` of the pool's blocks:
#
#     step computes      t   d1  d2        t: the last token of a sequence; d1 is accepted, d2 is not, b follows d1
#     draws              d1  b   x
#     MTP reads   h(t)  h(d1)              beside d1 and b, and guesses e1, the token behind b
#
# Further drafts follow before the next step, whose blocks they are written to, each from the layer's own hidden state
# of the draft before (vLLM's ``TargetDependentARSpeculator`` with one layer). The next step's pass writes over their
# KV.
#
# The layer's KV of a position follows from the next token too. Where a cached block, or the last token of a prompt with
# several samples, is continued otherwise than it was first, that one position's is the first one's: a draft may be
# worse, and no token changes. Samples but the first have no drafts in their first step.


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
