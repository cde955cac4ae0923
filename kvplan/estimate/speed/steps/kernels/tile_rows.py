"""Products of few rows where multipliers are few too: a tile is multiplied whole, and an H20 cannot hide that.

Hopper's kernels multiply tiles of 64 rows however few there are: cuBLAS's of CUDA 12.4 in 16 bits (called
``tilesize64x64x64`` in traces; later ones have tiles of 8, ``nvjet_tst_64x8``), which vLLM before 0.9 and SGLang before
0.4.7 come with (issue 6941 of sgl-project/sglang, of June 2025), and those in 8 bits (pull requests 25532 and, measured
on H20, 28187 there). Triton's experts have tiles of 16 rows at least (the configurations in pull request 36559 of
vllm-project/vllm). An H100 reads the weights of such a tile for longer than it multiplies them: 295 operations for each
byte by its data sheet, where 64 rows of 16-bit weights need 64. An H20 has 37.

Single requests to Qwen3 on one H20 with SGLang 0.4.6.post1, after a prompt of one token (docs/source/getting_started/
speed_benchmark.md of QwenLM/Qwen3 at 7a2f61f), in ms a token:

                                                   0.6B    1.7B      4B      8B     14B     32B
    16 bits                                         2.4     4.4     7.5    12.2    21.2    48.3
    predicted without tiles                         1.4     2.1     3.7     5.8     9.7    21.2
    and with them                                   1.7     3.0     5.8     9.8    17.2    38.4
    8 bits                                          2.2     3.0     5.0     6.7    10.3    21.7
    predicted without tiles                         1.6     1.9     3.0     4.2     6.4    12.6
    and with them                                   1.8     2.7     4.8     7.6    12.5    26.8

Mixtral's experts in 8-bit blocks, a layer on an H20 with vLLM 0.20.2 (pull request 4434 of flagos-ai/FlagGems), in ms:

    tokens                                            1       4       8      16      32      64     512
    measured                                      0.189   0.428   0.602   0.602   0.607   0.846   1.871
    read and multiplied without tiles             0.104   0.292   0.401   0.486   0.590   0.789   3.573
    with them, at 0.85 of the data sheet's speed  0.143   0.390   0.513   0.564   0.570   0.660   1.914

Kernels in 8 bits that swap operands, which makes tiles narrow, are newer (May 2026 in SGLang) and not counted. Few
queries are padded to 64 in attention as well (issue 2995 of flashinfer-ai/flashinfer), which is left out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.releases.sglang import sglang_release
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.estimate.speed.steps.clocks import DeviceSpeed
from kvplan.estimate.speed.steps.work import ModelWork

_ROWS: Final = 64.0
_EXPERT_ROWS: Final = 16.0
_KNOWN: Final = ("vllm", "sglang")
"""Engines whose kernels are known."""


def with_tiles(speed: DeviceSpeed, work: ModelWork, gpu: GpuProfile, engine: EngineChoice) -> DeviceSpeed:
    """``speed`` of a GPU without tables of its own, with whole tiles where they take longer than their weights.

    Of the engines whose kernels are known; tables of a GPU itself have them.
    """
    if speed.origin != "scaled" or engine.name not in _KNOWN or not _has_few_multipliers(gpu):
        return speed
    found, experts = speed.speed, speed.speed.experts
    if experts is not None:
        experts = replace(experts, tile_rows=_EXPERT_ROWS)
    is_wide = work.compute_dtype == "fp8" or not _has_narrow_tiles(engine)
    tile_rows = _ROWS if is_wide and work.multiplies_weights_as_stored else 1.0
    return replace(speed, speed=replace(found, experts=experts, tile_rows=tile_rows))


def _has_few_multipliers(gpu: GpuProfile) -> bool:
    """A multiply-add is two operations, and a weight in 16 bits two bytes."""
    return gpu.flops("bfloat16") < _ROWS * gpu.memory_bandwidth_bytes_per_second


def _has_narrow_tiles(engine: EngineChoice) -> bool:
    release = vllm_release(engine.version) if engine.name == "vllm" else sglang_release(engine.version)
    return release.narrow_tiles
