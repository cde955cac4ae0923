"""Compiles kernels in several processes, into the cache of the runtime: NVRTC compiles one at a time in one."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_context

from kvplan_engine.kernels.cuda.launching.nvrtc import Nvrtc, cached_image, image_path, load_nvrtc
from kvplan_engine.kernels.cuda.launching.variants import KernelVariant

_MOST_PROCESSES = 8


def precompile(variants: Iterable[KernelVariant], architecture: str, cuda_major: int | None = None) -> None:
    """Have all of them in the cache for ``architecture``, by the NVRTC of ``cuda_major``, as the runtime chooses it."""
    nvrtc = _nvrtc(cuda_major)
    wanted = [
        one for one in dict.fromkeys(variants) if not image_path(one, nvrtc, one.only_for or architecture).is_file()
    ]
    if not wanted:
        return
    processes = min(_MOST_PROCESSES, os.cpu_count() or 1, len(wanted))
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        list(pool.map(partial(_compile_one, architecture, cuda_major), wanted))


def _compile_one(architecture: str, cuda_major: int | None, variant: KernelVariant) -> None:
    cached_image(variant, _nvrtc(cuda_major), variant.only_for or architecture)


@cache
def _nvrtc(cuda_major: int | None) -> Nvrtc:
    return load_nvrtc(cuda_major)
