"""SGLang's experts: which kernels run on Blackwell, and the small ones around Triton's before 0.5.14.

**On Blackwell's data-centre GPUs** ``--moe-runner-backend auto`` is Triton's kernel unless a rule for the model's class
makes it TensorRT-LLM's. DeepSeek's class has had such a rule for 8-bit floats since October 2025 (pull request 11816 of
sgl-project/sglang, "around 10 % perf"), Qwen3-Next's and Qwen3's since November 2025 (12543, 13489), Llama 4's too
(python/sglang/srt/server_args.py); weights in 16 bits of Qwen3's, GLM-4's and DeepSeek's classes have one in 0.5.14
(arg_groups/overrides.py). Others, MiniMax-M2 and GLM-4 in 8 bits among them, stay with Triton (pull request 38374, of
September 2026: an FP8 mixture "otherwise lands on the Triton MoE runner").

The fits of B200, B300 and GB200 are of models with a rule. aiconfigurator-core 0.12.0 (b200_sxm/moe, routed by a power
law of 1.01) has Triton's too, in SGLang 0.5.14 and for other models than TensorRT-LLM's, whose times it has from vLLM
0.24 for the same shapes (both engines' are alike within 2 % where both are there), in us:

    experts of one rank, divided                         1     16     64   4096  16384 tokens
    256 of 2048 over 4, hidden 4096, 16 bits  Triton    42    207    379    999   2574
                                              TRTLLM    25    186    352    752   2055
    256 of 1536 over 4, hidden 3072, blocks   Triton    34    125    214    680   2074
                                              TRTLLM    27     81    132    506   1655

``_TRITON_ON_BLACKWELL`` has what one token takes longer on average over 4 such shapes in 16 bits and 15 in blocks, and
as geometric means how fast 16 and 64 tokens read weights beyond that and how fast 12,288 more are multiplied.

**Before 0.5.14** the same shapes took longer around Triton's kernel on Hopper: one token 10.0 us in 16 bits (27 shapes,
3.9 to 21.9) and 19.2 us in blocks (35 shapes, 7.1 to 32.5) by the tables of 0.5.10 on an H200; weights were read 0.97
and 0.96 times as fast, and multiplied 0.95 and 0.89 times. Three small copies in each repetition are the older
collector's and not the server's (collector/sglang/collect_moe.py of ai-dynamo/aiconfigurator: ``topk_output.*.copy_``
beside ``select_experts``, both timed; later tables time the layer alone); at 2.2 us for a small kernel in a graph (300
fewer save 650 us, pull request 664 of pegainfer-project/pegainfer, GB300) 3.4 and 12.6 us are left. No table is older
than 0.5.10, and none of other GPUs has both; older releases count as 0.5.10, and other GPUs as an H200, since it is
launches that are fewer. Whole steps of latent attention that were measured before 0.4.6 (``block_kernels``) have them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from kvplan.catalog.releases.sglang import SglangRelease, sglang_release
from kvplan.estimate.speed.steps.clocks import DeviceSpeed
from kvplan.estimate.speed.steps.work import ModelWork

_BLOCKS: Final = "fp8-block"
_FOUR_BITS: Final = "fp4"


@dataclass(frozen=True, slots=True)
class _Slower:
    """What a layer's experts take longer at any size, and shares of the bytes and operations per second."""

    seconds: float
    bandwidth: float
    flops: float


_TRITON_ON_BLACKWELL: Final = {False: _Slower(17.6e-6, 0.89, 0.63), True: _Slower(7.2e-6, 0.69, 0.90)}
_BEFORE_0_5_14: Final = {False: _Slower(3.4e-6, 0.97, 0.95), True: _Slower(12.6e-6, 0.96, 0.89)}
"""By whether the fit's experts are those in blocks, as those of 8-bit floats with one scale per matrix are too."""


def by_triton_on_blackwell(speed: DeviceSpeed, work: ModelWork) -> DeviceSpeed:
    """Return ``speed``, a fit to TensorRT-LLM's experts, with Triton's."""
    return _with(speed, _TRITON_ON_BLACKWELL[_is_in_blocks(work)])


def runs_trtllm_on_blackwell(work: ModelWork, release: SglangRelease) -> bool:
    """Return whether ``auto`` is TensorRT-LLM's kernel in ``release`` for the model and its format."""
    if work.speed_format == _FOUR_BITS or not work.multiplies_weights_as_stored:
        return True  # other formats have no Triton kernel there, or none that a table has
    stored = "bfloat16" if work.speed_format in ("bfloat16", "float16") else "fp8"
    return any(
        work.model_type.startswith(family) and stored in formats for family, formats in release.trtllm_experts.items()
    )


def with_older_launches(speed: DeviceSpeed, work: ModelWork, version: str) -> DeviceSpeed:
    """Return ``speed``, of Triton's experts, as slow as before the launches around them were fewer."""
    if speed.engine_version is None or not sglang_release(speed.engine_version).fewer_expert_launches:
        return speed
    release = sglang_release(version)
    has_whole_steps = work.num_latent_layers > 0 and release.latent_layer_seconds > 0
    if release.fewer_expert_launches or has_whole_steps or not work.multiplies_weights_as_stored:
        return speed
    return _with(speed, _BEFORE_0_5_14[_is_in_blocks(work)])


def _is_in_blocks(work: ModelWork) -> bool:
    return work.speed_format in ("fp8", _BLOCKS)


def _with(speed: DeviceSpeed, slower: _Slower) -> DeviceSpeed:
    experts = speed.speed.experts
    if experts is None:
        return speed
    experts = replace(
        experts,
        layer_seconds=experts.layer_seconds + slower.seconds,
        bandwidth=slower.bandwidth * experts.bandwidth,
        flops=slower.flops * experts.flops,
    )
    return replace(speed, speed=replace(speed.speed, experts=experts))
