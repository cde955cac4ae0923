"""What SGLang sets by the GPU's memory where nothing is said: the tables of srt/server_args.py, of SGLang 0.5 and of
releases up to 0.4.5 (read in 0.4.3.post2 and 0.4.5)."""

from __future__ import annotations

from typing import Final

from kvplan.units import GIB

Release = tuple[int, int, int] | None
"""As ``engines.release_number`` has it; None: the newest."""
_UP_TO_GIB = ((20, 2048, 8, 8), (35, 2048, 24, 80), (60, 4096, 32, 160), (160, 8192, 256, 512))
"""(GPU memory below, chunked prefill, largest graph on up to three GPUs, on more)."""
_LARGEST = (16384, 512, 512)
_MANY_GPUS = 4
_OLD: Final = (0, 4, 5)
"""The last release that was read with two sizes of GPUs: below 25,000 MiB and the others."""
_OLD_UP_TO_GIB = ((25_000 / 1024, 2048, 8, 80),)
_OLD_LARGEST = (8192, 160, 160)
_GROUPS_STATED: Final = (0, 4, 5)


_STATED_CACHE_FROM: Final = (0, 5, 3)


def stated_cache_methods(release: Release = None) -> tuple[str, ...]:
    """What the ``quant_method`` of checkpoints begins with whose own dtype of the KV cache is taken.

    From 0.5.3 on ModelOpt's, where nothing is said (srt/model_executor/model_runner.py, kv_cache_quant_algo; not in
    0.5.2).
    """
    return ("modelopt",) if release is None or release >= _STATED_CACHE_FROM else ()


def chunked_prefill_tokens(memory_bytes: int, release: Release = None) -> int:
    """``chunked_prefill_size``: tokens of prompts in a step at most."""
    return _default_sizes(memory_bytes, release)[0]


def group_prefill_tokens(chunk_tokens: int, num_groups: int, release: Release = None) -> int:
    """What is left of ``chunked_prefill_size`` to each of ``num_groups`` that attend beside each other.

    They share it, but up to 0.4.4 each of them had half of it (server_args.py).
    """
    if num_groups > 1 and attends_on_each_gpu(release):
        return max(chunk_tokens // 2, 1)
    return max(chunk_tokens // num_groups, 1)


def attends_on_each_gpu(release: Release) -> bool:
    """Whether ``--enable-dp-attention`` alone makes every GPU a group, and ``--dp-size`` is not asked.

    So up to 0.4.4 (read in 0.4.3.post2, 0.4.4 and 0.4.5; pull request 4390 of sgl-project/sglang).
    """
    return release is not None and release < _GROUPS_STATED


def largest_graph_rows(memory_bytes: int, tensor_parallel_size: int, release: Release = None) -> int:
    """``cuda_graph_max_bs``: sequences of the largest decode step that is captured."""
    _, few, many = _default_sizes(memory_bytes, release)
    return few if tensor_parallel_size < _MANY_GPUS else many


def _default_sizes(memory_bytes: int, release: Release) -> tuple[int, int, int]:
    """(tokens of a prefill chunk, rows of the largest graph on up to three GPUs, on more)."""
    is_old = release is not None and release <= _OLD
    for below, chunk, few, many in _OLD_UP_TO_GIB if is_old else _UP_TO_GIB:
        if memory_bytes < below * GIB:
            return chunk, few, many
    return _OLD_LARGEST if is_old else _LARGEST
