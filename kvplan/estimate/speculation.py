"""Speculative decoding in an estimate: what the drafter takes on each deployment and what it gains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.spec import Drafter, ModelSpec
from kvplan.catalog.tensors import Tensor
from kvplan.estimate.cache_entries import CacheSettings
from kvplan.estimate.dtypes import element_bytes
from kvplan.estimate.kv_cache import components_of
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.placed.placement import SizedDeployment
from kvplan.estimate.speed.latency import Range
from kvplan.estimate.speed.queueing.drafting import DrafterOn, DraftWork, expected_tokens
from kvplan.estimate.speed.speculation import USUAL_ACCEPTANCE_RATES, speculative_speedup
from kvplan.estimate.speed.steps.work import ModelWork, kv_read_bytes, model_work
from kvplan.estimate.vllm.drafters import cached_layers, drafter_weight_bytes


@dataclass(frozen=True, slots=True)
class SpeculationGain:
    """At one acceptance rate: tokens of a step, and how many times as fast one user and a full deployment decode."""

    acceptance_rate: float
    tokens_per_step: float
    alone: Range
    full: Range


@dataclass(frozen=True, slots=True)
class DeploymentSpeculation:
    """A drafter on one deployment. ``weight_bytes``: per GPU; ``num_users``: sequences of that length that fit."""

    gpu: str
    weight_bytes: int
    num_users: int
    gains: tuple[SpeculationGain, ...]


@dataclass(frozen=True, slots=True)
class Speculation:
    """A model's drafter. ``bytes_per_token``: what a token costs more, on all ranks together.

    ``weight_bytes``: the most that any GPU of the deployments holds, whether they fit or not, which are one for each of
    the estimate's, None where it does not fit.
    """

    drafter: Drafter
    bytes_per_token: int
    weight_bytes: int
    deployments: tuple[DeploymentSpeculation | None, ...]


def speculation_of(
    spec: ModelSpec,
    gpus: Sequence[GpuProfile],
    deployments: Sequence[SizedDeployment],
    cache: CacheSettings,
    context_tokens: int,
    acceptance_rate: float | None,
) -> Speculation | None:
    """The drafter of ``spec`` on every deployment, for sequences of ``context_tokens``; None where it has none.

    Without a rate a few are shown.
    """
    if spec.drafter is None:
        return None
    rates = USUAL_ACCEPTANCE_RATES if acceptance_rate is None else (acceptance_rate,)
    places = zip(gpus, deployments, strict=True)
    weights = (_weight_bytes(spec, spec.drafter, deployment) for deployment in deployments)
    return Speculation(
        drafter=spec.drafter,
        bytes_per_token=sum(each.bytes_per_token for each in components_of(cached_layers(spec.drafter), cache)),
        weight_bytes=max(weights, default=0),
        deployments=tuple(
            _on(spec, spec.drafter, gpu, deployment, cache, context_tokens, rates) if deployment.fits else None
            for gpu, deployment in places
        ),
    )


def drafters_on(
    spec: ModelSpec, deployments: Sequence[SizedDeployment], cache: CacheSettings, context_tokens: int
) -> tuple[DrafterOn | None, ...]:
    """The drafter of ``spec`` on each, for sequences of ``context_tokens``; None without one."""
    return tuple(None if spec.drafter is None else _drafter_on(spec, spec.drafter, each, cache, context_tokens)
                 for each in deployments)  # fmt: skip


def _drafter_on(
    spec: ModelSpec, drafter: Drafter, deployment: SizedDeployment, cache: CacheSettings, context_tokens: int
) -> DrafterOn:
    layout, weight_bytes = ParallelLayout.of(deployment.settings), _weight_bytes(spec, drafter, deployment)
    on_a_rank = replace(cache, tensor_parallel_size=layout.tensor_parallel_size)
    return DrafterOn(draft_work(spec, drafter, weight_bytes, on_a_rank, layout, context_tokens), weight_bytes)


def joined_speculation(parts: Sequence[Speculation | None]) -> Speculation | None:
    """Answers about one model on several GPUs as one."""
    found = [part for part in parts if part is not None]
    if not found:
        return None
    weight_bytes = max(part.weight_bytes for part in found)
    return replace(
        found[0], weight_bytes=weight_bytes, deployments=tuple(each for part in found for each in part.deployments)
    )


def _weight_bytes(spec: ModelSpec, drafter: Drafter, deployment: SizedDeployment) -> int:
    if deployment.drafter_bytes is not None:
        return deployment.drafter_bytes
    settings = deployment.settings
    return drafter_weight_bytes(spec, drafter, ParallelLayout.of(settings), settings.dtype, settings.max_model_len)


def _on(
    spec: ModelSpec,
    drafter: Drafter,
    gpu: GpuProfile,
    deployment: SizedDeployment,
    cache: CacheSettings,
    context_tokens: int,
    rates: Sequence[float],
) -> DeploymentSpeculation:
    settings, layout = deployment.settings, ParallelLayout.of(deployment.settings)
    draft, weight_bytes = _drafter_on(spec, drafter, deployment, cache, context_tokens)
    on_a_rank = replace(cache, tensor_parallel_size=layout.tensor_parallel_size)
    work = model_work(spec, deployment.weight_bytes - weight_bytes, cache.model_dtype, layout)
    kv_bytes = kv_read_bytes(spec, context_tokens, on_a_rank)
    users = max(min(int(deployment.max_concurrency), layout.data_parallel_size * settings.max_num_seqs), 1)

    def gain(number: int, rate: float) -> Range:
        return speculative_speedup(work, draft, gpu, number, kv_bytes, rate)

    gains = tuple(
        SpeculationGain(rate, expected_tokens(rate, drafter.num_tokens), gain(1, rate), gain(users, rate))
        for rate in rates
    )
    return DeploymentSpeculation(deployment.gpu, weight_bytes, users, gains)


def draft_work(
    spec: ModelSpec,
    drafter: Drafter,
    weight_bytes: int,
    cache: CacheSettings,
    layout: ParallelLayout,
    context_tokens: int,
) -> DraftWork:
    """A drafter's passes, which multiply with the target's head where they share it. ``cache``: of one rank."""
    model = drafter.model
    if model is None:
        return DraftWork(drafter.num_tokens)
    if drafter.shares_head:
        head = Tensor("lm_head", (spec.vocab_size, spec.hidden_size), "head", "vocab")
        model = replace(model, tensors=(*model.tensors, head), tie_word_embeddings=False)
        weight_bytes += head.num_elements * element_bytes(cache.model_dtype) // layout.tensor_parallel_size
    work: ModelWork = model_work(model, weight_bytes, cache.model_dtype, replace(layout, pipeline_parallel_size=1))
    kv_bytes = kv_read_bytes(model, context_tokens, cache) if cached_layers(drafter) else 0.0
    return DraftWork(drafter.num_tokens, drafter.num_passes, work, kv_bytes)
