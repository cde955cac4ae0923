"""What a plan is asked for, with the gaps filled and every default named."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.spec import ModelSpec
from kvplan.catalog.speculation.reading import with_speculation
from kvplan.errors import KvplanError, UsageError
from kvplan.planner.question.pattern import LoadPattern
from kvplan.planner.question.prices import ApiPrice
from kvplan.planner.question.slo import DEFAULT_CONFIDENCE, Goal, Slo
from kvplan.planner.question.trace import TraceQuestion
from kvplan.settings import ServingSettings
from kvplan.units import plural

_DEFAULT_OUTPUT_TOKENS = 256
_DEFAULT_CONTEXT_TOKENS = 4096
DEFAULT_MAX_GPUS: Final = 8
MOST_GPUS: Final = 4096
"""Of a plan whose limit is a budget, or that looks for what would serve a load."""


@dataclass(frozen=True, slots=True)
class ParallelSizes:
    """Sizes of one instance to try; None: those that make sense for the model and the GPU.

    ``num_nodes``: how many nodes one instance may span; None: as many as ``max_gpus`` fill.
    """

    tensor: tuple[int, ...] | None = None
    pipeline: tuple[int, ...] | None = None
    data: tuple[int, ...] | None = None
    enable_expert_parallel: bool | None = None
    num_nodes: int | None = None


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The question. ``num_users`` requests at once, or ``requests_per_second`` of them; lengths in tokens.

    ``settings``: those that every deployment shares. The search varies the rest: ``quantizations`` and
    ``kv_cache_dtypes`` (None: as published, and others as alternatives), ``sizes``, and the GPUs.
    ``max_gpus``: None for as many as the budget buys or ``num_nodes`` have, and without either ``DEFAULT_MAX_GPUS``.
    ``confidence``: that the service level is kept. ``thorough``: the search may take a minute.
    ``as_started``: batch settings that are not given are the engine's defaults, and not searched.
    ``headroom``: a share of the load that is planned for in addition. ``num_spare_replicas``: replicas beside those
    that the load needs. ``usd_per_hour``: the budget. ``api_price``: what renting is held against.
    ``load_notes``: what to tell about the file that the load is taken from. ``trace``: a file whose requests are played
    as they are, where it has times and nobody gives another load.
    """

    num_users: int | None = None
    requests_per_second: float | None = None
    average_context: int | None = None
    longest_context: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    slo: Slo = field(default_factory=Slo)
    gpus: tuple[GpuProfile, ...] = ()
    max_gpus: int | None = None
    sizes: ParallelSizes = ParallelSizes()
    quantizations: tuple[str, ...] | None = None
    kv_cache_dtypes: tuple[str, ...] | None = None
    worst_case: bool = False
    headroom: float = 0.0
    num_spare_replicas: int = 0
    usd_per_hour: float | None = None
    confidence: float = DEFAULT_CONFIDENCE
    thorough: bool = False
    as_started: bool = False
    api_price: ApiPrice | None = None
    pattern: LoadPattern = LoadPattern()  # noqa: RUF009 - frozen
    load_notes: tuple[str, ...] = ()
    trace: TraceQuestion | None = None
    engine: EngineChoice = EngineChoice("vllm")  # noqa: RUF009 - frozen
    settings: ServingSettings = ServingSettings()  # noqa: RUF009 - frozen

    @property
    def goal(self) -> Goal:
        """What a deployment has to give."""
        return Goal.of(self.slo, self.confidence)

    def most_gpus(self, gpu: GpuProfile) -> int:
        """GPUs of this kind that the whole deployment may have."""
        if self.max_gpus is not None:
            return self.max_gpus
        most = DEFAULT_MAX_GPUS
        if self.usd_per_hour is not None and gpu.price is not None and gpu.price.usd_per_hour > 0:
            most = max(most, min(int(self.usd_per_hour / gpu.price.usd_per_hour), MOST_GPUS))
        return max(most, (self.sizes.num_nodes or 0) * gpu.max_gpus_per_node)


