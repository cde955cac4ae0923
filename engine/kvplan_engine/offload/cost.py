"""What it costs to recompute KV, and what to copy or load it: the engine takes the cheaper way. No torch.

    recompute    tokens x seconds per token of a large prefill step
    copy         2 x block bytes / memory bandwidth in one direction (read and written once)
    disk         seconds per file + block bytes / disk bandwidth

Nothing here depends on the context. Attention's growing share makes recomputing more expensive than this, so the model
errs on the side of recomputing. Where the engine has measured a figure, it replaces the constant.
"""

from __future__ import annotations

from dataclasses import dataclass

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
