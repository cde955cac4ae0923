"""What lets a deployment fit that does not: each way is tried, and named only where it is enough by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from kvplan.catalog.devices.gpus import GpuCount
from kvplan.catalog.devices.measured import MeasuredProfiles
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import KvplanError
from kvplan.estimate.answer import EstimateAnswer
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.placed.placement import SizedDeployment
from kvplan.estimate.question import Question, answer_question
from kvplan.settings import own_group_size
from kvplan.units import GIB, parse_bytes

_MOST_GPUS: Final = 64
_FEWER_BITS: Final = (("fp8", 8), ("awq", 4))
_KEPT_IN_A_BYTE: Final = ("fp8", "int8")
_LEAST_STEP: Final = 512


@dataclass(frozen=True, slots=True)
class Asked:
    """One deployment as it was asked for, with its answer."""

    model: ModelSpec
    question: Question
    counted: GpuCount
    engine: EngineChoice
    answer: EstimateAnswer

    @property
    def deployment(self) -> SizedDeployment:
        return self.answer.deployments[0]


@dataclass(frozen=True, slots=True)
class _Way:
    text: str
    question: Question
    counted: GpuCount


def ways_to_fit(asked: Asked) -> tuple[str, ...]:
    """``--max-num-seqs 16``, ``--gpu 16xh100-sxm``: the cheapest of each kind of change that is enough, cheap first."""
    kinds = (
        _context(asked),
        _pool(asked),
        _share(asked),
        _later_start(asked),
        _towers(asked),
        _steps(asked),
        _drafter(asked),
        chain(_formats(asked), _formats_and_context(asked)),
        _more_gpus(asked),
    )
    found = (next((way.text for way in kind if _fits(asked, way)), None) for kind in kinds)
    return tuple(text for text in found if text is not None)


def _fits(asked: Asked, way: _Way) -> bool:
    found = _sized(asked, way)
    return found is not None and found.fits


def _sized(asked: Asked, way: _Way) -> SizedDeployment | None:
    try:
        answer = answer_question(asked.model, way.question, [way.counted], asked.engine, MeasuredProfiles())
    except KvplanError:
        return None
    return answer.deployments[0]


def _changed(asked: Asked, text: str, **settings: object) -> _Way:
    changed = replace(asked.question.settings, **settings)  # type: ignore[arg-type]
    return _Way(text, replace(asked.question, settings=changed), asked.counted)


def _context(asked: Asked) -> Iterator[_Way]:
    longest = _longest(asked, asked.deployment)
    if longest:
        yield _Way(f"--ctx {longest}", replace(asked.question, context_tokens=longest), asked.counted)


def _longest(asked: Asked, found: SizedDeployment | None) -> int | None:
    """The longest context that fits, and that the model has positions for."""
    fitting = None if found is None else found.longest_context
    positions = asked.model.longest_context
    return min(fitting, positions) if fitting and positions is not None else fitting


def _pool(asked: Asked) -> Iterator[_Way]:
    """A smaller pool where its size is given and too large: what is left, in tenths of a GiB."""
    deployment, given = asked.deployment, asked.deployment.settings.kv_cache_memory_bytes
    if given is None or asked.engine.name != "vllm":
        return
    used = deployment.weight_bytes + deployment.activation_peak_bytes + deployment.overhead_bytes
    tenths = 10 * (deployment.budget_bytes - used) // GIB
    if 0 < tenths * GIB // 10 < given:
        text = f"{tenths / 10:g}GiB"
        yield _changed(asked, f"--kv-cache-memory-bytes {text}", kv_cache_memory_bytes=parse_bytes(text))


def _share(asked: Asked) -> Iterator[_Way]:
    """The engine's own share of the GPU, where another one was given."""
    if asked.question.settings.gpu_memory_utilization is not None:
        yield _changed(asked, "the engine's --gpu-memory-utilization (leave it out)", gpu_memory_utilization=None)


def _later_start(asked: Asked) -> Iterator[_Way]:
    """vLLM's next start, which finds its kernels compiled."""
    if asked.engine.name == "vllm" and not asked.question.settings.warm_start:
        yield _changed(asked, "--warm-start (a second start, its kernels compiled)", warm_start=True)


