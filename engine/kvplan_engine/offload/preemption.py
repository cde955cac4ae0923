"""What becomes of a preempted sequence's KV: it is swapped to host memory, or recomputed later. No torch."""

from __future__ import annotations

from kvplan_engine.offload.cost import CostModel
from kvplan_engine.offload.swap import SwapSpace
from kvplan_engine.requests.request import Sequence


class PreemptionPolicy:
    """mode: "recompute" never swaps, "swap" swaps whenever the swap space has room.

    "auto" swaps if there is room and copying out and back in costs less than recomputing.
    """

    def __init__(self, mode: str, swap: SwapSpace, cost: CostModel) -> None:
        self.mode = mode
        self.swap = swap
        self._cost = cost

    def try_swap_out(self, sequence: Sequence) -> bool:
        """Swap ``sequence`` out if the mode says so and there is room; returns whether that was done."""
        if self.mode == "recompute" or not self.swap.num_slots or not sequence.num_computed_tokens:
            return False
        if self.mode == "auto" and not self._is_cheaper(sequence):
            return False
        swapped = self.swap.swap_out(sequence.table, sequence.num_computed_tokens)
        if swapped is None:
            return False
        sequence.swapped = swapped
        return True

    def _is_cheaper(self, sequence: Sequence) -> bool:
        num_tokens = sequence.num_computed_tokens
        num_out = self.swap.num_blocks_to_copy(sequence.table, num_tokens)
        num_back = self.swap.num_blocks_back(num_tokens)
        return self._cost.copy_seconds(num_out + num_back) < self._cost.recompute_seconds(num_tokens)
