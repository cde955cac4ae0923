"""The blocks that the next tokens of a sequence are written to, and how many tokens that is. No torch."""

from __future__ import annotations

from collections.abc import Sequence as Rows

from kvplan_engine.blocks.block_pool import BlockPool
from kvplan_engine.blocks.group_table import FoundBundles, num_blocks_to_start
from kvplan_engine.blocks.transfers import TransferLog
from kvplan_engine.config import EngineConfig
from kvplan_engine.requests.request import Sequence
from kvplan_engine.scheduling.running_sequences import RunningSequences


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
