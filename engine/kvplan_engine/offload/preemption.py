"""How a preempted sequence keeps what it computed: in host memory, or not at all. No torch."""

from __future__ import annotations

from kvplan_engine.offload.cost import CostModel
from kvplan_engine.offload.swap import SwapSpace
from kvplan_engine.requests.request import Sequence


class PreemptionPolicy:
    """``recompute``: always computed again. ``swap``: swapped out whenever the swap space has room.

    ``auto``: swapped out when there is room and copying out and back in costs less than computing again.
    """

    def __init__(self, mode: str, swap: SwapSpace, cost: CostModel) -> None:
        self.mode = mode
        self.swap = swap
        self._cost = cost

    def try_swap_out(self, sequence: Sequence) -> bool:
        """Swap ``sequence`` out if that is the way; otherwise nothing changes."""
        if self.mode == "recompute" or not self.swap.num_slots or not sequence.num_computed_tokens:
            return False
        if self.mode == "auto" and not self._is_cheaper(sequence):
            return False
        slots = self.swap.swap_out(sequence.table, sequence.num_computed_tokens)
        if slots is None:
            return False
        sequence.swap_slots = slots
        return True

    def _is_cheaper(self, sequence: Sequence) -> bool:
        num_tokens = sequence.num_computed_tokens
        num_out = self.swap.num_blocks_to_copy(sequence.table, num_tokens)
        num_back = -(-num_tokens // self._cost.block_size)
        return self._cost.copy_seconds(num_out + num_back) < self._cost.recompute_seconds(num_tokens)
