"""What the kernels ask of their arguments, on any device: a wrong one is ValueError before anything runs.

One check for each operation of ``interface.Ops`` that takes more than rows, and those of attention. What only one
device asks for (alignment, say) stands with its kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import torch


def check_rows(name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """``tensor`` has this shape and dtype, and a contiguous last dimension."""
    if tensor.dtype is not dtype or tensor.shape != shape or (tensor.stride(-1) != 1 and shape[-1] > 1):
        _refuse(name, tensor, f"{dtype} {shape} with a contiguous last dimension")


def check_vector(name: str, tensor: torch.Tensor, length: int, dtype: torch.dtype) -> None:
    """``tensor`` is contiguous [length] of ``dtype``."""
    if tensor.dtype is not dtype or tensor.shape != (length,) or not tensor.is_contiguous():
        _refuse(name, tensor, f"contiguous {dtype} ({length},)")


def _refuse(name: str, tensor: torch.Tensor, wanted: str) -> NoReturn:
    raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()}, wanted {wanted}")


def check_norm(
    x: torch.Tensor,
    delta: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """The tensors of any of the norms; ``x`` is the residual when there is a ``delta``."""
    shape, dtype = tuple(x.shape), x.dtype
    if len(shape) not in (2, 3):
        raise ValueError(f"a norm works on [rows, width] or [rows, heads, width], got {shape}")
    for name, rows in (("x", x), ("delta", delta), ("out", out)):
        if rows is None:
            continue
        check_rows(name, rows, shape, dtype)
        if len(shape) == 3 and shape[1] > 1 and rows.stride(1) != shape[2]:
            raise ValueError(f"a norm of heads wants them side by side, got strides {rows.stride()}")
    check_rows("weight", weight, shape[-1:], dtype)
    if bias is not None:
        check_rows("bias", bias, shape[-1:], dtype)


def check_rotation(x: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor) -> None:
    """The tensors of rope_inplace."""
    if x.dim() != 3 or cos_sin.dim() != 2:
        raise ValueError(
            f"rope works on x [T, heads, d] and cos_sin [L, r], got {tuple(x.shape)} and {tuple(cos_sin.shape)}"
        )
    check_rows("x", x, tuple(x.shape), x.dtype)
    check_vector("positions", positions, x.shape[0], torch.int64)
    rotary = cos_sin.shape[1]
    if cos_sin.dtype is not torch.float32 or not cos_sin.is_contiguous() or rotary % 2 or rotary > x.shape[2]:
        _refuse("cos_sin", cos_sin, f"contiguous float32 [L, r], r even and at most {x.shape[2]}")


def check_gated(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """The tensors of silu_and_mul."""
    rows, width = out.shape
    check_rows("gate_up", gate_up, (rows, 2 * width), gate_up.dtype)
    check_rows("out", out, (rows, width), gate_up.dtype)


def check_argmax(logits: torch.Tensor, out: torch.Tensor) -> None:
    """The tensors of argmax_rows."""
    rows, width = logits.shape
    check_rows("logits", logits, (rows, width), logits.dtype)
    check_rows("out", out, (rows,), torch.int64)
    if width == 0:
        raise ValueError("argmax of rows without columns")


def check_block_copy(src_kv: torch.Tensor, dst_kv: torch.Tensor, pairs: torch.Tensor) -> None:
    """The tensors of copy_blocks."""
    if src_kv.shape[1:] != dst_kv.shape[1:] or src_kv.dtype is not dst_kv.dtype:
        raise ValueError(
            f"blocks of {src_kv.dtype} {tuple(src_kv.shape)} do not fit {dst_kv.dtype} {tuple(dst_kv.shape)}"
        )
    if not (src_kv.is_contiguous() and dst_kv.is_contiguous() and pairs.is_contiguous()):
        raise ValueError("copy_blocks works on contiguous tensors")
    check_rows("pairs", pairs, (pairs.shape[0], 2), torch.int64)


# Rows of a step's inputs on their way from host memory to the device: what ``Ops.copy_inputs`` takes.


@dataclass(frozen=True, slots=True)
class InputRows:
    """Rows that go from ``source`` to the same rows of ``target``: int32 or int64, of one shape and one stride.

    Of tensors [N] the first ``rows`` elements; of [N, C] the first ``columns`` of each of the first ``rows`` rows.
    """

    source: torch.Tensor
    target: torch.Tensor
    rows: int
    columns: int | None = None

    def cut(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return those elements of both."""
        source, target = self.source[: self.rows], self.target[: self.rows]
        return (source, target) if self.columns is None else (source[:, : self.columns], target[:, : self.columns])

    def check(self) -> None:
        """ValueError where the two do not fit each other, or have no such rows."""
        source, target = self.source, self.target
        if source.dtype is not target.dtype or source.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"inputs are int32 or int64 on both sides, got {source.dtype} and {target.dtype}")
        if source.shape != target.shape or source.stride() != target.stride() or source.stride(-1) != 1:
            raise ValueError(
                f"an input of {tuple(source.shape)} with strides {source.stride()} cannot go to {tuple(target.shape)} "
                f"with strides {target.stride()}"
            )
        if (source.dim() == 2) != (self.columns is not None):
            raise ValueError(f"an input of {source.dim()} axes cannot have {self.columns} columns")
        if self.rows > source.shape[0] or (self.columns is not None and self.columns > source.shape[1]):
            raise ValueError(f"an input {tuple(source.shape)} has no {self.rows} rows of {self.columns}")


def check_inputs(inputs: Sequence[InputRows], chosen: torch.Tensor | None) -> None:
    """The arguments of ``Ops.copy_inputs``."""
    for each in inputs:
        each.check()
    if chosen is None:
        return
    check_vector("chosen", chosen, chosen.shape[0], torch.int64)
    if not inputs or inputs[0].target.dtype is not torch.int64 or inputs[0].columns is not None:
        raise ValueError("only an int64 vector can stand for chosen tokens")
