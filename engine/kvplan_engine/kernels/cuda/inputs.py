"""A step's inputs from pinned host memory to the device, by a kernel that reads them over the bus: one launch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvplan_engine.kernels.arguments import InputRows, check_inputs
from kvplan_engine.kernels.cuda.launching.runtime import CudaRuntime
from kvplan_engine.kernels.cuda.launching.variants import KernelVariant
from kvplan_engine.kernels.cuda.params import MOST_INPUTS, InputParams, InputRowsParams

_COPY_INPUTS = KernelVariant("layers/copy_inputs.cu", "copy_inputs")
_THREADS = 256
_WORDS_OF_A_BLOCK = _THREADS * 4  # each thread has four words on their way at once
_MOST_BLOCKS = 64  # of an input: more would wait for the bus
_WORD_BYTES = 4


def copy_inputs(runtime: CudaRuntime, inputs: Sequence[InputRows], chosen: torch.Tensor | None) -> None:
    """See Ops.copy_inputs. A launch for every 32 inputs. ValueError for host memory that is not pinned."""
    check_inputs(inputs, chosen)
    if not inputs:
        return
    source = inputs[0].source  # a step's inputs lie in one piece of memory, and to ask is a call of the driver
    if source.device.type != runtime.device.type and not source.is_pinned():
        raise ValueError("a step's inputs lie in host memory that is not pinned")
    kernel = runtime.kernel(_COPY_INPUTS)
    for start in range(0, len(inputs), MOST_INPUTS):
        some = [_params_of(each) for each in inputs[start : start + MOST_INPUTS]]
        most_words = max(each.rows * each.words for each in some)
        blocks = min(_MOST_BLOCKS, -(-most_words // _WORDS_OF_A_BLOCK))
        params = InputParams(
            inputs=(InputRowsParams * MOST_INPUTS)(*some),
            chosen=None if chosen is None or start else chosen.data_ptr(),
        )
        kernel((blocks, len(some)), _THREADS, 0, params)


def _params_of(each: InputRows) -> InputRowsParams:
    """A vector is one row, so that its words are found without a division."""
    source, target = each.source, each.target
    words_of_one = source.itemsize // _WORD_BYTES
    rows, columns = (1, each.rows) if each.columns is None else (each.rows, each.columns)
    stride = 0 if each.columns is None else source.stride(0) * words_of_one
    return InputRowsParams(source.data_ptr(), target.data_ptr(), stride, rows, columns * words_of_one)
