"""8-bit floats in blocks, and latent attention with them, in releases older than the tables' kernels.

**Products** were CUTLASS's in vLLM before 0.11, which made DeepGEMM the default (pull request 24462 of
vllm-project/vllm), and Triton's in SGLang before 0.4.5 (SGL_ENABLE_JIT_DEEPGEMM is 0 in 0.4.4 and true in 0.4.5:
sglang/srt/layers/quantization/fp8_kernel.py). Pull request 5820 of sgl-project/sglang has all three, in us:

    rows x 24576 x 7168       1024     2048     4096
    DeepGEMM                   278      557     1127
    CUTLASS (vLLM)             400      801     1620
    Triton (SGLang)            538     1053     2200

**A layer** of latent attention and a mixture had more and slower small kernels: routing was torch's operations,
activations were quantized and experts' results added by kernels of their own, and a product of few rows took 1.3 to 2
times as long (pull requests 3893 and 5820 of sgl-project/sglang). What that comes to is known from whole steps of
DeepSeek-V3 and R1 in eight ranks, less what is predicted with the tables of newer releases:

    release               sequences x context    measured    predicted    more a layer    measured by
    SGLang 0.4.2.post1            1 x 256         25.6 ms       8.6 ms      0.279 ms      sgl-project/sglang,
                                                                                          pull request 3236
    SGLang 0.4.5.post3           50 x 2000        35.4         27.8         0.125         Michaelvll/
    on H200                      50 x 5500        39.7         31.0         0.143         llm-ie-benchmarks at
                                 50 x 10250       45.4         35.2         0.167         5f717fe, median ITL
    vLLM 0.8.4                   50 x 2000        45.6         36.1         0.156         the same
    on H200                      50 x 5500        48.0         39.0         0.148
                                 50 x 10250       51.1         42.8         0.136
                                200 x 2000        63.3         56.9         0.105

so that it depends little on sequences and context. Steps are predicted as in a server (``IN_A_SERVER``), and what is
missing counts as a kernel like the others: 1 / 1.07 of it. (SGLang 0.4.5 captures no step of more than 160 sequences:
200 took 51.5 ms where ``host`` has 57.4 for launching.) Pull request 3236 does not name its GPU, which is none of 80
GB. Its figure is taken for SGLang from 0.4.2 to 0.4.4, the mean of 0.4.5.post3's for 0.4.5, and that of vLLM 0.8.4's
from 0.7.1, which brought latent attention, to 0.8. Nobody measured vLLM 0.9 and 0.10 and SGLang from 0.4.6 to 0.5.2,
as far as is known here; from vLLM 0.11 and SGLang 0.5.3 on published results agree with the tables.

**Prompts** before SGLang 0.4.5 meet Triton's attention unless --enable-flashinfer-mla is given. 60 prompts of up to
32,000 tokens, one a second, 936,860 tokens in all, took 351 s to DeepSeek-V3 in eight ranks, by FlashInfer 89 s (pull
request 3550): 6.1e15 operations of attention on a rank in 262 s more than FlashInfer's 17 (by SGLang's table of H200,
at 357 TFLOP/s), which is 22 TFLOP/s, 0.06 of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.releases.facts import release_number
from kvplan.catalog.releases.sglang import SglangRelease, sglang_release
from kvplan.catalog.releases.vllm import VllmRelease, vllm_release
from kvplan.estimate.speed.steps.clocks import DeviceSpeed
from kvplan.estimate.speed.steps.work import ModelWork

_BLOCKS: Final = "fp8-block"


def older_blocks(speed: DeviceSpeed, work: ModelWork, engine: EngineChoice) -> DeviceSpeed:
    """``speed`` of 8-bit floats in blocks as the release of ``engine`` had them; others are left as they are.

    Of a fit to the engine's own tables, which are of newer releases. Its notes say where a release was not measured.
    """
    is_told = speed.engine == engine.name and speed.engine_version is not None and speed.dtype == _BLOCKS
    if release_number(engine.version) is None or not is_told or work.speed_format != _BLOCKS:
        return speed
    if engine.name not in ("vllm", "sglang"):
        return speed
    release = vllm_release(engine.version) if engine.name == "vllm" else sglang_release(engine.version)
    found = _with_other_products(speed, release.block_products_share)
    return _with_slower_layers(found, engine, release) if work.num_latent_layers and work.num_experts else found


def _with_other_products(speed: DeviceSpeed, reached: float) -> DeviceSpeed:
    base = replace(speed.speed.base, flops=reached * speed.speed.base.flops)
    return replace(speed, speed=replace(speed.speed, base=base))


def _with_slower_layers(speed: DeviceSpeed, engine: EngineChoice, release: VllmRelease | SglangRelease) -> DeviceSpeed:
    latent = speed.speed.latent
    if latent is None:
        return speed
    if not release.latent_layers_measured:
        return speed.with_gap(
            f"nobody measured the slower kernels that latent attention had in {engine.name} {engine.version}"
        )
    share = release.latent_prompt_share if isinstance(release, SglangRelease) else latent.prompt_share
    seconds = latent.layer_seconds + release.latent_layer_seconds
    return replace(speed, speed=replace(speed.speed, latent=replace(latent, layer_seconds=seconds, prompt_share=share)))
