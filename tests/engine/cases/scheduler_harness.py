"""A scheduler with everything it decides over, and a make-believe memory instead of tensors.

Every slot of every block holds the hash of the tokens up to it, which is what real KV depends on. So wrong content
under a sequence, whatever brought it there, is seen in the step that would have read it.
"""

from __future__ import annotations

import random
from array import array
from collections import OrderedDict
from typing import Any

from kvplan_engine.blocks.block_pool import BlockHash, BlockPool
from kvplan_engine.blocks.block_table import BlockCopy, GroupTable
from kvplan_engine.blocks.layout import KvLayout, uniform_layout
from kvplan_engine.blocks.prefix_cache import PrefixCache
from kvplan_engine.blocks.transfers import FromDisk, FromHost, ToDisk, ToHost, Transfer, TransferLog
from kvplan_engine.config import EngineConfig
from kvplan_engine.offload.host_tier import HostTier
from kvplan_engine.offload.mover import group_transfers
from kvplan_engine.offload.preemption import CostModel, PreemptionPolicy
from kvplan_engine.offload.swap import SwapSpace
from kvplan_engine.offload.tiers import KvTiers
from kvplan_engine.requests.beams import BeamGroup, BeamSearchParams
from kvplan_engine.requests.request import Request, ScheduledSequence, Sequence
from kvplan_engine.requests.sampling_params import SamplingParams
from kvplan_engine.requests.status import FinishReason, SequenceStatus
from kvplan_engine.requests.step_plan import StepPlan
from kvplan_engine.scheduling.beam_search import grow_beams, make_beam_request
from kvplan_engine.scheduling.scheduler import Scheduler

Block = list[int]

_VOCABULARY = 12


class MemoryDisk:
    """What :class:`DiskTier` is to the tiers, without files; every ``damage_every``-th read finds a bad file."""

    def __init__(self, num_blocks: int, damage_every: int) -> None:
        self.is_on = True
        self.num_read = 0
        self.read_seconds = 0.0
        self._num_blocks = num_blocks
        self._damage_every = damage_every
        self._content: OrderedDict[BlockHash, bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._content)

    def __contains__(self, block_hash: BlockHash) -> bool:
        return block_hash in self._content

    def touch(self, block_hash: BlockHash) -> bool:
        if block_hash in self._content:
            self._content.move_to_end(block_hash)
            return True
        return False

    def read(self, block_hash: BlockHash) -> bytearray | None:
        self.num_read += 1
        if self._damage_every and self.num_read % self._damage_every == 0:
            del self._content[block_hash]
            return None
        return bytearray(self._content[block_hash])

    def write(self, block_hash: BlockHash, content: Block) -> None:
        if self._num_blocks and not self.touch(block_hash):
            self._content[block_hash] = array("q", content).tobytes()
            while len(self._content) > self._num_blocks:
                self._content.popitem(last=False)


