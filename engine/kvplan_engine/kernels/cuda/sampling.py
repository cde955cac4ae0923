"""Tokens for many sequences at once, each as it asks for: csrc/cuda/sampling. Nothing waits or is read back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kvplan_engine.kernels.cuda.checks import VECTOR_BYTES, rows_are_aligned
from kvplan_engine.kernels.cuda.launching.runtime import CudaRuntime
from kvplan_engine.kernels.cuda.launching.variants import KernelVariant, variant
from kvplan_engine.kernels.cuda.params import DrawRow, Listed, SampleParams

DRAW_ROW = np.dtype(DrawRow)
LISTED = np.dtype(Listed)
IN_PROMPT, IS_LISTED, MOST_TIMES = 0x8000, 0x4000, 0x3FFF
"""row.cuh: what ``counts`` says of a token."""
_MOST_THREADS = 768  # with 1,024 a thread has 64 registers, and some spill
_WARP = 32
_TOKENS_AT_LEAST = 4  # of a thread at a time: as many as one call of the generator has words


@dataclass(frozen=True, slots=True)
class StepTokens:
    """Where each row of logits comes from. positions [tokens] int64: of the step's tokens in their sequences.

    token_rows [rows of logits] int64: which of these each row of logits follows; None: row i follows token i.
    logits_rows [draws] int64: which row each token is chosen from; None: token i from row i.
    """

    positions: torch.Tensor
    token_rows: torch.Tensor | None = None
    logits_rows: torch.Tensor | None = None


class CudaDraws:
    """The operation on one device; ``runtime`` is the driver's, or the emulation in tests."""

    def __init__(self, runtime: CudaRuntime) -> None:
        self._runtime = runtime

    def __call__(
        self,
        logits: torch.Tensor,
        draws: torch.Tensor,
        counts: torch.Tensor,
        tokens: StepTokens,
        out: torch.Tensor,
        limits: torch.Tensor | None = None,
    ) -> None:
        """out [n] int64 = a token for each of the first n of ``draws`` [rows, bytes of a DrawRow] uint8.

        logits [rows, V]. counts [rows, columns] int16, V rounded up to a multiple of 8: what rows with a counts_row
        know of their tokens; the chosen ones are counted. limits [n] float32: how many times less likely than the
        likeliest a drawn token might have been, as log2; left alone where the likeliest is taken. ValueError for
        tensors that do not fit.
        """
        _check(logits, draws, counts, tokens, out)
        params = SampleParams(
            logits=logits.data_ptr(),
            draws=draws.data_ptr(),
            counts=counts.data_ptr(),
            positions=tokens.positions.data_ptr(),
            token_rows=None if tokens.token_rows is None else tokens.token_rows.data_ptr(),
            logits_rows=None if tokens.logits_rows is None else tokens.logits_rows.data_ptr(),
            out=out.data_ptr(),
            limits=None if limits is None else limits.data_ptr(),
            stride=logits.stride(0),
            counts_stride=counts.stride(0),
            width=logits.shape[1],
        )
        chosen = sample_variant(logits.dtype, logits.shape[1], vectors=rows_are_aligned(logits))
        threads = dict(chosen.defines)["THREADS"]
        self._runtime.kernel(chosen)((out.shape[0], 1), int(threads), 0, params)


def sample_variant(scalar: torch.dtype, width: int, *, vectors: bool) -> KernelVariant:
    """The kernel for rows of ``width`` logits: as many threads as have something to do, at most 768."""
    tokens = max(_TOKENS_AT_LEAST, VECTOR_BYTES // scalar.itemsize if vectors else 1)
    threads = min(_MOST_THREADS, -(-width // (tokens * _WARP)) * _WARP)
    return variant("sampling/sample.cu", "sample_rows", scalar=scalar, vectors=int(vectors), threads=threads)


def _check(
    logits: torch.Tensor, draws: torch.Tensor, counts: torch.Tensor, tokens: StepTokens, out: torch.Tensor
) -> None:
    number, width = out.shape[0], logits.shape[1]
    sources = logits.shape[0] if tokens.logits_rows is None else tokens.logits_rows.shape[0]
    if not width or logits.stride(1) != 1:
        raise ValueError(f"logits are {tuple(logits.shape)} with strides {logits.stride()}: no rows to choose from")
    if draws.dtype != torch.uint8 or draws.shape[1:] != (DRAW_ROW.itemsize,) or not draws.is_contiguous():
        raise ValueError(f"draws are {tuple(draws.shape)} of {draws.dtype}, not rows of {DRAW_ROW.itemsize} bytes")
    if number > min(sources, draws.shape[0]):
        raise ValueError(f"{number} tokens are wanted of {sources} rows of logits and {draws.shape[0]} of draws")
    if counts.dtype != torch.int16 or counts.shape[1] < width or not rows_are_aligned(counts):
        raise ValueError(f"counts are {tuple(counts.shape)} of {counts.dtype}, which do not fit {width} logits")
    for name, indices in (("out", out), ("positions", tokens.positions), ("token_rows", tokens.token_rows)):
        if indices is not None and (indices.dtype != torch.int64 or not indices.is_contiguous()):
            raise ValueError(f"{name} is {indices.dtype} with strides {indices.stride()}, not neighbouring int64")
