"""What becomes of a preempted sequence's KV: it is swapped to host memory, or recomputed later. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan_engine.offload.swap import SwapSpace
from kvplan_engine.requests.request import Sequence

# What it costs to recompute KV, and what to copy or load it: the engine takes the cheaper way. No torch.
#
#     recompute    tokens x seconds per token of a large prefill step
#     copy         2 x block bytes / memory bandwidth in one direction (read and written once)
#     disk         seconds per file + block bytes / disk bandwidth
#
# Nothing here depends on the context. Attention's growing share makes recomputing more expensive than this, so the
# model errs on the side of recomputing. Where the engine has measured a figure, it replaces the constant.


# About what one core of a server CPU of the last ten years copies; a PCIe 4.0 x16 link moves about twice as much.
_COPY_BYTES_PER_SECOND = 8e9
# A SATA SSD reads 0.5 GB/s, an NVMe SSD several; opening and checking a small file costs a few system calls.
_DISK_BYTES_PER_SECOND = 0.5e9
_DISK_FILE_SECONDS = 100e-6


@dataclass(slots=True)
class CostModel:
    """seconds_per_token: of a large prefill step. block_bytes, block_size: of the KV pool."""

    block_bytes: int
    block_size: int
    seconds_per_token: float
    copy_bytes_per_second: float = _COPY_BYTES_PER_SECOND
    disk_bytes_per_second: float = _DISK_BYTES_PER_SECOND
    disk_file_seconds: float = _DISK_FILE_SECONDS

    def recompute_seconds(self, num_tokens: int) -> float:
        return num_tokens * self.seconds_per_token

    def copy_seconds(self, num_blocks: int) -> float:
        return num_blocks * self.block_bytes / self.copy_bytes_per_second

    def disk_seconds(self, num_blocks: int) -> float:
        return num_blocks * (self.disk_file_seconds + self.block_bytes / self.disk_bytes_per_second)


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
