"""What one step does: which sequences compute which tokens, and which blocks are copied before. No torch.

A plan is made from counts alone, so it can be made before the tokens of the last step are known. Where a sequence's
last token is still on its way (``num_pending_tokens`` is 1 when the plan is made), its value is what that step chose:
row i of ``decodes`` reads what row i of that step's ``sampled`` got, except for ``fresh_rows``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvplan_engine.blocks.transfers import Transfer
from kvplan_engine.requests.request import ScheduledSequence, Sequence


@dataclass(slots=True)
class StepPlan:
    """A step's sequences in the order of the batch's rows: first ``decodes``, then ``chunks``.

    decodes: sequences that compute their last token and get another. known: their lists of tokens, by row.
    fresh_rows: rows of ``decodes`` that held a different sequence in the last plan; all others hold the same one,
    advanced by a token. grown_rows, grown_blocks: rows of ``decodes`` whose table has got a block, and these blocks.
    has_adapters: some of the running sequences have one.
    chunks: everything else: pieces of prompts, and sequences that do not decode in a row. num_draft_tokens: of their
    tokens. transfers: carried out in this order before the step writes.

    Filled in by ``Scheduler.commit``, which also forks the samples of completed prompts:
    sampled: the sequences that get a token. logits_rows: the row of the logits that each of them draws from, the first
    of several where it has drafts; None if it is their own. ending: the rows of ``sampled`` whose token is their last,
    by length. stop_ids: the tokens that may end one of them. has_stop_strings: so may the text of some.
    needs_token_details: some report log-probabilities. is_plainly_greedy: all of them get their likeliest token and
    nothing else.
    """

    decodes: list[Sequence] = field(default_factory=list)
    known: list[list[int]] = field(default_factory=list)
    fresh_rows: list[int] = field(default_factory=list)
    grown_rows: list[int] = field(default_factory=list)
    grown_blocks: list[int] = field(default_factory=list)
    chunks: list[ScheduledSequence] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    num_tokens: int = 0
    num_draft_tokens: int = 0
    num_preempted: int = 0
    has_adapters: bool = False
    sampled: list[Sequence] = field(default_factory=list)
    logits_rows: list[int] | None = None
    ending: list[int] = field(default_factory=list)
    stop_ids: frozenset[int] = frozenset()
    has_stop_strings: bool = False
    needs_token_details: bool = False
    is_plainly_greedy: bool = False

    @property
    def scheduled(self) -> list[ScheduledSequence]:
        """All rows of the batch, created anew in every call."""
        return [ScheduledSequence(sequence, 1, True) for sequence in self.decodes] + self.chunks

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether logits are needed of rows that get no token. The same before and after ``Scheduler.commit``."""
        return any(item.sequence.request.lacks_prompt_logprobs for item in self.chunks)

    @property
    def num_seqs(self) -> int:
        return len(self.decodes) + len(self.chunks)

    def add(self, sequence: Sequence, num_new_tokens: int) -> None:
        """Append a chunk. Drafts that it does not reach are dropped."""
        num_behind = sequence.num_computed_tokens + num_new_tokens - sequence.num_tokens
        num_drafts = max(num_behind, 0)
        if sequence.draft_token_ids:
            sequence.draft_token_ids = sequence.draft_token_ids[:num_drafts]
        self.chunks.append(ScheduledSequence(sequence, num_new_tokens, num_behind >= 0, num_drafts))
        self.num_tokens += num_new_tokens
        self.num_draft_tokens += num_drafts


# Counts and times of a step: the source of a server's metrics and of a sweep's rows. No torch.


@dataclass(slots=True)
class StepStats:
    """One step. Blocks and tokens are counted once the step has been started, before finished sequences leave.

    num_used_tokens: token slots of used blocks that hold KV; the other slots are internal fragmentation.
    num_swaps: preemptions, among num_preemptions, that swapped to host memory.
    step_seconds: until its tokens were there, since it was started or, if that was later, those of the step before were
    there: so the seconds of steps that run one behind the other add up. is_followed: the next one was started before.
    longest_stall_seconds: of the sequences that got a token in this step, the longest time since the last one; those
    preempted in between do not count.
    num_preemptions, num_swaps, recomputed_tokens, num_blocked_admissions: since the pool was made.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_swapped: int = 0
    num_scheduled_tokens: int = 0
    num_used_blocks: int = 0
    num_free_blocks: int = 0
    num_used_tokens: int = 0
    num_running_tokens: int = 0
    internal_fragmentation_bytes: int = 0
    num_preemptions: int = 0
    num_swaps: int = 0
    recomputed_tokens: int = 0
    num_blocked_admissions: int = 0
    step_seconds: float = 0.0
    longest_stall_seconds: float = 0.0
    is_followed: bool = False
