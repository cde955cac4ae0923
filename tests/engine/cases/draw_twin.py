"""What csrc/cuda/sampling computes, in plain numpy: by sorting, with one generator call for each token."""

from __future__ import annotations

from collections.abc import Sequence as Rows

import numpy as np
import torch

from kvplan_engine.kernels.cuda.sampling import DRAW_ROW, LISTED, CudaDraws, StepTokens
from kvplan_engine.requests.request import Sequence
from kvplan_engine.sampling.draw_rows import changes_logits, draw_row, logit_changes

WEIGHT_BITS = 28
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_STEPS = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_WORD = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


def philox(key: int, counters: Rows[int | np.ndarray]) -> np.ndarray:
    """Philox4x32-10: the four words [4, ...] of a key of 64 bits and four counters of 32."""
    a, b, c, d = (np.asarray(each, np.uint64) for each in np.broadcast_arrays(*counters))
    low, high = np.uint64(key) & _WORD, np.uint64(key) >> _SHIFT
    for _ in range(10):
        one, other = _MULTIPLIERS[0] * a, _MULTIPLIERS[1] * c
        a, b, c, d = (other >> _SHIFT) ^ b ^ low, other & _WORD, (one >> _SHIFT) ^ d ^ high, one & _WORD
        low, high = (low + _KEY_STEPS[0]) & _WORD, (high + _KEY_STEPS[1]) & _WORD
    return np.stack([a, b, c, d])


def waits(key: int, position: int, width: int) -> np.ndarray:
    """How long each of ``width`` tokens waits, float64: exponentially distributed."""
    groups = np.arange(-(-width // 4))
    bits = philox(key, (groups, position, 0, 0)).T.reshape(-1)[:width]
    shares = np.minimum((bits.astype(np.float32) + np.float32(0.5)) * np.float32(2**-32), np.float32(1 - 2**-24))
    return -np.log1p(-shares.astype(np.float64))


def distances(logits: np.ndarray, scale: float) -> np.ndarray:
    """log2 of how many times less likely than the likeliest each token is, float32."""
    most = logits.max()
    with np.errstate(invalid="ignore"):
        return np.where(logits == most, np.float32(0), (most - logits) * np.float32(scale))


def limit(away: np.ndarray, row: np.ndarray) -> float:
    """The farthest that is kept, by definition: sorted, added one after the other."""
    kept = np.sort(away[(away <= row["max_distance"]) & np.isfinite(away)])
    farthest = float(row["max_distance"])
    if 0 < row["top_k"] <= len(kept):
        farthest = float(kept[row["top_k"] - 1])
        kept = kept[kept <= farthest]
    if row["top_p"] < 1:
        weights = np.floor(np.exp2(np.float32(WEIGHT_BITS) - kept) + np.float32(0.5)).astype(np.int64)
        farthest = float(kept[np.searchsorted(weights.cumsum(), float(row["top_p"]) * float(weights.sum()))])
    return farthest


def winner(away: np.ndarray, row: np.ndarray, position: int) -> tuple[int, float]:
    """The token that comes first among those kept, and by how much of log2 it is ahead of the next."""
    scores = -away.astype(np.float64) - np.log2(waits(int(row["key"]), position, len(away)))
    scores[~(np.isfinite(away) & (away <= limit(away, row)))] = -np.inf
    best, second = np.sort(scores)[::-1][:2]
    return int(scores.argmax()), float(best - second) if np.isfinite(second) else np.inf


class Drawer:
    """Draws through the kernel for sequences, one row of the counts each."""

    def __init__(self, kernel: CudaDraws, vocab_size: int) -> None:
        self._kernel, self._vocab_size = kernel, vocab_size
        self.counts = torch.zeros(0, 0, dtype=torch.int16)
        self.limits = torch.zeros(0)

    def __call__(self, logits: torch.Tensor, sequences: Rows[Sequence]) -> list[int]:
        """One token for each sequence, all from the same ``logits`` [vocab_size]."""
        number = len(sequences)
        rows, listed = np.zeros(number, DRAW_ROW), []
        self.counts = torch.zeros(number, -(-self._vocab_size // 8) * 8, dtype=torch.int16)
        for index, sequence in enumerate(sequences):
            rows[index] = draw_row(sequence, 0, self._vocab_size)
            if changes_logits(sequence):
                changes = logit_changes(sequence)
                listed.append(np.ascontiguousarray(changes.listed, LISTED))
                self.counts[index, torch.from_numpy(changes.tokens)] = torch.from_numpy(changes.codes)
                rows[index]["counts_row"], rows[index]["num_listed"] = index + 1, len(changes.listed)
                rows[index]["listed"] = listed[-1].ctypes.data
        positions = torch.tensor([len(sequence.token_ids) - 1 for sequence in sequences])
        return self.draw_rows(logits, rows, positions)

    def draw_rows(self, logits: torch.Tensor, rows: np.ndarray, positions: torch.Tensor) -> list[int]:
        """The same for rows as they are; ``limits`` [n] float32 are left behind."""
        number = len(rows)
        if not self.counts.numel():
            self.counts = torch.zeros(1, -(-self._vocab_size // 8) * 8, dtype=torch.int16)
        out, self.limits = torch.full((number,), -1), torch.full((number,), -1.0)
        memory = torch.from_numpy(rows.view(np.uint8).reshape(number, -1))
        # row i of the logits is the last one's, and follows token i of the step
        logits = logits.expand(number, -1) if logits.dim() == 1 else logits
        tokens = StepTokens(positions, torch.arange(number), torch.arange(number))
        self._kernel(logits, memory, self.counts, tokens, out, self.limits)
        return out.tolist()
