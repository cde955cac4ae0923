"""One question about one model, and its answer: what the command line and the Python interface decide alike.

A GPU's own dtype, the checkpoint's own format, ranks of ``8xh200``, and which GPUs have kernels for a model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Final

from kvplan.catalog.devices.device_support import attends_on, check_formats, dtype_on, fallback_note
from kvplan.catalog.devices.gpus import GpuCount
from kvplan.catalog.devices.measured import MeasuredProfiles
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.spec import ModelSpec
from kvplan.catalog.speculation.config import with_speculative_config
from kvplan.caveats import Caveat, said_of
from kvplan.errors import UsageError
from kvplan.estimate.answer import EstimateAnswer, EstimateRequest, make_estimate, with_quantization
from kvplan.estimate.dtypes import serving_dtype
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speculation import joined_speculation
from kvplan.estimate.speed.device_speed import RequestLengths
from kvplan.estimate.vllm.contexts import check_contexts
from kvplan.estimate.vllm.learned import LearnedStart
from kvplan.pasted.shell import is_serve_line, shell_words
from kvplan.settings import KNOBS, ServingSettings
from kvplan.units import format_tokens

if TYPE_CHECKING:
    from kvplan.pasted.command import PastedCommand


ESTIMATE_SETTINGS: Final = (
    "dtype",
    "group_size",
    "language_model_only",
    "limit_mm_per_prompt",
    "encoder_tokens",
    "enable_lora",
    "max_loras",
    "max_lora_rank",
    "device_memory_bytes",
    "reserved_bytes",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "pp_layer_partition",
    "data_parallel_size",
    "enable_expert_parallel",
    "decode_context_parallel_size",
    "nvlink_bridge",
    "network_bytes_per_second",
    "moe_backend",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "block_size",
    "enable_prefix_caching",
    "enforce_eager",
    "cpu_offload_gb",
    "skip_mm_profiling",
    "warm_start",
    "expandable_segments",
    "max_num_seqs",
    "max_num_batched_tokens",
    "speculative_model",
    "num_speculative_tokens",
    "acceptance_rate",
)
"""Settings that an estimate takes by name, beside the lists of contexts and formats."""


@dataclass(frozen=True, slots=True)
class Question:
    """One row of the answer to be: how a model is stored, and how long its sequences are.

    speeds_of: requests that speeds are told for; None for those that fill ``context_tokens``, where it is given.
    """

    context_tokens: int | None
    settings: ServingSettings
    speeds_of: RequestLengths | None = None

    @property
    def lengths(self) -> RequestLengths:
        """Lengths of the requests that speeds are told for."""
        if self.speeds_of is not None or self.context_tokens is None:
            return self.speeds_of or RequestLengths()
        return RequestLengths.filling(self.context_tokens)


def with_kernels(gpus: Sequence[GpuCount], spec: ModelSpec, engine: EngineChoice) -> list[GpuCount]:
    """Return those of ``gpus`` that the engine serves ``spec`` on, or on which it is modelled."""
    if engine.name == "sglang":
        return [each for each in gpus if each.gpu.vendor == "nvidia"]
    if engine.name != "vllm":
        return list(gpus)
    return [each for each in gpus if attends_on(each.gpu, spec, version=engine.version)]


def answer_question(
    spec: ModelSpec,
    question: Question,
    gpus: Sequence[GpuCount],
    engine: EngineChoice,
    measured: MeasuredProfiles,
    learned: LearnedStart | None = None,
) -> EstimateAnswer:
    """The estimate on all ``gpus``; those that differ in their number or in the dtype they run are asked apart."""
    settings = _as_published(spec, question.settings)
    asked = [(each.gpu, settings_on(each, spec, settings, engine)) for each in gpus]
    parts: list[EstimateAnswer] = []
    for same, group in groupby(asked, key=lambda each: each[1]):
        found = tuple(gpu for gpu, _ in group)
        request = EstimateRequest(question.context_tokens, found, engine, same, learned, question.lengths)
        estimate = make_estimate(spec, request, measured)
        notes = (fallback_note(gpu, same.dtype) for gpu in found if same.dtype != settings.dtype)
        parts.append(replace(estimate, assumptions=(*notes, *estimate.assumptions)))
    return _joined(parts)


def _as_published(spec: ModelSpec, settings: ServingSettings) -> ServingSettings:
    """A format named that the checkpoint already has is the checkpoint's own, with its blocks and exceptions."""
    published = spec.quantization
    is_same = published is not None and published.method == settings.quantization
    if published is None or not is_same or settings.group_size not in (None, published.group_size):
        return settings
    return replace(settings, quantization="auto", group_size=None)


