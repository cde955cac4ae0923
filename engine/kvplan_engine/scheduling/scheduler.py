"""Which sequences run in a step: continuous batching over paged memory. No torch.

Every step is decided anew. First come the running sequences, oldest first, each with the tokens it still has to compute
(one when it decodes, a chunk of its prompt otherwise), then swapped ones, then waiting ones, as long as the token
budget, the number of sequences and the free blocks allow. When blocks run out, the newest running sequence is
preempted: its blocks are returned at once, and it comes back from the front of the swapped or the waiting queue.

This file handles the running sequences: their blocks, preemption, and what a step leaves behind. ``admission`` decides
who joins them; ``persistent_batch`` lets a step visit only those decoding sequences that need something.

Scheduling needs counts of tokens, not their values, so the next step can be decided and started while this one's
tokens are still being computed:

    plan = schedule()    a sequence whose last token is on its way is treated like any other; one that has reached its
                         longest length, the token on its way included, is left out
    commit(plan)         the step has been started (or done): its tokens count as computed, each sampled sequence counts
                         one more token, and samples fork. Inputs are read from the plan before this, tokens drawn after
    ...                  the next schedule() and commit() may come here, unless ``needs_values``
    OutputProcessor.take()   the values have arrived, in the order of the plans; sequences that end are finished
    begin_anew()         instead of all that: a step has failed, and its tokens never come

So a sequence may be finished, here or by the user, when another step with it has already been started. What that step
writes for it lies behind its known tokens, in blocks that are free by then; whoever gets these blocks writes to them in
a later step. ``take`` drops the token on its way. At most one step may be ahead.
Blocks are hashed when the tokens in them are known: in the step after they became full.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows

from kvplan_engine.blocks.block_pool import BlockPool, NoFreeBlocks, check_pool
from kvplan_engine.blocks.block_table import BlockTable, grow_each
from kvplan_engine.blocks.prefix_cache import PrefixCache
from kvplan_engine.blocks.transfers import TransferLog
from kvplan_engine.config import EngineConfig
from kvplan_engine.offload.preemption import PreemptionPolicy
from kvplan_engine.offload.tiers import KvTiers
from kvplan_engine.requests.request import Request, Sequence
from kvplan_engine.requests.status import FinishReason, SequenceStatus
from kvplan_engine.requests.step_plan import StepPlan
from kvplan_engine.scheduling.admission import Admission, Reservation, check_request
from kvplan_engine.scheduling.running_sequences import RunningSequences, num_forks


class Scheduler:
    """Owns the running sequences and, through its admission, the queues; takes and returns blocks of ``pool``.

    max_model_len: the longest sequence, as resolved for the model. The block transfers that a step begins with are
    collected in ``log``, by whoever decides on them.
    num_orphan_tokens: tokens on their way to sequences that have been finished meanwhile.
    """

    def __init__(
        self,
        config: EngineConfig,
        max_model_len: int,
        pool: BlockPool,
        prefix_cache: PrefixCache,
        preemption: PreemptionPolicy,
        tiers: KvTiers,
        log: TransferLog,
    ) -> None:
        self.config = config
        self.max_model_len = max_model_len
        self.pool = pool
        self.prefix_cache = prefix_cache
        self.running = RunningSequences(config)
        self.num_preemptions = 0
        self.num_swaps = 0
        self.num_recomputed_tokens = 0
        self.num_orphan_tokens = 0
        self._preemption = preemption
        self._log = log
        self._tiers = tiers
        self._recomputing: set[Sequence] = set()
        self._token_blocks = pool.layout.token_blocks
        self._reservation = Reservation(config, max_model_len, pool, self.running, log)
        self._admission = Admission(config, pool, prefix_cache, self.running, self._reservation, preemption.swap, tiers)
        self.waiting = self._admission.waiting
        self.swapped = self._admission.swapped

    # ---- requests in and out

    def add(self, request: Request) -> None:
        """Queue a request. EngineError when it can never run under these settings."""
        check_request(request, self.config, self.max_model_len)
        sequence = Sequence(request, 0, list(request.prompt_token_ids), BlockTable(self.pool))
        if request.beams is None:  # a search ends its beams itself
            max_num_tokens = len(request.prompt_token_ids) + request.params.max_tokens
            sequence.max_num_tokens = min(max_num_tokens, self.max_model_len)
        request.sequences.append(sequence)
        self.waiting.append(sequence)

    def fork(self, sequence: Sequence) -> Sequence:
        """One more sample of ``sequence``'s request, running beside it on the same blocks."""
        child = self.running.fork(sequence, len(sequence.request.sequences))
        sequence.request.sequences.append(child)
        self.running.use_kept_seat()
        return child

    def branch(self, beam: Sequence, index: int) -> Sequence:
        """A second continuation of ``beam``: on the same blocks if it runs and a seat is free, otherwise queued."""
        if beam.status is SequenceStatus.RUNNING and self.running.has_seat(beam):
            return self.running.fork(beam, index)
        child = Sequence(beam.request, index, list(beam.token_ids), BlockTable(self.pool))
        child.high_water_tokens = max(beam.high_water_tokens, beam.num_computed_tokens)
        self._recomputing.add(child)
        self.waiting.appendleft(child)
        return child

    def unpark(self, beam: Sequence) -> None:
        """``beam`` has a token to compute: if it was parked, queue it."""
        if beam.status is SequenceStatus.PARKED:
            beam.status = SequenceStatus.WAITING
            self.waiting.appendleft(beam)

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End ``sequence``, wherever it is, and return its blocks at once."""
        if sequence.status is SequenceStatus.RUNNING:
            self._register_full_blocks(sequence)
            self.running.leave(sequence)
        elif sequence.status is SequenceStatus.WAITING:
            self.waiting.remove(sequence)
        elif sequence.status is SequenceStatus.SWAPPED:
            self._leave_swap_space(sequence)
        self._recomputing.discard(sequence)
        self.num_orphan_tokens += sequence.num_pending_tokens
        sequence.status = SequenceStatus.FINISHED
        sequence.finish_reason = reason
        sequence.table.release()

    @property
    def has_unfinished(self) -> bool:
        return bool(self.running or self.waiting or self.swapped)

    @property
    def num_blocked_admissions(self) -> int:
        """Steps in which a waiting sequence stayed out for want of free blocks."""
        return self._admission.num_blocked

    @property
    def needs_values(self) -> bool:
        """Whether the next step cannot be decided before the tokens of the last one are known."""
        return self.running.num_needing_values > 0

    @property
    def has_penalties(self) -> bool:
        """Whether draws of the next step depend on the tokens of the last one."""
        return self.running.num_penalised > 0

    # ---- one step

    def schedule(self) -> StepPlan:
        """Decide what the next step computes, and take the blocks it writes to."""
        plan = StepPlan()
        self._fill(plan)
        while not plan.num_tokens and self.running:  # only beams that wait for siblings, for which there is no room
            if self.running.newest.num_pending_tokens:
                break  # nothing can be computed before the tokens on their way have come
            self._preempt(self.running.newest)
            plan.num_preempted = 0
            self._fill(plan)
        plan.transfers = self._log.take()
        plan.has_adapters = self.running.has_adapters
        return plan

    def _fill(self, plan: StepPlan) -> None:
        self._schedule_running(plan)
        if not plan.num_preempted:
            self._admission.fill(plan)

    def _schedule_running(self, plan: StepPlan) -> None:
        """Blocks for the running sequences; when they run out, the newest is preempted, even if it just got its own."""
        decoding = self.running.decoding
        if self.prefix_cache.enabled:
            self.prefix_cache.register_next(decoding.at_border)
        self._update_decoding()
        growing = self._grow_decoding(plan)
        chunks = self._reserve_chunks(plan)
        plan.decodes, plan.known = decoding.sequences.copy(), decoding.token_ids.copy()
        plan.fresh_rows = decoding.take_fresh()
        plan.num_tokens = len(decoding)
        for sequence in growing:
            if sequence.row >= 0:
                plan.grown_rows.append(sequence.row)
                plan.grown_blocks.append(sequence.table.groups[0].bundles[-1])
        for sequence, num_new_tokens in chunks:
            if sequence.status is SequenceStatus.RUNNING:
                plan.add(sequence, num_new_tokens)

    def _update_decoding(self) -> None:
        """Every sequence whose prompt is computed and that has one token to compute decodes, as far as the budget goes.

        A prompt's last token is a chunk, even where a budget has left no other of it: samples fork behind chunks.
        """
        running, decoding = self.running, self.running.decoding
        for sequence in decoding.at_end:
            running.stop_decoding(sequence)
        for sequence in tuple(running.others):
            self._register_full_blocks(sequence)
            if _can_decode(sequence):
                running.start_decoding(sequence)
        num_excess = len(decoding) - self.config.max_num_batched_tokens
        if num_excess > 0:
            for sequence in running.newest_decoding(num_excess):
                running.stop_decoding(sequence)

    def _grow_decoding(self, plan: StepPlan) -> list[Sequence]:
        """A logical block for each decoding sequence that needs one, preempting newer ones; which these are."""
        decoding, layout = self.running.decoding, self.pool.layout
        growing = decoding.at_border
        if self.config.reserves_all:
            for sequence in growing if layout.forgets else ():
                self._reservation.take(sequence, 1)
            return []
        if layout.forgets:
            for sequence in growing:
                sequence.table.leave_behind(sequence.num_computed_tokens)
        while len(growing) * self._token_blocks > self.pool.num_free_blocks:
            self._preempt_newest(plan)
            growing = decoding.at_border
        grow_each(self.pool, [sequence.table for sequence in growing])
        return growing

    def _reserve_chunks(self, plan: StepPlan) -> list[tuple[Sequence, int]]:
        """Blocks for the sequences that do not decode; which these are, and how many tokens each computes."""
        budget = self.config.max_num_batched_tokens - len(self.running.decoding)
        chunks = []
        others = sorted(self.running.others, key=lambda sequence: not sequence.draft_token_ids)  # before any prompt
        for sequence in others:
            num_new_tokens = min(_num_missing(sequence) + len(sequence.draft_token_ids), budget)
            num_new_tokens = self._reservation.chunk(sequence, sequence.num_computed_tokens, num_new_tokens)
            if num_new_tokens and self._try_reserve(sequence, num_new_tokens, plan):
                chunks.append((sequence, num_new_tokens))
                budget -= num_new_tokens
        return chunks

    def _try_reserve(self, sequence: Sequence, num_new_tokens: int, plan: StepPlan) -> bool:
        """Blocks for the next tokens of ``sequence``, preempting newer ones; False when it is preempted itself."""
        while sequence.status is SequenceStatus.RUNNING:
            try:
                self._reservation.take(sequence, num_new_tokens)
            except NoFreeBlocks:
                self._preempt_newest(plan)
            else:
                return True
        return False

    # ---- out of the running sequences

    def _preempt_newest(self, plan: StepPlan) -> None:
        self._preempt(self.running.newest)
        plan.num_preempted += 1

    def _preempt(self, sequence: Sequence) -> None:
        self._register_full_blocks(sequence)
        self.running.leave(sequence)
        self.num_preemptions += 1
        sequence.request.num_preemptions += 1
        sequence.last_token_seconds = None
        sequence.draft_token_ids = ()
        if sequence.num_computed_tokens == sequence.num_tokens:
            self._park(sequence)
            return
        if self._preemption.try_swap_out(sequence):
            self.num_swaps += 1
            sequence.status = SequenceStatus.SWAPPED
            self.swapped.appendleft(sequence)
            return
        self._forget_computed(sequence)
        sequence.status = SequenceStatus.WAITING
        self.waiting.appendleft(sequence)

    def _park(self, beam: Sequence) -> None:
        """A beam that waits for its siblings has nothing to compute: it joins no queue."""
        self._forget_computed(beam)
        beam.status = SequenceStatus.PARKED

    def _forget_computed(self, sequence: Sequence) -> None:
        sequence.table.release()
        sequence.high_water_tokens = max(sequence.high_water_tokens, sequence.num_computed_tokens)
        if sequence.high_water_tokens:
            self._recomputing.add(sequence)
        sequence.num_computed_tokens = 0
        sequence.num_registered_blocks = 0

    # ---- after a step that failed

    def begin_anew(self, *, keeps_cache: bool) -> None:
        """Forget the steps that were under way: what ran is queued, and computed again behind its known tokens.

        keeps_cache: every transfer was carried out. Otherwise nobody knows what cached blocks hold, and none is kept.
        """
        self._log.take()
        for sequence in reversed((*self.running, *self.swapped)):
            if sequence.status is SequenceStatus.RUNNING:
                self.running.leave(sequence)
            else:
                self._leave_swap_space(sequence)
            sequence.last_token_seconds = None
            sequence.draft_token_ids = ()
            self._forget_computed(sequence)
            sequence.status = SequenceStatus.WAITING
            self.waiting.appendleft(sequence)
        for sequence in self.waiting:
            sequence.num_tokens = len(sequence.token_ids)  # the others never come
        self.num_orphan_tokens = 0
        if not keeps_cache:
            self.pool.forget_cached()
            self._tiers.forget_host()

    def _leave_swap_space(self, sequence: Sequence) -> None:
        self.swapped.remove(sequence)
        self._preemption.swap.release(sequence.swapped)
        sequence.swapped = []

    # ---- after the step

    def commit(self, plan: StepPlan) -> None:
        """The step has been started or computed: see the head of this file."""
        if self._recomputing:
            self._count_recomputed(plan)
        running = self.running
        running.num_tokens += plan.num_tokens
        plan.sampled = plan.decodes
        if plan.decodes:
            running.decoding.clock.ticks += 1
            plan.ending = [sequence.row for sequence in running.decoding.at_end]
        if plan.chunks:
            self._commit_chunks(plan)
        plan.stop_ids = running.stop_ids
        plan.has_stop_strings = running.num_with_stop_strings > 0
        plan.needs_token_details = running.num_needing_details > 0
        plan.is_plainly_greedy = not running.num_not_plainly_greedy

    def _commit_chunks(self, plan: StepPlan) -> None:
        first = num_rows = len(plan.decodes)
        sampled: list[Sequence] = []
        rows = list(range(first))
        for item in plan.chunks:
            item.sequence.num_computed_tokens += item.num_new_tokens
            if item.needs_sampling:
                sampled.append(item.sequence)
                rows.append(num_rows)
                num_rows += 1 + item.num_drafts
        for row, sequence in zip(rows[first:], tuple(sampled), strict=True):
            forks = [self.fork(sequence) for _ in range(num_forks(sequence))]
            sampled += forks
            rows += [row] * len(forks)
        for row, sequence in enumerate(sampled, start=first):
            if sequence.request.beams is None:
                sequence.num_tokens += 1 + len(sequence.draft_token_ids)  # until it is known which are accepted
                if sequence.num_tokens >= sequence.max_num_tokens:
                    plan.ending.append(row)
        plan.sampled = plan.decodes + sampled
        plan.known = plan.known + [sequence.token_ids for sequence in sampled]
        if len(rows) > num_rows or plan.num_draft_tokens:
            plan.logits_rows = rows

    # ---- drafts

    def propose(self, sequence: Sequence, token_ids: Rows[int]) -> None:
        """Let the next step compute ``token_ids`` behind the last token of ``sequence``, which runs.

        As far as it may grow: in vLLM too that is the longest length of all, and not its request's.
        """
        sequence.draft_token_ids = token_ids[: max(self.max_model_len - sequence.num_tokens - 1, 0)]
        if sequence.draft_token_ids and sequence.row >= 0:
            self.running.stop_decoding(sequence)

    def settle(self, sequence: Sequence, num_accepted: int) -> None:
        """Make the first ``num_accepted`` of the drafts of ``sequence`` that a committed step computed its tokens.

        The others' KV is as if it had never been computed, and blocks that hold nothing else are given back.
        """
        num_rejected = len(sequence.draft_token_ids) - num_accepted
        sequence.draft_token_ids = ()
        sequence.num_tokens -= num_rejected
        sequence.num_computed_tokens -= num_rejected
        self.running.num_tokens -= num_rejected
        if not self.config.reserves_all:
            sequence.table.trim(sequence.num_computed_tokens)

    def _count_recomputed(self, plan: StepPlan) -> None:
        for item in plan.chunks:
            before, high = item.sequence.num_computed_tokens, item.sequence.high_water_tokens
            if before < high:
                self.num_recomputed_tokens += min(high - before, item.num_new_tokens)
            if before + item.num_new_tokens >= high:
                self._recomputing.discard(item.sequence)

    def _register_full_blocks(self, sequence: Sequence) -> None:
        """Register the full blocks of a running sequence with the prefix cache, as far as their tokens are known."""
        cache, hashes = self.prefix_cache, sequence.block_hashes
        num_full = min(sequence.num_computed_tokens, len(sequence.token_ids)) // self.pool.block_size
        first = sequence.num_registered_blocks
        if first >= num_full or not cache.enabled:
            return
        sequence.num_registered_blocks = num_full
        cache.extend_hashes(hashes, sequence.token_ids, num_full * self.pool.block_size, sequence.request.cache_salt)
        cache.register(sequence.table, hashes, first, num_full)
        if sequence.num_computed_tokens == self._reservation.checkpoint(sequence) > 0:
            cache.register_states(sequence.table, hashes[num_full - 1])
            self.running.begin_tail_sharing(sequence)

    def check(self) -> None:
        """Assert the invariants that tie sequences to blocks; see :func:`check_pool`."""
        tables = [sequence.table.all_bundles for sequence in self.running]
        for sequence in self.running:
            sequence.table.check(sequence.num_computed_tokens)
        for sequence in (*self.waiting, *self.swapped):
            assert not sequence.table.all_bundles, "a queued sequence holds blocks"
        assert self.pool.num_logical_blocks == sum(len(sequence.table) for sequence in self.running), "logical blocks"
        assert self.num_orphan_tokens >= 0, "more tokens were dropped than were on their way"
        self.running.check()
        check_pool(self.pool, tables)
        self._preemption.swap.check([sequence.swapped for sequence in self.swapped])
        if not tables:
            assert self.pool.num_used_blocks == 0, "blocks are in use though no sequence runs"


def _num_missing(sequence: Sequence) -> int:
    """Tokens that ``sequence`` must compute before it can get another; 0 once it has reached its longest length."""
    num_tokens = sequence.num_tokens
    return num_tokens - sequence.num_computed_tokens if num_tokens < sequence.max_num_tokens else 0


def _can_decode(sequence: Sequence) -> bool:
    """Whether ``sequence`` computes one token in this step and in every one that follows, in blocks of its own."""
    is_prompt_computed = sequence.num_computed_tokens >= sequence.num_prompt_tokens
    is_sampled = is_prompt_computed and sequence.request.beams is None
    is_plain = not sequence.has_shared_tail and not sequence.draft_token_ids
    return is_sampled and _num_missing(sequence) == 1 and is_plain
