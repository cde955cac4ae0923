"""What the attention kernels are specialised for, and how one is launched."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvplan_engine.kernels.cuda.launching.variants import CudaKernelError, KernelVariant

HEAD_SIZES = (64, 80, 96, 128, 256)
"""The common ones, which tests compile and measure; any multiple of HEAD_MULTIPLE up to the largest works."""
HEAD_MULTIPLE = 16
MOST_KEY_SIZE = 576
"""Where values are of another size: DeepSeek's latent and rotary key."""
WARP_LANES = 32
CHUNK_MULTIPLE = 64
"""Decode work is cut at multiples of this many tokens: four warps times a tile of 16."""
MIN_CHUNK = 256
"""Fewer tokens than this are not worth a thread block."""
MIN_PART = 512
"""A tile of prefill rows is cut into parts of at least this many tokens; to merge one is taken to cost a 16th."""
MIN_SHARED = 512
"""Decoding sequences attend together to a prefix of at least this many tokens: as for a part, a merge costs a 16th."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What the attention kernels are specialised for."""

    scalar: torch.dtype
    cache: torch.dtype
    head_size: int
    block_size: int
    num_query_heads: int
    num_kv_heads: int
    has_softcap: bool = False
    has_sinks: bool = False
    has_slopes: bool = False
    has_value_tables: bool = False
    """Values lie in other blocks than the keys."""
    other_value_size: int | None = None
    """Where values are of another size than keys."""
    values_in_keys: bool = False
    """A value is the beginning of its key, and of another size (latent attention)."""

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.num_query_heads // self.num_kv_heads

    @property
    def value_size(self) -> int:
        """Elements of a value, and of an output."""
        return self.head_size if self.other_value_size is None else self.other_value_size

    def check(self) -> None:
        """CudaKernelError for a shape without kernels."""
        largest = HEAD_SIZES[-1] if self.other_value_size is None else MOST_KEY_SIZE
        for size in (self.head_size, self.value_size):
            if size % HEAD_MULTIPLE or not 0 < size <= largest:
                raise CudaKernelError(
                    f"the CUDA attention kernels do not support head size {size}",
                    hint=f"multiples of {HEAD_MULTIPLE} up to {largest} are supported",
                )
        if self.num_query_heads % self.num_kv_heads:
            raise CudaKernelError(
                f"{self.num_query_heads} query heads cannot share {self.num_kv_heads} KV heads evenly"
            )

    def defines(self) -> dict[str, str | int | torch.dtype]:
        """The compile-time constants of every attention kernel."""
        named: dict[str, str | int | torch.dtype] = {
            "scalar": self.scalar,
            "cache": self.cache,
            "head_size": self.head_size,
            "block_size": self.block_size,
            "group": self.group,
            "softcap": int(self.has_softcap),
            "sinks": int(self.has_sinks),
        }
        if self.other_value_size is not None:
            named["value_size"] = self.other_value_size
        optional = {
            "slopes": self.has_slopes,
            "value_tables": self.has_value_tables,
            "values_in_keys": self.values_in_keys,
        }
        return named | {name: 1 for name, wanted in optional.items() if wanted}


@dataclass(frozen=True, slots=True)
class DecodeLaunch:
    """The decode kernel of one shape on one device."""

    variant: KernelVariant
    threads: int
    blocks_per_item: int
    """Grid y: KV heads times the chunks that a large group of heads is cut into."""
    target_chunks: int
    """Work items that fill the device once."""
    shared_bytes: int

    def max_items(self, num_sequences: int, *, shares: bool = False) -> int:
        """An upper bound on the work items that the plan makes for so many sequences, whatever their lengths.

        shares: each may have one more, what is left of a prefix that it shares.
        """
        return num_sequences * (2 if shares else 1) + self.target_chunks


@dataclass(frozen=True, slots=True)
class PrefillLaunch:
    """The prefill kernel of one shape on one device."""

    variant: KernelVariant
    threads: int
    tile_rows: int
    """(token, head of the group) rows of one work item."""
    blocks_per_item: int
    shared_bytes: int
    box_rows: int = 0
    """Tokens of a page that the copy engine brings at once; 0: the kernel's threads copy (``AttentionParams``)."""
    target_items: int = 0
    """Work items that fill the device once; 0: the kernel takes whole tiles only."""
    part_floats: int = 0
    """What a block leaves of a part of a tile for the other parts' blocks."""

    def num_slots(self, num_floats: int) -> int:
        """Parts of tiles that so much scratch memory has room for."""
        return num_floats // (self.part_floats * self.blocks_per_item) if self.target_items else 0

    def max_items(self, num_sequences: int, num_tokens: int, group: int, num_slots: int = 0) -> int:
        """An upper bound on the tiles, and parts of tiles, of so many sequences with so many new tokens in all."""
        return num_sequences + num_tokens * group // self.tile_rows + num_slots