def settings_on(counted: GpuCount, spec: ModelSpec, settings: ServingSettings, engine: EngineChoice) -> ServingSettings:
    """``settings`` as ``engine`` has them on these GPUs: ranks of the count, the GPU's dtype. UsageError for others."""
    ranks = tensor_parallel_size(counted, settings)
    if counted.gpu.part_of is not None and counted.num_gpus * ParallelLayout.of(settings).num_gpus > 1:
        raise UsageError(
            f"MIG slices have no way to each other, so {counted.gpu.id} serves a model alone.",
            hint=f"size one of them, or whole {counted.gpu.part_of}",
        )
    if engine.name != "vllm":
        return replace(settings, tensor_parallel_size=ranks)
    served = serving_dtype(spec.dtype, settings.dtype)
    dtype = dtype_on(counted.gpu, spec, served, asked=settings.dtype, version=engine.version)
    stored = with_quantization(spec, settings)
    check_contexts(spec, replace(settings, tensor_parallel_size=ranks), engine.version)
    check_formats(counted.gpu, stored, settings.kv_cache_dtype, version=engine.version)
    return replace(settings, tensor_parallel_size=ranks, dtype=settings.dtype if dtype == served else dtype)


def tensor_parallel_size(counted: GpuCount, settings: ServingSettings) -> int:
    """Return what ``8xh200`` leaves after the other parallel sizes. UsageError where they contradict the count."""
    if counted.num_gpus == 1:
        return settings.tensor_parallel_size
    others = settings.pipeline_parallel_size * settings.data_parallel_size
    if counted.num_gpus % others:
        raise UsageError(
            f"{counted.num_gpus} x {counted.gpu.id} cannot be divided over {others} groups (--pp x --dp).",
            hint="choose a count that is a multiple of them",
        )
    ranks = counted.num_gpus // others
    if settings.tensor_parallel_size not in (1, ranks):
        asked = settings.tensor_parallel_size
        raise UsageError(
            f"{counted.num_gpus} x {counted.gpu.id} contradicts --tensor-parallel-size {asked}.",
            hint="leave one of them out",
        )
    return ranks


def _joined(parts: Sequence[EstimateAnswer]) -> EstimateAnswer:
    first = parts[0]
    if len(parts) == 1:
        return first
    return replace(
        first,
        deployments=tuple(each for part in parts for each in part.deployments),
        speeds=tuple(each for part in parts for each in part.speeds),
        speculation=joined_speculation([part.speculation for part in parts]),
        assumptions=tuple(dict.fromkeys(_assumptions(parts))),
    )


def _assumptions(parts: Sequence[EstimateAnswer]) -> Iterator[str]:
    """Yield the assumptions of every part as they are, others with the GPUs they were made on."""
    for part in parts:
        names = ", ".join(each.gpu for each in part.deployments)
        for sentence in part.assumptions:
            is_common = all(sentence in other.assumptions for other in parts)
            is_named = any(sentence.startswith(each.gpu) for each in part.deployments)
            yield sentence if is_common or is_named else said_of(names, sentence)


def notes_on(answer: EstimateAnswer) -> Iterator[str]:
    """A length past the model's positions, and every ``Caveat`` among the assumptions."""
    longest = answer.spec.longest_context
    if longest is not None and answer.context_tokens > longest:
        yield (
            f"{format_tokens(answer.context_tokens)} tokens are beyond the {format_tokens(longest)} positions of "
            f"{answer.spec.served_id}: engines refuse them unless the rotary positions are scaled."
        )
    yield from (each for each in answer.assumptions if isinstance(each, Caveat))


def pasted_command(words: Sequence[str]) -> PastedCommand | None:
    """The command that ``words`` are, or the one of them that holds a whole line; None where they name models."""
    lines = [shell_words(word) if " " in word.strip() else [word] for word in words]
    whole = next((line for line in lines if len(line) > 1 and is_serve_line(line)), None)
    if whole is None and not is_serve_line(words):
        return None
    from kvplan.pasted.command import read_command  # what reads commands is much, and few paste any

    return read_command(words if whole is None else whole)


def with_pasted(given: ServingSettings, pasted: PastedCommand, speculative_config: str | None) -> ServingSettings:
    """``pasted`` with what was ``given`` beside it, which counts before it."""
    changed = {name: value for name in KNOBS if (value := getattr(given, name)) != KNOBS[name].default}
    both = replace(ServingSettings(), **pasted.settings)
    both = replace(with_speculative_config(both, speculative_config or pasted.speculative_config), **changed)
    both.check(as_options=True)
    return both


def engine_of(given: str | None, pasted: PastedCommand, default: str) -> str:
    """The engine that is asked for, or the release of the command's container. UsageError for another engine."""
    if given is not None and EngineChoice.parse(given).name != "vllm":
        raise UsageError(f"--engine {given} cannot be used with vLLM's command.", hint="leave --engine out")
    return given or (default if pasted.version is None else f"vllm@{pasted.version}")


def checkpoint_note(spec: ModelSpec, pasted: PastedCommand) -> str | None:
    """A sentence where the command names a format of the checkpoint, and the model has none."""
    if pasted.checkpoint_format is None or spec.quantization is not None:
        return None
    return (
        f"--quantization {pasted.checkpoint_format} needs weights in that format; {spec.served_id} is sized as "
        f"published, in {spec.dtype}."
    )
