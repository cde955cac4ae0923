"""ggml's blocks as weights that are held as they are stored. Layouts: ggml-common.h, block_q4_0 and those after it.

A block is 32 values, or 256 in the K formats, whose scales are integers that share a float16. 5 bits are held in 6.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from kvplan_engine.checkpoints.quantised.floats import E2M1
from kvplan_engine.description.weight_format import WeightFormat
from kvplan_engine.kernels.quantised_weight import QuantisedWeight, linear_book, packed_codes


@dataclass(frozen=True, slots=True)
class Blocks:
    """Rows of blocks taken apart: codes uint8 [blocks, values], scales and minimums [blocks, groups].

    own: of the K formats, float16 [blocks, 1, or 2 with minimums]: what the integers are multiplied with.
    """

    codes: np.ndarray
    scales: np.ndarray
    minimums: np.ndarray | None = None
    own: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """One of ggml's formats. held: how its weights are. zero: the code that stands for 0 where codes count evenly.

    values, num_bytes: of a block. take_apart: uint8 [blocks, num_bytes] to its parts. book: what codes stand for that
    do not.
    """

    held: WeightFormat
    zero: int
    values: int
    num_bytes: int
    take_apart: Callable[[np.ndarray], Blocks]
    book: torch.Tensor | None = None

    def read(self, rows: np.ndarray) -> QuantisedWeight:
        """rows: uint8 [num_outputs, bytes of a row]."""
        blocks = self.take_apart(np.ascontiguousarray(rows).reshape(-1, self.num_bytes))
        num_outputs = rows.shape[0]

        def by_row(part: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(part).reshape(num_outputs, -1))

        minimums = None if blocks.minimums is None else by_row(blocks.minimums)
        own = None if blocks.own is None else by_row(blocks.own).unflatten(1, (-1, blocks.own.shape[1]))
        codes = packed_codes(by_row(blocks.codes), self.held.bits)
        book = linear_book(self.held.bits, self.zero) if self.book is None else self.book
        return QuantisedWeight(codes, by_row(blocks.scales), minimums, book, block_scales=own)


def _halves(blocks: np.ndarray, first: int, last: int) -> np.ndarray:
    return np.ascontiguousarray(blocks[:, first:last]).view(np.float16)


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """The lower halves of all bytes, then the upper ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _fifth_bits(packed: np.ndarray) -> np.ndarray:
    """uint8 [blocks, 4], a bit for each of 32 values."""
    return np.unpackbits(packed, axis=1, bitorder="little") << 4


def _q4_0(blocks: np.ndarray) -> Blocks:
    return Blocks(_nibbles(blocks[:, 2:]), _halves(blocks, 0, 2))


def _q4_1(blocks: np.ndarray) -> Blocks:
    return Blocks(_nibbles(blocks[:, 4:]), _halves(blocks, 0, 2), _halves(blocks, 2, 4))


def _q5_0(blocks: np.ndarray) -> Blocks:
    return Blocks(_nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6]), _halves(blocks, 0, 2))


def _q5_1(blocks: np.ndarray) -> Blocks:
    codes = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return Blocks(codes, _halves(blocks, 0, 2), _halves(blocks, 2, 4))


def _q8_0(blocks: np.ndarray) -> Blocks:
    return Blocks(blocks[:, 2:] ^ 128, _halves(blocks, 0, 2))


def _k_scales(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scales and minimums [blocks, 8] of Q4_K and Q5_K, 6 bits each in 12 bytes, and the blocks' own before them.

    Minimums are subtracted there: the blocks' own gets the sign.
    """
    packed = blocks[:, 4:16].reshape(-1, 3, 4)
    low, high, both = packed[:, 0], packed[:, 1], packed[:, 2]
    scales = np.concatenate([low & 63, both & 15 | low >> 2 & 48], axis=1)
    minimums = np.concatenate([high & 63, both >> 4 | high >> 2 & 48], axis=1)
    own = _halves(blocks, 0, 4) * np.array([1, -1], dtype=np.float16)
    return scales.view(np.int8), minimums.view(np.int8), own


def _pairs_of_groups(packed: np.ndarray) -> np.ndarray:
    """uint8 [blocks, 128]: 32 bytes hold two groups of 32, one in each half of a byte."""
    groups = packed.reshape(-1, 4, 1, 32) >> np.array([0, 4], dtype=np.uint8).reshape(1, 1, 2, 1)
    return (groups & 15).reshape(-1, 256)


def _q4_k(blocks: np.ndarray) -> Blocks:
    return Blocks(_pairs_of_groups(blocks[:, 16:]), *_k_scales(blocks))


def _q5_k(blocks: np.ndarray) -> Blocks:
    fifth = blocks[:, 16:48].reshape(-1, 1, 32) >> np.arange(8, dtype=np.uint8).reshape(1, 8, 1) & 1
    return Blocks(_pairs_of_groups(blocks[:, 48:]) | fifth.reshape(-1, 256) << 4, *_k_scales(blocks))


def _q6_k(blocks: np.ndarray) -> Blocks:
    low = blocks[:, :128].reshape(-1, 2, 1, 64) >> np.array([0, 4], dtype=np.uint8).reshape(1, 1, 2, 1) & 15
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], dtype=np.uint8).reshape(1, 1, 4, 1) & 3
    codes = low.reshape(-1, 256) | high.reshape(-1, 256) << 4
    return Blocks(codes, blocks[:, 192:208].view(np.int8), own=_halves(blocks, 208, 210))


def _mxfp4(blocks: np.ndarray) -> Blocks:
    return Blocks(_nibbles(blocks[:, 1:]), blocks[:, :1])


BLOCK_FORMATS = {
    2: BlockFormat(WeightFormat(4, 32, 2), 8, 32, 18, _q4_0),
    3: BlockFormat(WeightFormat(4, 32, 2, has_minimums=True), 0, 32, 20, _q4_1),
    6: BlockFormat(WeightFormat(6, 32, 2), 16, 32, 22, _q5_0),
    7: BlockFormat(WeightFormat(6, 32, 2, has_minimums=True), 0, 32, 24, _q5_1),
    8: BlockFormat(WeightFormat(8, 32, 2), 128, 32, 34, _q8_0),
    12: BlockFormat(WeightFormat(4, 32, 1, has_minimums=True, block_size=256), 0, 256, 144, _q4_k),
    13: BlockFormat(WeightFormat(6, 32, 1, has_minimums=True, block_size=256), 0, 256, 176, _q5_k),
    14: BlockFormat(WeightFormat(6, 16, 1, block_size=256), 32, 256, 210, _q6_k),
    39: BlockFormat(WeightFormat(4, 32, 1), 0, 32, 17, _mxfp4, E2M1),
}
"""By ggml's number of the type. What is not here is widened when it is loaded."""
