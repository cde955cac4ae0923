"""How fast a deployment decodes and reads prompts, for an estimate: from a measured profile, else a roofline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.devices.measured import MeasuredProfiles
from kvplan.catalog.devices.measured_profile import Origin
from kvplan.catalog.spec import ModelSpec
from kvplan.estimate.deployments import Deployment
from kvplan.estimate.kv_cache import CacheSettings
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.clocks import DeviceSpeed
from kvplan.estimate.speed.latency import Range, ServingSpeed, serving_speed
from kvplan.estimate.speed.work import kv_read_bytes, model_work

PROMPT_TOKENS = 512
ANSWER_TOKENS = 128


@dataclass(frozen=True, slots=True)
class DeploymentSpeed:
    """A deployment that serves prompts of 512 tokens and answers of 128: to one user, and to as many as fit at once.

    note: what the measured profile says of itself, None for a roofline.
    """

    gpu: str
    origin: Origin
    note: str | None
    num_users: int
    alone: ServingSpeed
    full: ServingSpeed

    def sentence(self) -> str:
        """One line for people."""
        alone, full = self.alone, self.full
        origin = self.note or "roofline"
        if self.origin in ("measured", "calibrated"):
            origin = f"{self.origin}: {origin}"
        return (
            f"{self.gpu}: prompts of {PROMPT_TOKENS}, answers of {ANSWER_TOKENS}: alone TTFT "
            f"{_text(alone.ttft_seconds)} ms, TPOT {_text(alone.tpot_seconds)} ms; {self.num_users:,} at once TPOT "
            f"{_text(full.tpot_seconds)} ms, {full.output_tokens_per_second.low:,.0f} to "
            f"{full.output_tokens_per_second.high:,.0f} tokens/s ({origin})"
        )


def deployment_speeds(
    spec: ModelSpec,
    gpus: Sequence[GpuProfile],
    deployments: Sequence[Deployment],
    cache: CacheSettings,
    measured: MeasuredProfiles,
    engine: str,
) -> tuple[DeploymentSpeed | None, ...]:
    """One per deployment of ``engine``; None where it does not fit."""
    return tuple(
        _speed(spec, gpu, deployment, cache, measured, engine)
        for gpu, deployment in zip(gpus, deployments, strict=True)
    )


def _speed(
    spec: ModelSpec,
    gpu: GpuProfile,
    deployment: Deployment,
    cache: CacheSettings,
    measured: MeasuredProfiles,
    engine: str,
) -> DeploymentSpeed | None:
    if not deployment.fits:
        return None
    layout = ParallelLayout.of(deployment.settings)
    work = model_work(spec, deployment.weight_bytes, cache.model_dtype, layout)
    profile = measured.for_gpu(gpu, work.speed_format, engine)
    known = None if profile is None else DeviceSpeed.of(profile, spec.id, work.speed_format)
    context = PROMPT_TOKENS + ANSWER_TOKENS // 2
    on_a_rank = replace(cache, tensor_parallel_size=layout.tensor_parallel_size)
    kv_bytes = kv_read_bytes(spec, context, on_a_rank)
    room = deployment.kv_cache_tokens // (PROMPT_TOKENS + ANSWER_TOKENS)
    users = max(min(room, layout.data_parallel_size * deployment.settings.max_num_seqs), 1)

    def with_users(number: int) -> ServingSpeed:
        return serving_speed(work, gpu, number, PROMPT_TOKENS, ANSWER_TOKENS, kv_bytes, known)

    alone = with_users(1)
    return DeploymentSpeed(gpu.id, alone.origin, alone.note, users, alone, with_users(users))


def _text(found: Range) -> str:
    return f"{1000 * found.low:,.0f} to {1000 * found.high:,.0f}"