@dataclass(frozen=True, slots=True)
class Workload:
    """The question with every length known and the head-room added to the load.

    ``average_context``: tokens that a sequence holds on average. ``input_tokens``: of a prompt on average, which begins
    with a shared prefix and earlier turns, where there are any, before ``own_tokens`` (None: all are).
    """

    num_users: int | None
    requests_per_second: float | None
    average_context: int
    longest_context: int
    input_tokens: int
    output_tokens: int
    assumptions: tuple[str, ...]
    own_tokens: int | None = None
    pattern: LoadPattern = LoadPattern()  # noqa: RUF009 - frozen

    @property
    def message_tokens(self) -> int:
        """Tokens of a prompt behind a shared prefix and earlier turns; all of it where there are none."""
        return self.input_tokens if self.own_tokens is None else self.own_tokens

    def users_of_one(self, replicas: int) -> int:
        """Users of the busiest of ``replicas``; 1 under a rate."""
        return math.ceil((self.num_users or 1) / replicas)

    @property
    def longest_turn(self) -> int:
        """Tokens that a message and its answer may have together, in the last turn of a chat too."""
        sharing = self.pattern.sharing
        return (self.longest_context - sharing.prefix_tokens) // sharing.turns


def complete(request: PlanRequest, spec: ModelSpec) -> Workload:
    """Fill in the defaults. UsageError for contradictions, KvplanError for more than the model's positions."""
    notes: list[str] = list(request.load_notes)
    if request.num_users is None and request.requests_per_second is None:
        raise UsageError("A plan needs a load.", hint="give --users 40 or --request-rate 2")
    pattern = request.pattern
    if pattern.think_seconds and request.num_users is None and pattern.sharing.turns == 1:
        raise UsageError("--think-time needs --users, or --turns.", hint="for example --users 300 --think-time 20s")
    if pattern.burstiness != 1.0 and request.requests_per_second is None:
        raise UsageError("--burstiness needs --request-rate.", hint="for example --request-rate 2 --burstiness 0.5")
    asked, request = request, _with_earlier(request, notes)
    longest = _longest(asked, spec, notes)
    if request.average_context is not None:
        average = request.average_context
    elif request.input_tokens is not None:
        average = min(longest, request.input_tokens + (request.output_tokens or _DEFAULT_OUTPUT_TOKENS) // 2)
        notes.append(f"--ctx-avg {average:,}: the prompt and half of the answer.")
    else:
        average = longest
        notes.append(f"--ctx-avg {average:,}: same as --ctx-max, so the average case is the worst case.")
    output = _answer_tokens(request, average)
    if request.output_tokens is None:
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
    if not prompt <= average <= prompt + output:
        raise UsageError(
            f"Sequences of prompts of {prompt:,} and answers of {output:,} tokens do not hold {average:,} on average.",
            hint=f"leave --ctx-avg out, or give one from {prompt} to {prompt + output}",
        )
    users, rate = _with_headroom(request, notes)
    own = None if request is asked else asked.input_tokens
    return Workload(users, rate, average, longest, prompt, output, tuple(notes), own, request.pattern)


def _with_earlier(request: PlanRequest, notes: list[str]) -> PlanRequest:
    """The request with whole prompts: a shared prefix and the turns before, and then what ``--input-len`` says.

    As ``kvplan load`` and ``vllm bench serve`` have it, whose prefixes come on top of a prompt's own tokens.
    """
    sharing = request.pattern.sharing
    if not sharing.prefix_tokens and sharing.turns == 1:
        return request
    option = "--prefix-len" if sharing.prefix_tokens else "--turns"
    if request.input_tokens is None:
        raise UsageError(f"{option} needs --input-len, the tokens of a message.", hint="for example --input-len 200")
    output = request.output_tokens
    if output is None:
        output = _DEFAULT_OUTPUT_TOKENS
        notes.append(f"--output-len {output:,}: kvplan's default.")
    prompt, longest = sharing.prompt_tokens(request.input_tokens, output), sharing.longest(request.input_tokens, output)
    if request.longest_context is not None and request.longest_context < longest:
        raise UsageError(
            f"Requests of {longest:,} tokens do not fit --ctx-max {request.longest_context:,}.",
            hint=f"use --ctx-max {longest} or more, or fewer turns",
        )
    return replace(
        request,
        input_tokens=round(prompt),
        output_tokens=output,
    )


def _with_headroom(request: PlanRequest, notes: list[str]) -> tuple[int | None, float | None]:
    """(users, requests per second) to plan for."""
    factor = 1 + request.headroom
    users = None if request.num_users is None else math.ceil(round(request.num_users * factor, 6))
    rate = None if request.requests_per_second is None else request.requests_per_second * factor
    if request.headroom:
        planned = plural(users, "user") if users is not None else f"{rate:g} requests/s"
        notes.append(f"--headroom {request.headroom:.0%}: planned for {planned}.")
    return users, rate


def _longest(request: PlanRequest, spec: ModelSpec, notes: list[str]) -> int:
    """Tokens of the longest request that a server has to admit: without ``--ctx-max`` the longest that is played.

    ``request``: as it was asked, so that a prompt is a message of its own.
    """
    positions, longest = spec.longest_context, request.longest_context
    mean, played = _mean_tokens(request), _played_tokens(request)
    whole = request.pattern.sharing.longest(mean, 0) if mean else 0
    if longest is None:
        longest = played or _DEFAULT_CONTEXT_TOKENS
        if positions is not None and (request.average_context or whole) <= positions:
            longest = min(longest, positions)
        why = "the longest request of these lengths" if mean else "kvplan's default"
        if request.as_started and positions is not None and longest < positions:
            notes.append(
                f"The command leaves --max-model-len to the model's {positions:,}: vLLM starts only where one sequence "
                f"of so many tokens fits, which is not asked here. Give it --max-model-len {longest}."
            )
        notes.append(f"--ctx-max {longest:,}: {why}. Servers refuse longer ones, so give it where yours get longer.")
    if longest < played and request.input_tokens is not None and request.pattern.trace is None:
        exponential = request.pattern.length_spread == "exponential"
        how = "are cut there, which makes the load lighter" if exponential else "are played all the same"
        notes.append(
            f"--ctx-max {longest:,}: a server refuses what is longer. Requests of these lengths have up to {played:,} "
            f"tokens, which {how}."
        )
    if positions is not None and longest > positions:
        raise _too_long(request, spec.served_id, (longest, whole), positions)
    return longest


def _too_long(request: PlanRequest, served: str, lengths: tuple[int, int], positions: int) -> KvplanError:
    """The error for sequences beyond the positions, in the option that asked for them.

    ``lengths``: of the longest request, and of one whose prompts and answers are as long as their means.
    """
    asked, hint = f"--ctx-max {lengths[0]:,} is", f"use --ctx-max {positions} or less"
    trace = request.pattern.trace
    if trace is not None and trace.longest == lengths[0]:
        asked = f"requests of {trace.name}, of up to {lengths[0]:,} tokens, are"
        hint = f"use --ctx-max {positions}, which leaves longer ones out"
    elif request.longest_context is None and request.average_context is not None:
        asked, hint = f"--ctx-avg {request.average_context:,} is", f"use --ctx-avg {positions} or less"
    elif request.longest_context is None:
        sharing = request.pattern.sharing
        also = {"--prefix-len": sharing.prefix_tokens > 0, "--turns": sharing.turns > 1}
        options = ["--input-len", "--output-len", *(name for name, is_given in also.items() if is_given)]
        asked, hint = f"requests of {lengths[1]:,} tokens are", f"lower {' or '.join(options)}"
    return KvplanError(f"{served} has {positions:,} positions; {asked} beyond them.", hint=hint)


def _played_tokens(request: PlanRequest) -> int:
    """Of the longest request, a chat's last one included, as its lengths spread around their means."""
    sharing, mean = request.pattern.sharing, _mean_tokens(request)
    return sharing.longest(math.ceil(mean * request.pattern.longest_share), 0) if mean else 0


def _mean_tokens(request: PlanRequest) -> int:
    """Of a message and its answer together, or of a whole sequence; 0 where no length is given."""
    average = request.average_context or 0
    if request.input_tokens is not None:
        return max(request.input_tokens + (request.output_tokens or _DEFAULT_OUTPUT_TOKENS), average)
    return average and average + math.ceil(_answer_tokens(request, average) / 2)


def _answer_tokens(request: PlanRequest, average: int) -> int:
    """Of an answer in sequences of ``average`` tokens."""
    return request.output_tokens or max(min(_DEFAULT_OUTPUT_TOKENS, average // 2), 1)


class WithDrafter(NamedTuple):
    """A model with its drafter, and the request with as many draft tokens as it makes."""

    spec: ModelSpec
    request: PlanRequest


def with_drafter(spec: ModelSpec, request: PlanRequest) -> WithDrafter:
    """Both as they are where no drafter is asked for. UsageError without an acceptance rate, which no config tells."""
    found = with_speculation(spec, request.settings)
    if found.spec.drafter is not None and found.settings.acceptance_rate is None:
        raise UsageError(
            "A plan with a drafter needs --acceptance-rate: it depends on drafter, task and temperature.",
            hint="for example --acceptance-rate 0.7, the chance that a draft token is accepted after those before it",
        )
    return WithDrafter(found.spec, replace(request, settings=found.settings))
