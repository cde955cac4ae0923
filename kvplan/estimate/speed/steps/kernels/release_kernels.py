"""Kernels of a release that is older than the tables: what vLLM's mixtures reached before 0.17.

Triton's kernel for mixtures takes its tiles from a file for a shape and a GPU, or by a rule where nobody has tuned the
shape. Pull request 34846 of vllm-project/vllm (February 2026) made the rule better, "up to 2x at large batch" with many
experts. Pull request 24700 has times by the old rule, of 128 experts of 768, 8 of them chosen, in fp8 on H100:

    tokens                      64    128    256    512   1024   2048   4096
    old rule, us               263    274    355    392    536    912   1648
    vLLM 0.24's tables, us     234    253    274    309    382    545    894

so that a further token costs twice as much (0.36 us for 0.17), and few tokens, which only read weights, a tenth more.
From 256 tokens on, where each expert has 16 rows, that is not all: the old rule takes tiles of 16 rows for up to as
many tokens as experts, and of 64 rows for more (get_default_config of vllm/model_executor/layers/fused_moe/
fused_moe.py). A tile is multiplied whole.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvplan.catalog.releases.vllm import VllmRelease, vllm_release
from kvplan.estimate.speed.steps.clocks import DeviceSpeed
from kvplan.estimate.speed.steps.work import ModelWork

_OLD_FLOPS: Final = 0.5
_OLD_BANDWIDTH: Final = 0.9
_OLD_TILE_ROWS: Final = 64.0
_OLD_FEW_TILE_ROWS: Final = 16.0
_TUNED: Final = frozenset({(8, 14336), (8, 16384), (128, 768), (128, 1536), (256, 2048)})
"""(experts, their width) whose divisions over ranks had files for Hopper: Mixtral's, Qwen3's and DeepSeek-V3's."""


def of_release(speed: DeviceSpeed, work: ModelWork, release: VllmRelease) -> DeviceSpeed:
    """``speed`` with experts as fast as in ``release`` of vLLM, where the tables are of a newer one."""
    experts = speed.speed.experts
    if experts is None or not work.num_experts or not _has_old_tiles(speed, work, release):
        return speed
    slower = replace(
        experts,
        flops=_OLD_FLOPS * experts.flops,
        bandwidth=_OLD_BANDWIDTH * experts.bandwidth,
        tile_rows=_OLD_TILE_ROWS,
        few_tile_rows=_OLD_FEW_TILE_ROWS,
    )
    return replace(speed, speed=replace(speed.speed, experts=slower))


def _has_old_tiles(speed: DeviceSpeed, work: ModelWork, release: VllmRelease) -> bool:
    """Blocks of 8-bit floats and weights in few bits have kernels of their own."""
    is_tuned = (work.num_experts, work.expert_intermediate_size) in _TUNED
    is_by_triton = work.multiplies_weights_as_stored and work.speed_format != "fp8-block"
    is_newer = speed.engine_version is not None and vllm_release(speed.engine_version).better_expert_tiles
    return speed.engine == "vllm" and is_newer and not release.better_expert_tiles and is_by_triton and not is_tuned
