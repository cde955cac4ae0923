"""What the CUDA attention kernels ask of a step's metadata: a wrong one is ValueError before anything is launched."""

from __future__ import annotations

import torch

from kvplan_engine.attention.metadata import AttentionMetadata
from kvplan_engine.kernels.cuda.checks import check_vector


def check_metadata(metadata: AttentionMetadata) -> None:
    """Shapes and dtypes of a step's metadata."""
    num_sequences = metadata.seq_lens.shape[0]
    check_vector("seq_lens", metadata.seq_lens, num_sequences, torch.int32)
    check_vector("query_starts", metadata.query_starts, num_sequences + 1, torch.int32)
    tables = metadata.block_tables
    if (
        tables.dtype is not torch.int32
        or tables.shape[0] != num_sequences
        or (tables.shape[1] and tables.stride(1) != 1)
    ):
        raise ValueError(
            f"block_tables is {tables.dtype} {tuple(tables.shape)}, wanted int32 [{num_sequences}, blocks]"
        )