class SchedulerHarness:
    """Runs steps of a scheduler; ``check=True`` checks every invariant and every slot that a step reads."""

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        prefix_caching: bool = True,
        preemption_mode: str = "auto",
        num_swap_slots: int = 0,
        num_tier_slots: int = 0,
        num_disk_blocks: int = 0,
        damage_every: int = 0,
        layout: KvLayout | None = None,
        check: bool = True,
        seed: int = 0,
        **modes: str,
    ) -> None:
        self.check = check
        self.rng = random.Random(seed)
        log = TransferLog()
        cost = CostModel(block_bytes=1, block_size=block_size, seconds_per_token=1.0)
        self.pool = BlockPool(num_blocks, layout or uniform_layout(block_size))
        self.swap = SwapSpace(self.pool, num_swap_slots, log)
        self.host = HostTier(num_swap_slots, num_tier_slots)
        self.disk: Any = MemoryDisk(num_disk_blocks, damage_every) if num_disk_blocks else None
        self.tiers = KvTiers(self.pool, self.host, self.disk, cost, log, "always")
        self.config = EngineConfig(
            model=None,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            block_size=block_size,
            enable_prefix_caching=prefix_caching,
            **modes,
        )
        prefix_cache = PrefixCache(self.pool, enabled=prefix_caching)
        preemption = PreemptionPolicy(preemption_mode, self.swap, cost)
        self.scheduler = Scheduler(self.config, max_model_len, self.pool, prefix_cache, preemption, self.tiers, log)
        self._block_size = block_size
        self.device: list[Block] = [[0] * block_size for _ in range(num_blocks)]
        self._host_memory: list[Block] = [[0] * block_size for _ in range(num_swap_slots + num_tier_slots)]
        self.requests: dict[str, Request] = {}
        self.answered: list[Request] = []
        self.num_steps = 0
        self._num_requests = 0
        self._history: dict[Sequence, list[int]] = {}

    # ---- requests

    def add(self, prompt: list[int], *, n: int = 1, max_tokens: int = 8) -> Request:
        self._num_requests += 1
        request = Request(f"r{self._num_requests}", prompt, SamplingParams(n=n, max_tokens=max_tokens))
        self.scheduler.add(request)
        self.requests[request.request_id] = request
        return request

    def add_beams(self, prompt: list[int], *, beam_width: int, max_tokens: int = 8) -> Request:
        self._num_requests += 1
        max_length = min(len(prompt) + max_tokens, self.scheduler.max_model_len)
        params = BeamSearchParams(beam_width=beam_width, max_tokens=max_tokens)
        group = BeamGroup(params, frozenset({1}), max_length)
        request = make_beam_request(f"r{self._num_requests}", prompt, group, _VOCABULARY)
        self.scheduler.add(request)
        group.start(request.sequences)
        self.requests[request.request_id] = request
        return request

    def abort(self, request_id: str) -> None:
        for sequence in self.requests.pop(request_id).sequences:
            self._history.pop(sequence, None)
            if sequence.status is not SequenceStatus.FINISHED:
                self.scheduler.finish(sequence, FinishReason.ABORT)

    # ---- one step

    def step(self) -> StepPlan:
        plan = self.scheduler.schedule()
        self._move(plan.transfers)
        assert plan.scheduled or not self.scheduler.has_unfinished, "requests wait although nothing runs"
        if self.check:
            assert plan.num_tokens == sum(item.num_new_tokens for item in plan.scheduled)
            assert plan.num_tokens <= self.config.max_num_batched_tokens
            self._forward(plan)
        self.scheduler.commit(plan)
        for sequence in plan.sampled:
            self._sample(sequence)
        self.num_steps += 1
        if self.check:
            self.scheduler.check()
            self.host.check()
        return plan

    def fail_step(self, *, is_moved: bool, is_committed: bool) -> None:
        """A step that fails: before its transfers, before it is computed, or when its tokens should come."""
        plan = self.scheduler.schedule()
        if is_moved:
            self._move(plan.transfers)
        if is_moved and is_committed:
            self._forward(plan)
            self.scheduler.commit(plan)
        self.scheduler.begin_anew(keeps_cache=is_moved)
        self.scheduler.check()
        self.host.check()
        assert self.pool.num_free_blocks == self.pool.num_blocks
        assert self.swap.num_free_slots == self.swap.num_slots

    def _sample(self, sequence: Sequence) -> None:
        request = sequence.request
        if request.beams is None:
            self._append(sequence)
            return
        rng = random.Random(self._hashes(sequence)[-1])  # the same again after a preemption
        tokens = rng.sample(range(_VOCABULARY), request.beams.num_candidates)
        request.beams.report(sequence, {token: -rng.random() for token in tokens})
        if request.beams.is_round_complete:
            grow_beams(request, request.beams, self.scheduler)
            if request.is_finished:
                self._end(request)

    def _append(self, sequence: Sequence) -> None:
        sequence.token_ids.append(self.rng.randrange(2))
        if len(sequence.token_ids) >= sequence.max_num_tokens:
            self.scheduler.finish(sequence, FinishReason.LENGTH)
            self._history.pop(sequence, None)
            if sequence.request.is_finished:
                self._end(sequence.request)

    def _end(self, request: Request) -> None:
        """A request is over once all of its samples, or beams, are."""
        if request.beams is not None:
            assert request.beams.finished, "a search found nothing"
        else:
            assert len(request.sequences) == request.params.n, "samples were lost"
            assert all(each.finish_reason is FinishReason.LENGTH for each in request.sequences)
            assert len({len(each.token_ids) for each in request.sequences}) == 1, "samples of different lengths"
        del self.requests[request.request_id]
        self.answered.append(request)

    # ---- memory

    def _move(self, transfers: list[Transfer]) -> None:
        """As the mover does it: one group after another, the transfers of a group in whatever order."""
        for group in group_transfers(transfers):
            for transfer in self.rng.sample(group, len(group)):
                self._write(transfer, self._read(transfer))

    def _read(self, transfer: Transfer) -> Block:
        if isinstance(transfer, BlockCopy):
            return list(self.device[transfer.source])
        if isinstance(transfer, ToHost):
            return list(self.device[transfer.block])
        if isinstance(transfer, FromHost):
            return list(self._host_memory[transfer.slot])
        if isinstance(transfer, FromDisk):
            return array("q", bytes(transfer.payload)).tolist()
        pool = self._host_memory if transfer.from_host else self.device
        return [slot for index in transfer.indices for slot in pool[index]]

    def _write(self, transfer: Transfer, content: Block) -> None:
        if isinstance(transfer, BlockCopy):
            self.device[transfer.target] = content
        elif isinstance(transfer, ToHost):
            self._host_memory[transfer.slot] = content
        elif isinstance(transfer, ToDisk):
            self.disk.write(transfer.block_hash, content)
        else:
            self.device[transfer.block] = content

    def _forward(self, plan: StepPlan) -> None:
        """Every sequence reads what its new tokens see in each group, and writes them; nobody else may read those."""
        for item in plan.scheduled:
            for number, table in enumerate(item.sequence.table.groups):
                if table.group.is_state:
                    self._update_state(item, number, table.bundles[0])
                else:
                    self._attend(item, number, table)

    def _attend(self, item: ScheduledSequence, number: int, table: GroupTable) -> None:
        computed, size = item.sequence.num_computed_tokens, self._block_size
        history, first = self._hashes(item.sequence), table.group.first_kept_token(computed)
        bundles = [self.pool.blocks_of(bundle) for bundle in table.bundles]
        for place in range(table.group.width):
            blocks = [bundle[place] for bundle in bundles]
            mark = number << 8 | place
            start = first - table.first * size
            assert start >= 0, "a token that is seen has been given back"
            stored = [slot for block in blocks for slot in self.device[block]][start : start + computed - first]
            assert stored == [each ^ mark for each in history[first:computed]], "somebody else's KV would be read"
            for position in range(computed, computed + item.num_new_tokens):
                index = position // size - table.first
                assert self.pool.reference_count(table.bundles[index]) == 1, "a shared block would be written"
                self.device[blocks[index]][position % size] = history[position] ^ mark

    def _update_state(self, item: ScheduledSequence, number: int, bundle: int) -> None:
        """A state stands for all tokens up to it; each of its blocks holds their hash."""
        computed, history = item.sequence.num_computed_tokens, self._hashes(item.sequence)
        assert self.pool.reference_count(bundle) == 1, "a shared state would be written"
        assert not self.pool.is_cached(bundle), "a state that can be found would be written"
        for place, block in enumerate(self.pool.blocks_of(bundle)):
            mark = number << 8 | place
            assert not computed or self.device[block][0] == history[computed - 1] ^ mark, "somebody else's state"
            self.device[block][0] = history[computed + item.num_new_tokens - 1] ^ mark

    def _hashes(self, sequence: Sequence) -> list[int]:
        history = self._history.setdefault(sequence, [])
        for token in sequence.token_ids[len(history) :]:
            history.append(hash((history[-1] if history else 1, token)))
        return history
