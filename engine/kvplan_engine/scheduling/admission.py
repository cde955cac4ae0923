"""Which queued sequences start to run: swapped ones first, then waiting ones. No torch.

Admission never takes anything from a running sequence. The scheduler first gives the running ones what they need,
preempting some if it must, and admits others only if nobody was preempted. The questions here are whether a sequence
fits beside them, and how much of its KV exists already: in swap space, in cached blocks of the pool, or in a tier.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence as Rows

from kvplan_engine.blocks.block_pool import BlockPool
from kvplan_engine.blocks.block_table import FoundBundles, num_blocks_to_start
from kvplan_engine.blocks.prefix_cache import PrefixCache
from kvplan_engine.blocks.transfers import TransferLog
from kvplan_engine.config import EngineConfig
from kvplan_engine.errors import EngineError
from kvplan_engine.offload.swap import SwapSpace
from kvplan_engine.offload.tiers import KvTiers
from kvplan_engine.requests.request import Request, Sequence
from kvplan_engine.requests.status import SequenceStatus
from kvplan_engine.requests.step_plan import StepPlan
from kvplan_engine.scheduling.running_sequences import RunningSequences

# The blocks that the next tokens of a sequence are written to, and how many tokens that is. No torch.


class Reservation:
    """Takes the blocks that the next tokens of a sequence are written to.

    Paged, a sequence holds what its tokens fill, less what lies before its windows; contiguous, from its start on what
    it will ever hold with ``max_model_len`` tokens. What is shared and about to be written is replaced by a copy, which
    goes to ``log``.
    """

    def __init__(
        self, config: EngineConfig, max_model_len: int, pool: BlockPool, running: RunningSequences, log: TransferLog
    ) -> None:
        self._pool = pool
        self._running = running
        self._log = log
        self._whole = pool.layout.most_bundles(max_model_len, config.max_num_batched_tokens)
        self._whole_end = -(-max_model_len // pool.block_size)
        self._reserves_all = config.reserves_all
        self._checkpoints = config.caches_prefixes and pool.layout.has_states

    def checkpoint(self, sequence: Sequence) -> int:
        """After how many tokens the state of ``sequence`` is left to the prefix cache; 0 for never.

        That is the last block's end in a prompt behind which another one, equal or longer, can start.
        """
        if not self._checkpoints:
            return 0
        size = self._pool.block_size
        return (sequence.num_prompt_tokens - 1) // size * size

    def chunk(self, sequence: Sequence, first: int, num_tokens: int) -> int:
        """How many of the next ``num_tokens`` tokens of ``sequence``, from ``first`` on, one step computes."""
        if not self._checkpoints:
            return num_tokens
        checkpoint = self.checkpoint(sequence)
        return checkpoint - first if first < checkpoint < first + num_tokens else num_tokens

    def num_blocks_to_start(self, found: Rows[FoundBundles], first: int, num_new_tokens: int) -> int:
        """Free blocks used up by a sequence that finds ``found`` and computes ``num_new_tokens`` from ``first`` on."""
        layout = self._pool.layout
        if self._reserves_all:
            num_held = sum(width * number for width, number in zip(layout.widths, self._whole, strict=True))
        else:
            num_held = layout.blocks_held(first, first + num_new_tokens)
        if not first:
            return num_held  # nothing was found
        return num_blocks_to_start(self._pool, found, num_held)

    def take(self, sequence: Sequence, num_new_tokens: int) -> None:
        """Blocks for the next ``num_new_tokens`` of ``sequence``. NoFreeBlocks when the pool has too few."""
        first = sequence.num_computed_tokens
        if self._reserves_all:
            sequence.table.hold(self._whole, self._whole_end, first)
            return
        copies = sequence.table.reserve(first, first + num_new_tokens)
        self._running.end_tail_sharing(sequence)
        for copy in copies:
            self._log.add(copy)


# Share of the pool kept free when a sequence is admitted beside running ones: each of these will soon need a block, and
# a sequence admitted into the last free blocks would be preempted in the next step.
_WATERMARK = 0.01


def check_request(request: Request, config: EngineConfig, max_model_len: int) -> None:
    """EngineError when ``request`` can never run under these settings."""
    num_prompt_tokens = len(request.prompt_token_ids)
    if num_prompt_tokens == 0:
        raise EngineError(f"request {request.request_id} has an empty prompt.", hint="give at least one token")
    if num_prompt_tokens >= max_model_len:
        raise EngineError(
            f"request {request.request_id} has a prompt of {num_prompt_tokens:,} tokens, which leaves no room for "
            f"an answer within max_model_len {max_model_len:,}.",
            hint="shorten the prompt or raise max_model_len",
        )
    if request.params.n > config.max_num_seqs:
        raise EngineError(
            f"request {request.request_id} asks for n={request.params.n} samples, more than max_num_seqs "
            f"{config.max_num_seqs}.",
            hint="raise max_num_seqs or lower n",
        )
    if config.reserves_all and (request.params.n > 1 or request.beams is not None):
        raise EngineError(
            f"request {request.request_id} asks for several samples or beams, which share blocks.",
            hint="kv_reservation 'contiguous' is for one sequence per request",
        )


class Admission:
    """The waiting and the swapped queue, and the way from them to the running sequences.

    The scheduler puts sequences into the queues, and takes finished ones out.
    num_blocked: steps in which a waiting sequence stayed out for want of free blocks.
    """

    def __init__(
        self,
        config: EngineConfig,
        pool: BlockPool,
        prefix_cache: PrefixCache,
        running: RunningSequences,
        reservation: Reservation,
        swap: SwapSpace,
        tiers: KvTiers,
    ) -> None:
        self.waiting: deque[Sequence] = deque()
        self.swapped: deque[Sequence] = deque()
        self.num_blocked = 0
        self._config = config
        self._pool = pool
        self._prefix_cache = prefix_cache
        self._running = running
        self._reservation = reservation
        self._swap = swap
        self._tiers = tiers
        self._is_batch_open = True  # static batching: whether sequences may still join the batch
        self._watermark_blocks = 0 if config.reserves_all else int(pool.num_blocks * _WATERMARK)

    def fill(self, plan: StepPlan) -> None:
        """Add to ``plan`` what fits. While a sequence is swapped out, none is admitted from the waiting queue."""
        self._swap_in(plan)
        if not self.swapped and self._may_admit():
            self._admit_waiting(plan)

    # ---- from the swap space

    def _swap_in(self, plan: StepPlan) -> None:
        """Bring swapped sequences back, longest running first, while there is room for them."""
        while self.swapped and plan.num_tokens < self._config.max_num_batched_tokens:
            sequence = self.swapped[0]
            if sequence.num_pending_tokens or not self._running.has_seat(sequence):
                break
            if not self._running.has_slot(sequence.request):
                break
            if not self._try_swap_in(sequence, plan):
                break

    def _try_swap_in(self, sequence: Sequence, plan: StepPlan) -> bool:
        swap, computed = self._swap, sequence.num_computed_tokens
        num_new_tokens = self._num_new_tokens(sequence, computed, sequence.num_tokens, plan)
        if not self._fits(swap.find(sequence.swapped), computed, num_new_tokens):
            return False
        self.swapped.popleft()
        swap.swap_in(sequence.table, sequence.swapped, computed)
        sequence.swapped = []
        self._prefix_cache.register(sequence.table, sequence.block_hashes, 0, sequence.num_registered_blocks)
        self._enter_running(sequence, num_new_tokens, plan)
        return True

    # ---- from the waiting queue

    def _may_admit(self) -> bool:
        """Always, but for static batching: there a new batch forms only when the last one has finished entirely.

        It forms over as many steps as its prompts need.
        """
        if not self._running:
            self._is_batch_open = True
        return self._is_batch_open or self._config.scheduling != "static"

    def _admit_waiting(self, plan: StepPlan) -> None:
        passed_over: list[Sequence] = []  # their adapters have no slot now; later ones of other adapters may run
        while self.waiting and plan.num_tokens < self._config.max_num_batched_tokens:
            sequence = self.waiting[0]
            if sequence.num_pending_tokens or not self._running.has_seat(sequence):
                break
            if not self._running.has_slot(sequence.request):
                passed_over.append(self.waiting.popleft())
            elif not self._try_admit(sequence, plan):
                self.num_blocked += 1
                break
        if passed_over:
            self.waiting.extendleft(reversed(passed_over))
        # a batch that only this step's token budget cut short goes on forming in the next one
        self._is_batch_open = plan.num_tokens >= self._config.max_num_batched_tokens

    def _try_admit(self, sequence: Sequence, plan: StepPlan) -> bool:
        """Move the head of the queue to the running sequences if there are blocks for it.

        token_ids   p p p p | p p p p | p p p p | p p p p | p
                    cached    cached    loadable  computed
                    in pool   in pool   in a tier
        """
        cache = self._prefix_cache
        looks_up = not sequence.request.lacks_prompt_logprobs
        hashes = (
            cache.usable_hashes(sequence.block_hashes, sequence.token_ids, sequence.request.cache_salt)
            if looks_up
            else []
        )
        match = cache.lookup(hashes, self._tiers.finder())
        first = match.num_blocks * self._pool.block_size
        num_new_tokens = self._num_new_tokens(sequence, first, len(sequence.token_ids), plan)
        if not self._fits(match.found, first, num_new_tokens):
            return False
        fetched = self._tiers.fetch(match.missing) if match.missing else []
        if fetched is None:  # a file was bad, and the tier has dropped it
            return self._try_admit(sequence, plan)
        self.waiting.popleft()
        taken = sequence.table.adopt(match.found, match.num_blocks)
        if taken:
            self._tiers.place(fetched, taken)
            cache.register(sequence.table, hashes, 0, match.num_blocks)
        sequence.num_computed_tokens = first
        sequence.num_registered_blocks = match.num_blocks
        if sequence.high_water_tokens == 0:
            sequence.request.first_scheduled_seconds = time.perf_counter()
            sequence.request.num_cached_tokens = first
            if looks_up:
                cache.record_lookup(len(sequence.token_ids), first)
        self._enter_running(sequence, num_new_tokens, plan)
        return True

    # ---- both

    def _num_new_tokens(self, sequence: Sequence, first: int, num_tokens: int, plan: StepPlan) -> int:
        budget = self._config.max_num_batched_tokens - plan.num_tokens
        return self._reservation.chunk(sequence, first, min(num_tokens - first, budget))

    def _fits(self, found: Rows[FoundBundles], first: int, num_new_tokens: int) -> bool:
        """Whether there are blocks for a sequence that starts from ``found``, and for what is kept back."""
        kept_back = self._watermark_blocks if self._running else 0
        number = self._reservation.num_blocks_to_start(found, first, num_new_tokens)
        return number + kept_back <= self._pool.num_free_blocks

    def _enter_running(self, sequence: Sequence, num_new_tokens: int, plan: StepPlan) -> None:
        sequence.status = SequenceStatus.RUNNING
        self._reservation.take(sequence, num_new_tokens)
        self._running.enter(sequence)
        plan.add(sequence, num_new_tokens)
