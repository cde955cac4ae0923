"""What SGLang sets by the GPU's memory where nothing is said: the table of srt/server_args.py, of SGLang 0.5."""

from __future__ import annotations

from kvplan.units import GIB

_UP_TO_GIB = ((20, 2048, 8, 8), (35, 2048, 24, 80), (60, 4096, 32, 160), (160, 8192, 256, 512))
"""(GPU memory below, chunked prefill, largest graph on up to three GPUs, on more)."""
_LARGEST = (16384, 512, 512)
_MANY_GPUS = 4


def chunked_prefill_tokens(memory_bytes: int) -> int:
    """``chunked_prefill_size``: tokens of prompts in a step at most."""
    return _default_sizes(memory_bytes)[0]


def largest_graph_rows(memory_bytes: int, tensor_parallel_size: int) -> int:
    """``cuda_graph_max_bs``: sequences of the largest decode step that is captured."""
    _, few, many = _default_sizes(memory_bytes)
    return few if tensor_parallel_size < _MANY_GPUS else many


def _default_sizes(memory_bytes: int) -> tuple[int, int, int]:
    """(tokens of a prefill chunk, rows of the largest graph on up to three GPUs, on more)."""
    for below, chunk, few, many in _UP_TO_GIB:
        if memory_bytes < below * GIB:
            return chunk, few, many
    return _LARGEST
