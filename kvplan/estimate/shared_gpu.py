"""Several models on one GPU, each in a server of its own: which gpu_memory_utilization each of them takes.

Every server needs its weights, the peak of its steps and its overhead whatever it serves. What the release's usual
share of the GPU leaves is divided so that the pools hold as many sequences each. Every process has a CUDA context
outside its share, of which the usual rest has room for one.

A share is of the whole memory. Releases that count what other processes hold as their own want the shares of those that
are already there on top (``VllmRelease.counts_other_processes``), so the order of starting counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.releases.vllm import VllmRelease, vllm_release
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate.answer import EstimateAnswer
from kvplan.estimate.placed.placement import SizedDeployment
from kvplan.estimate.vllm.budget import CONTEXT_BYTES
from kvplan.units import GIB, format_bytes, plural


@dataclass(frozen=True, slots=True)
class GpuShare:
    """One model's part: ``utilization`` to start it with, in the order given, and what ``others`` hold by then."""

    utilization: float
    others_bytes: int


@dataclass(frozen=True, slots=True)
class SharedGpu:
    """The parts of all models, and how many sequences of the context each pool holds."""

    shares: tuple[GpuShare, ...]
    sequences: float


def share_gpu(answers: Sequence[EstimateAnswer], engine: EngineChoice) -> SharedGpu:
    """Divide the GPU of ``answers``, which were made for each model alone.

    UsageError for other questions than several models on one GPU, KvplanError where they do not fit together.
    """
    alone = _alone(answers, engine)
    release = vllm_release(engine.version)
    total, reserved = alone[0].settings.device_memory_bytes, alone[0].settings.reserved_bytes or 0
    budget = release.gpu_memory_utilization * (total - reserved) - (len(alone) - 1) * CONTEXT_BYTES
    fixed = [each.weight_bytes + each.activation_peak_bytes + each.overhead_bytes for each in alone]
    rest = budget - sum(fixed)
    per_sequence = [each.kv_pool_bytes / each.max_concurrency if each.max_concurrency else math.inf for each in alone]
    sequences = rest / sum(per_sequence)
    if sequences < 1:
        raise _too_large(answers, fixed, total, budget)
    own = [held + sequences * one for held, one in zip(fixed, per_sequence, strict=True)]
    return SharedGpu(_in_order(own, total, reserved, release), sequences)


def _alone(answers: Sequence[EstimateAnswer], engine: EngineChoice) -> list[SizedDeployment]:
    if engine.name != "vllm":
        raise UsageError("--share-gpu is about vLLM's share of a GPU.", hint="leave it out, or use --engine vllm")
    found = [deployment for answer in answers for deployment in answer.deployments]
    if len(found) != len(answers) or len({each.counted_gpu for each in found}) != 1 or len(found) < 2:
        raise UsageError(
            "--share-gpu is about several models on one GPU, each in one format and with one --ctx.",
            hint="name them and the GPU: estimate qwen3-8b qwen3-4b --gpu h100 --ctx 8k --share-gpu",
        )
    if any(each.settings.kv_cache_memory_bytes is not None for each in found):
        raise UsageError("--share-gpu divides the GPU itself.", hint="leave --kv-cache-memory-bytes out")
    return found


def _in_order(own: Sequence[float], total: int, reserved: int, release: VllmRelease) -> tuple[GpuShare, ...]:
    shares: list[GpuShare] = []
    others = reserved
    for each in own:
        counted = others if release.counts_other_processes else 0
        utilization = math.floor(1000 * (each + counted) / total) / 1000
        shares.append(GpuShare(utilization, others))
        others += math.ceil(each) + CONTEXT_BYTES
    return tuple(shares)


def _too_large(answers: Sequence[EstimateAnswer], fixed: Sequence[int], total: int, budget: float) -> KvplanError:
    needs = ", ".join(
        f"{answer.spec.served_id} {format_bytes(held)}" for answer, held in zip(answers, fixed, strict=True)
    )
    return KvplanError(
        f"{plural(len(answers), 'model')} do not fit on this GPU together: before any KV cache they take {needs}, and "
        f"{budget / GIB:.2f} of {format_bytes(total)} are for them.",
        hint="use fewer bits per weight (--quantization fp8), a lower --max-num-seqs, --enforce-eager or a larger GPU",
    )


def shared_sentence(shared: SharedGpu, answers: Sequence[EstimateAnswer], release_text: str) -> str:
    """What to set, for people."""
    parts = ", ".join(
        f"{answer.spec.served_id} --gpu-memory-utilization {share.utilization:g}"
        for answer, share in zip(answers, shared.shares, strict=True)
    )
    return (
        f"Together on one {answers[0].deployments[0].counted_gpu}: {parts}; each pool then holds about "
        f"{shared.sequences:,.1f} sequences of its context. Start them one after the other, in this order: vLLM "
        f"{release_text} measures its own memory while it starts. Speeds are of each alone; together they share the "
        "GPU's time."
    )
