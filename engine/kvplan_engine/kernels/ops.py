"""The engine's CPU operations outside attention and matrix products; each writes into a tensor that the caller owns.

Float32 and bfloat16 storage, float32 maths. Inputs and outputs may be row-strided views; the last dimension is
contiguous. The meaning of each is its slow twin in ``torch_ops``.
"""

from __future__ import annotations

from kvplan_engine.kernels.torch_ops import (
    add_layer_norm,
    add_rms_norm,
    argmax_rows,
    copy_blocks,
    gelu_inplace,
    gelu_new_inplace,
    layer_norm,
    rms_norm,
    rope_inplace,
    silu_and_mul,
)

__all__ = [
    "add_layer_norm",
    "add_rms_norm",
    "argmax_rows",
    "copy_blocks",
    "gelu_inplace",
    "gelu_new_inplace",
    "layer_norm",
    "rms_norm",
    "rope_inplace",
    "silu_and_mul",
]
