"""Where one layer's keys and values lie in the pool."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class TablePlace:
    """Which of a step's block tables say where a layer's tokens lie.

    group: of layers that keep the same tokens. key_slot, value_slot: which of a bundle's blocks have the pages.
    """

    group: int = 0
    key_slot: int = 0
    value_slot: int = 0


_UNIFORM_AXES = "[num_blocks, num_layers, 2, num_kv_heads, block_size, head_size]"

ONLY_TABLE = TablePlace()
"""Of a pool in which a bundle is one block of one group."""


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Views of the pool: one layer's pages in every block, whether they hold this layer's tokens or another's.

    keys [num_blocks, num_kv_heads, block_size, key_size], values [num_blocks, num_kv_heads, block_size, value_size]: a
    page is contiguous, pages are a block of the pool apart. Which block holds a sequence's tokens say the step's block
    tables at ``tables``. layer: its number, growing within a step. Where one row of a token is its key and its value
    begins that row (latent attention), ``values`` is a view of ``keys``: ``latent_cache`` makes such a cache.

    key_scales, value_scales [num_blocks, num_kv_heads, block_size] float32: what the integers of a token and head are
    multiplied with to get its key or value back, where the pool holds int8; None where it does not.
    """

    keys: torch.Tensor
    values: torch.Tensor
    layer: int
    tables: TablePlace = ONLY_TABLE
    key_scales: torch.Tensor | None = None
    value_scales: torch.Tensor | None = None

    def __post_init__(self) -> None:
        pages_by_name = {"keys": self.keys} if self.values_in_keys else {"keys": self.keys, "values": self.values}
        for name, pages in pages_by_name.items():
            if pages.dim() != 4 or not _has_contiguous_pages(pages):
                raise ValueError(
                    f"the {name} of layer {self.layer} are {tuple(pages.shape)} with strides {pages.stride()}, wanted "
                    "[num_blocks, num_kv_heads, block_size, head_size] with contiguous pages"
                )
        if self.keys.shape[:3] != self.values.shape[:3] or self.keys.stride(0) != self.values.stride(0):
            raise ValueError(f"keys {tuple(self.keys.shape)} and values {tuple(self.values.shape)} are of two pools")
        self._check_scales(self.key_scales, "keys")
        self._check_scales(self.value_scales, "values")

    def _check_scales(self, scales: torch.Tensor | None, name: str) -> None:
        if (scales is not None) != (self.keys.dtype is torch.int8):
            raise ValueError(f"the {name} of layer {self.layer} are {self.keys.dtype}: int8 has scales, others none")
        if scales is not None and not (
            scales.dtype is torch.float32
            and scales.shape == self.keys.shape[:3]
            and scales[0].is_contiguous()
            and scales.stride(0) * scales.itemsize == self.keys.stride(0)
        ):
            raise ValueError(
                f"the scales of the {name} of layer {self.layer} are {scales.dtype} {tuple(scales.shape)} with strides "
                f"{scales.stride()}, wanted float32 {tuple(self.keys.shape[:3])} within the blocks of the pool"
            )

    @property
    def values_in_keys(self) -> bool:
        """Whether a token's value is the beginning of its key, so that writing the key writes both."""
        same_pages = self.values.data_ptr() == self.keys.data_ptr() and self.values.stride() == self.keys.stride()
        return same_pages and not self.has_value_tables  # in different blocks they may have one place

    @property
    def has_value_tables(self) -> bool:
        """Whether keys and values lie in different blocks of a bundle, so that each have tables."""
        return self.tables.key_slot != self.tables.value_slot

    @property
    def num_blocks(self) -> int:
        return self.keys.shape[0]

    @property
    def num_kv_heads(self) -> int:
        return self.keys.shape[1]

    @property
    def block_size(self) -> int:
        return self.keys.shape[2]

    @property
    def head_size(self) -> int:
        """Size of keys."""
        return self.keys.shape[3]

    @property
    def value_size(self) -> int:
        """Size of values, which may be larger or smaller than keys."""
        return self.values.shape[3]

    @property
    def value_stride(self) -> int:
        """Elements from one token's value to the next one's, of the same head."""
        return self.head_size if self.values_in_keys else self.value_size

    @property
    def dtype(self) -> torch.dtype:
        return self.keys.dtype

    @property
    def block_stride(self) -> int:
        """Elements from one block to the next."""
        return self.keys.stride(0)


def _has_contiguous_pages(pages: torch.Tensor) -> bool:
    _, heads, tokens, size = pages.shape
    _, head_stride, token_stride, element_stride = pages.stride()
    return (size == 1 or element_stride == 1) and (tokens == 1 or token_stride == size) and (
        heads == 1 or head_stride == tokens * size
    )  # fmt: skip


def latent_cache(rows: torch.Tensor, value_size: int, layer: int, tables: TablePlace = ONLY_TABLE) -> LayerCache:
    """Cache over ``rows`` [num_blocks, 1, block_size, key_size], whose first ``value_size`` elements are values too."""
    return LayerCache(rows, rows[..., :value_size], layer, tables)


def uniform_cache(pool: torch.Tensor, layer: int) -> LayerCache:
    """``layer`` of a pool [num_blocks, num_layers, 2, num_kv_heads, block_size, head_size], keys before values.

    IndexError for a layer that the pool lacks, ValueError for another shape.
    """
    if pool.dim() != 6 or pool.shape[2] != 2 or not pool.is_contiguous():
        raise ValueError(f"a pool of {tuple(pool.shape)} is not contiguous {_UNIFORM_AXES}")
    if not 0 <= layer < pool.shape[1]:
        raise IndexError(f"layer {layer} of a pool of {pool.shape[1]} layers")
    return LayerCache(pool[:, layer, 0], pool[:, layer, 1], layer)
