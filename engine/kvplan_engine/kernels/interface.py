"""The operations that a model needs beside attention and matrix products: what each one computes, declared once.

Three implementations: ``torch_ops`` (plain torch: the definition, and what runs where nothing can be compiled),
``cpu.ops`` and ``cuda.ops.CudaOps``. All of them compute in float32 and round once, when the result is stored; each
writes into a tensor that the caller owns. Rows may be strided, their last dimension is contiguous. Arguments of the
wrong shape, dtype or stride raise ValueError (``arguments``); positions and blocks outside their tensors raise
IndexError on the CPU and are not checked on a GPU, where nothing is read back.

T: tokens, H: hidden size, F: inner size of the MLP, S: sequences, V: vocabulary.
``docs/how-to/add-a-kernel-operation.md`` walks through adding one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from kvplan_engine.kernels.arguments import InputRows


class Ops(Protocol):
    """The operations on one kind of device."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """out [T, H] = x / sqrt(mean(x^2) + eps) * weight [H]; out may be x.

        Also [T, heads, d] by weight [d]: a norm of each head. The heads of a token lie side by side.
        """
        ...

    def add_rms_norm(self, delta: Tensor, residual: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """residual [T, H] += delta [T, H], then out = rms_norm(residual); out may be delta."""
        ...

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float, out: Tensor) -> None:
        """out [T, H] = (x - mean(x)) / sqrt(var(x) + eps) * weight [H] + bias [H]; out may be x."""
        ...

    def add_layer_norm(
        self, delta: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float, out: Tensor
    ) -> None:
        """residual [T, H] += delta [T, H], then out = layer_norm(residual); out may be delta."""
        ...

    def rope_inplace(self, x: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
        """Rotate x [T, heads, d] by ``positions`` [T] int64; ``cos_sin`` [L, r] float32: r/2 cosines, then r/2 sines.

        Element i of a head rotates with element i + r/2. r may be less than d: the rest of each head stays.
        """
        ...

    def silu_and_mul(self, gate_up: Tensor, out: Tensor) -> None:
        """out [T, F] = silu(gate) * up, for gate_up [T, 2F] = gate beside up; out may be ``gate_up[:, :F]``."""
        ...

    def gelu_new_inplace(self, x: Tensor) -> None:
        """x [T, F] = gelu(x) by the tanh formula (GPT-2's)."""
        ...

    def gelu_inplace(self, x: Tensor) -> None:
        """x [T, F] = gelu(x) by the error function."""
        ...

    def argmax_rows(self, logits: Tensor, out: Tensor) -> None:
        """out [S] int64 = index of the largest in each row of logits [S, V], the lowest on ties; a NaN is largest."""
        ...

    def copy_blocks(self, src_kv: Tensor, dst_kv: Tensor, pairs: Tensor) -> None:
        """dst_kv[pairs[i, 1]] = src_kv[pairs[i, 0]] for every i in pairs [n, 2] int64: whole blocks, all layers.

        Both may be the same tensor; no destination may also be a source or appear twice. On a GPU either tensor, and
        ``pairs``, may lie in pinned host memory; pairs are copied to the device first, without waiting.
        """
        ...

    def copy_inputs(self, inputs: Sequence[InputRows], chosen: Tensor | None) -> None:
        """Each input's rows, from host memory to its place; where a GPU reads it, the memory must be pinned.

        chosen [any] int64: in the first input, int64 [T], a value v below 0 stands for chosen[-1 - v]: the token that
        the step before chooses there. None: it has no such values.
        """
        ...
