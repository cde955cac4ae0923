"""Who runs in this step: continuous batching with paged memory. No torch.

Every step is decided anew. First the running sequences, oldest first, each with the tokens it still has to compute
(one when it decodes, a chunk of its prompt otherwise), then waiting ones as long as the token budget, the number of
sequences and the free blocks allow. When blocks run out the newest running sequence is preempted: its blocks are
returned at once and it is computed again later, from the front of the waiting queue.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from kvplan_engine.block_pool import BlockPool, NoFreeBlocks
from kvplan_engine.block_table import BlockCopy, BlockTable
from kvplan_engine.errors import EngineError
from kvplan_engine.prefix_cache import PrefixCache
from kvplan_engine.request import FinishReason, Request, Sequence, SequenceStatus

# Blocks kept back when a sequence is admitted beside running ones, as a share of the pool: each of these will soon
# want a block, and a sequence admitted into the last free blocks would be preempted in the next step.
_ADMISSION_WATERMARK = 0.01


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """``num_new_tokens`` tokens of ``sequence`` from its ``num_computed_tokens`` on are computed in this step.

    needs_sampling: the step reaches the sequence's last known token, so that its successor can be chosen.
    """

    sequence: Sequence
    num_new_tokens: int
    needs_sampling: bool


@dataclass(slots=True)
class StepPlan:
    """What one step computes: the sequences with their tokens, and the blocks to copy before it."""

    scheduled: list[ScheduledSequence] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    num_tokens: int = 0
    num_preempted: int = 0

    def add(self, sequence: Sequence, num_new_tokens: int) -> None:
        reaches_end = sequence.num_computed_tokens + num_new_tokens == len(sequence.token_ids)
        self.scheduled.append(ScheduledSequence(sequence, num_new_tokens, reaches_end))
        self.num_tokens += num_new_tokens


class Scheduler:
    """Owns the waiting queue and the running list; takes and returns blocks of ``pool``."""

    def __init__(
        self,
        pool: BlockPool,
        prefix_cache: PrefixCache,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
    ) -> None:
        self.pool = pool
        self.prefix_cache = prefix_cache
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self.num_recomputed_tokens = 0
        self.num_blocked_admissions = 0  # steps in which a waiting sequence stayed out because of the pool
        self._num_pending_forks = 0
        self._watermark_blocks = int(pool.num_blocks * _ADMISSION_WATERMARK)

    # ---- requests in and out

    def add(self, request: Request) -> None:
        """Queue a request. EngineError when it can never run under these limits."""
        num_prompt_tokens = len(request.prompt_token_ids)
        if num_prompt_tokens == 0:
            raise EngineError(f"request {request.request_id} has an empty prompt.", hint="give at least one token")
        if num_prompt_tokens >= self.max_model_len:
            raise EngineError(
                f"request {request.request_id} has a prompt of {num_prompt_tokens:,} tokens, which leaves no room for "
                f"an answer within max_model_len {self.max_model_len:,}.",
                hint="shorten the prompt or raise max_model_len",
            )
        if request.params.n > self.max_num_seqs:
            raise EngineError(
                f"request {request.request_id} asks for n={request.params.n} samples, more than max_num_seqs "
                f"{self.max_num_seqs}.",
                hint="raise max_num_seqs or lower n",
            )
        sequence = Sequence(request, 0, list(request.prompt_token_ids), BlockTable(self.pool))
        request.sequences.append(sequence)
        self.waiting.append(sequence)

    def fork(self, sequence: Sequence) -> Sequence:
        """One more sample of ``sequence``'s request, running beside it on the same blocks."""
        child = sequence.fork(len(sequence.request.sequences))
        sequence.request.sequences.append(child)
        self.running.append(child)
        self._num_pending_forks -= 1
        return child

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """Take ``sequence`` out, wherever it is, and return its blocks at once."""
        if sequence.status is SequenceStatus.RUNNING:
            self.running.remove(sequence)
            self._num_pending_forks -= sequence.request.num_pending_forks if sequence.index == 0 else 0
        elif sequence.status is SequenceStatus.WAITING:
            self.waiting.remove(sequence)
        sequence.status = SequenceStatus.FINISHED
        sequence.finish_reason = reason
        sequence.table.release()

    @property
    def has_unfinished(self) -> bool:
        return bool(self.running or self.waiting)

    # ---- one step

    def schedule(self) -> StepPlan:
        """Decide what the next step computes, and take the blocks it writes to."""
        plan = StepPlan()
        self._schedule_running(plan)
        if not plan.num_preempted:
            self._admit_waiting(plan)
        return plan

    def _schedule_running(self, plan: StepPlan) -> None:
        budget = self.max_num_batched_tokens
        block_size = self.pool.block_size
        running = self.running
        position = 0
        while position < len(running) and plan.num_tokens < budget:
            sequence = running[position]
            computed = sequence.num_computed_tokens
            num_new_tokens = len(sequence.token_ids) - computed
            if num_new_tokens != 1 or computed % block_size == 0 or sequence.has_shared_tail:
                num_new_tokens = min(num_new_tokens, budget - plan.num_tokens)
                if not self._reserve_or_preempt(sequence, num_new_tokens, plan):
                    break  # the sequence itself was the newest one left and had to go
            plan.add(sequence, num_new_tokens)
            position += 1

    def _reserve_or_preempt(self, sequence: Sequence, num_new_tokens: int, plan: StepPlan) -> bool:
        """Take blocks for ``sequence``, preempting from the newest end; False when it was preempted itself."""
        while True:
            try:
                self._reserve(sequence, num_new_tokens, plan)
                return True
            except NoFreeBlocks:
                victim = self.running[-1]
                self._preempt(victim)
                plan.num_preempted += 1
                if victim is sequence:
                    return False

    def _reserve(self, sequence: Sequence, num_new_tokens: int, plan: StepPlan) -> None:
        first = sequence.num_computed_tokens
        copy = sequence.table.reserve(first, first + num_new_tokens)
        sequence.has_shared_tail = False
        if copy is not None:
            plan.copies.append(copy)

    def _preempt(self, sequence: Sequence) -> None:
        assert self.running[-1] is sequence
        self.running.pop()
        if sequence.index == 0:
            self._num_pending_forks -= sequence.request.num_pending_forks
        sequence.table.release()
        sequence.high_water_tokens = max(sequence.high_water_tokens, sequence.num_computed_tokens)
        sequence.num_computed_tokens = 0
        sequence.num_registered_blocks = 0
        sequence.has_shared_tail = False
        sequence.status = SequenceStatus.WAITING
        self.waiting.appendleft(sequence)
        self.num_preemptions += 1

    def _admit_waiting(self, plan: StepPlan) -> None:
        while self.waiting and plan.num_tokens < self.max_num_batched_tokens:
            sequence = self.waiting[0]
            num_forks = sequence.request.num_pending_forks if sequence.index == 0 else 0
            if len(self.running) + self._num_pending_forks + 1 + num_forks > self.max_num_seqs:
                break
            if not self._try_admit(sequence, plan):
                self.num_blocked_admissions += 1
                break
            self._num_pending_forks += num_forks

    def _try_admit(self, sequence: Sequence, plan: StepPlan) -> bool:
        """Move the head of the queue to the running list if its blocks can be had."""
        num_tokens = len(sequence.token_ids)
        cached = self._find_cached(sequence, num_tokens)
        sequence.table.adopt(cached)
        first = len(cached) * self.pool.block_size
        num_new_tokens = min(num_tokens - first, self.max_num_batched_tokens - plan.num_tokens)
        kept_back = self._watermark_blocks if self.running else 0
        needed = sequence.table.num_new_blocks(first, first + num_new_tokens)
        if needed + kept_back > self.pool.num_free_blocks:
            sequence.table.release()
            return False
        self.waiting.popleft()
        sequence.status = SequenceStatus.RUNNING
        sequence.num_computed_tokens = first
        sequence.num_registered_blocks = len(cached)
        if sequence.high_water_tokens == 0:
            sequence.request.num_cached_tokens = first
            self.prefix_cache.record_lookup(num_tokens, first)
        self._reserve(sequence, num_new_tokens, plan)
        self.running.append(sequence)
        plan.add(sequence, num_new_tokens)
        return True

    def _find_cached(self, sequence: Sequence, num_tokens: int) -> list[int]:
        if not self.prefix_cache.enabled:
            return []
        self.prefix_cache.extend_hashes(sequence.block_hashes, sequence.token_ids, num_tokens)
        return self.prefix_cache.lookup(sequence.block_hashes, num_tokens)

    # ---- after the step

    def commit(self, plan: StepPlan) -> None:
        """The step has been computed: advance its sequences and let their newly full blocks be found."""
        for item in plan.scheduled:
            sequence = item.sequence
            before = sequence.num_computed_tokens
            sequence.num_computed_tokens = before + item.num_new_tokens
            if before < sequence.high_water_tokens:
                self.num_recomputed_tokens += min(sequence.high_water_tokens, sequence.num_computed_tokens) - before
            if self.prefix_cache.enabled:
                self._register_full_blocks(sequence)

    def _register_full_blocks(self, sequence: Sequence) -> None:
        num_full = sequence.num_computed_tokens // self.pool.block_size
        if num_full > sequence.num_registered_blocks:
            computed = sequence.num_computed_tokens
            self.prefix_cache.extend_hashes(sequence.block_hashes, sequence.token_ids, computed)
            first = sequence.num_registered_blocks
            self.prefix_cache.register(sequence.block_hashes, sequence.table.blocks, first, num_full)
            sequence.num_registered_blocks = num_full

    def check(self) -> None:
        """Assert the invariants that tie sequences to blocks; see :meth:`BlockPool.check`."""
        tables = [sequence.table.blocks for sequence in self.running]
        assert all(not sequence.table.blocks for sequence in self.waiting), "a waiting sequence holds blocks"
        assert len(self.running) <= self.max_num_seqs, "more sequences run than max_num_seqs"
        for sequence in self.running:
            room = len(sequence.table) * self.pool.block_size
            assert sequence.num_computed_tokens <= room, "computed tokens without a block"
        self.pool.check(tables)
        if not tables:
            assert self.pool.num_used_blocks == 0, "blocks are in use though no sequence runs"
