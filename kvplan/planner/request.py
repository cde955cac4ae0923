"""What a plan is asked for, with the gaps filled and every default named."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.gpus import GpuProfile
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import KvplanError, UsageError
from kvplan.planner.slo import Slo
from kvplan.settings import ServingSettings

_DEFAULT_OUTPUT_TOKENS = 256
_DEFAULT_CONTEXT_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The question. ``num_users`` requests at once, or ``requests_per_second`` of them; lengths in tokens.

    ``settings``: those that every deployment shares. The search varies the rest: ``quantizations`` and
    ``kv_cache_dtypes`` to try, and the GPUs.
    """

    num_users: int | None = None
    requests_per_second: float | None = None
    average_context: int | None = None
    longest_context: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    slo: Slo = field(default_factory=Slo)
    gpus: tuple[GpuProfile, ...] = ()
    max_gpus: int = 8
    quantizations: tuple[str, ...] | None = None
    kv_cache_dtypes: tuple[str, ...] = ("auto",)
    worst_case: bool = False
    engine: EngineChoice = EngineChoice("vllm")  # noqa: RUF009 - frozen
    settings: ServingSettings = ServingSettings()  # noqa: RUF009 - frozen


@dataclass(frozen=True, slots=True)
class Workload:
    """The question with every length known. ``average_context``: tokens that a sequence holds on average."""

    num_users: int | None
    requests_per_second: float | None
    average_context: int
    longest_context: int
    input_tokens: int
    output_tokens: int
    assumptions: tuple[str, ...]


def complete(request: PlanRequest, spec: ModelSpec) -> Workload:
    """Fill in the defaults. UsageError for contradictions, KvplanError for more than the model's positions."""
    notes: list[str] = []
    if request.num_users is None and request.requests_per_second is None:
        raise UsageError("A plan needs a load.", hint="give --users 40 or --request-rate 2")
    longest = _longest(request, spec, notes)
    if request.average_context is not None:
        average = request.average_context
    elif request.input_tokens is not None:
        average = min(longest, request.input_tokens + (request.output_tokens or _DEFAULT_OUTPUT_TOKENS) // 2)
        notes.append(f"--ctx-avg {average:,}: the prompt and half of the answer.")
    else:
        average = longest
        notes.append(f"--ctx-avg {average:,}: same as --ctx-max, so the average case is the worst case.")
    output = request.output_tokens
    if output is None:
        output = max(min(_DEFAULT_OUTPUT_TOKENS, average // 2), 1)
        notes.append(f"--output-len {output:,}: kvplan's default.")
    prompt = request.input_tokens
    if prompt is None:
        prompt = max(min(average - output // 2, longest - output), 1)
        notes.append(f"--input-len {prompt:,}: --ctx-avg minus half of the answer, within --ctx-max.")
    if average > longest:
        raise UsageError(
            f"--ctx-avg {average:,} is longer than --ctx-max {longest:,}.", hint=f"use --ctx-max {average} or more"
        )
    if prompt + output > longest:
        raise UsageError(
            f"A prompt of {prompt:,} and an answer of {output:,} tokens do not fit --ctx-max {longest:,}.",
            hint=f"use --ctx-max {prompt + output} or more",
        )
    return Workload(request.num_users, request.requests_per_second, average, longest, prompt, output, tuple(notes))


def _longest(request: PlanRequest, spec: ModelSpec, notes: list[str]) -> int:
    positions = spec.max_position_embeddings
    longest = request.longest_context
    if longest is None:
        wanted = (request.input_tokens or 0) + (request.output_tokens or 0)
        longest = max(request.average_context or 0, wanted)
        if not longest:
            longest = min(positions or _DEFAULT_CONTEXT_TOKENS, _DEFAULT_CONTEXT_TOKENS)
        notes.append(f"--ctx-max {longest:,}: the longest length given, or kvplan's default.")
    if positions is not None and longest > positions:
        raise KvplanError(
            f"{spec.id} has {positions:,} positions; --ctx-max {longest:,} is beyond them.",
            hint=f"use --ctx-max {positions} or less",
        )
    return longest