def _towers(asked: Asked) -> Iterator[_Way]:
    has_towers = any(extra.kind != "multi_token_prediction" for extra in asked.model.extras)
    if asked.engine.name == "vllm" and has_towers and not asked.question.settings.language_model_only:
        yield _changed(asked, "--language-model-only", language_model_only=True)


def _steps(asked: Asked) -> Iterator[_Way]:
    """Fewer sequences, or fewer tokens, where the weights leave room for some.

    Where blocks limit the sequences, first as many as there are even at the low end of the interval.
    """
    deployment = asked.deployment
    if deployment.weight_bytes >= deployment.budget_bytes:
        return
    rows, tokens = deployment.settings.max_num_seqs, deployment.settings.max_num_batched_tokens
    most = deployment.sure_num_seqs
    for fewer in (*((most,) if most and most < rows else ()), *_halves(rows, 1)):
        yield _changed(asked, f"--max-num-seqs {fewer}", max_num_seqs=fewer)
    for fewer in _halves(tokens, _LEAST_STEP):
        text, few = f"--max-num-batched-tokens {fewer}", min(rows, fewer)
        yield _changed(asked, text, max_num_batched_tokens=fewer, max_num_seqs=few)


def _halves(number: int, least: int) -> Iterator[int]:
    """Powers of two below ``number``, downwards."""
    power = 1 << max(number - 1, 1).bit_length() - 1
    while power >= least:
        yield power
        power //= 2


def _drafter(asked: Asked) -> Iterator[_Way]:
    drafter = asked.answer.spec.drafter
    if drafter is not None and drafter.model is not None:
        yield _changed(
            asked,
            "no drafter",
            speculative_model=None,
            speculative_method=None,
            num_speculative_tokens=0,
            acceptance_rate=None,
        )


def _formats(asked: Asked) -> Iterator[_Way]:
    """The published weights where they are smaller, then fewer bits than they have; then those of the KV cache."""
    settings, stored = asked.question.settings, asked.answer.spec.quantization
    if settings.quantization not in ("auto", "none"):
        yield _changed(asked, "the weights as published (without --quantization)", quantization="auto", group_size=None)
    for name, bits in _FEWER_BITS:
        if stored is None or stored.bits > bits:
            size = own_group_size(name, settings.group_size)
            yield _changed(asked, f"fewer bits per weight (--quantization {name})", quantization=name, group_size=size)
    if not asked.answer.kv_dtype.startswith(_KEPT_IN_A_BYTE):
        yield _changed(asked, "--kv-cache-dtype fp8", kv_cache_dtype="fp8")


_LEAST_PART = 8
"""A context of less than this part of the one that is asked for is no way out."""


def _formats_and_context(asked: Asked) -> Iterator[_Way]:
    """Fewer bits where the weights do not fit, and the longest context that these leave room for."""
    if asked.deployment.longest_context:
        return
    for way in _formats(asked):
        longest, name = _longest(asked, _sized(asked, way)), way.question.settings.quantization
        is_use = (longest or 0) * _LEAST_PART >= (asked.question.context_tokens or 0)
        if longest and is_use and name not in ("auto", "none", asked.question.settings.quantization):
            text = f"fewer bits and a shorter context (--quantization {name} --ctx {longest})"
            yield _Way(text, replace(way.question, context_tokens=longest), way.counted)


def _more_gpus(asked: Asked) -> Iterator[_Way]:
    """Twice as many, and so on: all of them share the layers."""
    settings, gpu = asked.question.settings, asked.counted.gpu
    layout = ParallelLayout.of(asked.deployment.settings)
    alone = replace(asked.question, settings=replace(settings, tensor_parallel_size=1))
    num_gpus, ranks = layout.num_gpus, layout.tensor_parallel_size
    while not gpu.is_cpu and num_gpus * 2 <= _MOST_GPUS:
        num_gpus, ranks = num_gpus * 2, ranks * 2
        counted = f"--gpu {num_gpus}x{gpu.id}"
        if settings.tensor_parallel_size == 1:
            text = counted
        else:
            text = f"--tp {ranks}" if asked.counted.num_gpus == 1 else f"{counted} --tp {ranks}"
        yield _Way(text, alone, GpuCount(num_gpus, gpu))
