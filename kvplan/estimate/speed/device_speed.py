"""How fast a deployment decodes and reads prompts, for an estimate: from a measured profile, else a roofline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.devices.measured import MeasuredProfiles
from kvplan.catalog.devices.measured_profile import Origin
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.spec import ModelSpec
from kvplan.estimate.cache_entries import CacheSettings
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.placed.placement import Placement
from kvplan.estimate.speed.engine_speed import engine_rules, engine_speed_model
from kvplan.estimate.speed.latency import ServingSpeed, SpeedModel
from kvplan.estimate.speed.queueing.drafting import DrafterOn, Drafting
from kvplan.estimate.speed.queueing.loads import steady_users
from kvplan.estimate.speed.queueing.rules import SchedulingRules
from kvplan.estimate.speed.queues import ExplainedStep, Queues, decode_step, mixed_step, play_queues
from kvplan.estimate.speed.steps.clocks import DeviceSpeed
from kvplan.estimate.speed.steps.work import kv_read_bytes, model_work
from kvplan.estimate.weights import lookup_bytes
from kvplan.units import plural

PROMPT_TOKENS: Final = 512
ANSWER_TOKENS: Final = 128
_ALIKE: Final = 16
"""Requests that are counted, at least, where all are as long: they see nearly the same."""
ASSUMED_ACCEPTANCE: Final = 0.7
"""The acceptance rate where nobody gives one: the middle of what ``speculation`` shows."""
_DRAWN: Final = (1, 4, 16, 64, 256, 1024)
"""Sequences in the steps of a picture, as far as they fit, and then as many as do."""


@dataclass(frozen=True, slots=True)
class RequestLengths:
    """Tokens of a prompt and of its answer. is_fixed: of every request; else they spread around these means."""

    prompt: int = PROMPT_TOKENS
    answer: int = ANSWER_TOKENS
    is_fixed: bool = False

    @staticmethod
    def filling(context_tokens: int) -> RequestLengths:
        """Return those of sequences of so many tokens, with as long an answer as usual where there is room for one."""
        answer = min(ANSWER_TOKENS, max(context_tokens // 2, 1))
        return RequestLengths(max(context_tokens - answer, 1), answer, is_fixed=True)

    @property
    def whole(self) -> int:
        """Tokens of a sequence in the end."""
        return self.prompt + self.answer

    @property
    def average_context(self) -> int:
        """Tokens of a sequence that decodes, on average."""
        return self.prompt + self.answer // 2


@dataclass(frozen=True, slots=True)
class DeploymentSpeed:
    """A deployment that serves requests of ``lengths``: to one user, and to as many as fit at once.

    note: what the measured profile says of itself, None for a roofline.
    """

    gpu: str
    origin: Origin
    note: str | None
    num_users: int
    alone: ServingSpeed
    full: ServingSpeed
    model: SpeedModel
    rules: SchedulingRules
    max_model_len: int
    lengths: RequestLengths = RequestLengths()

    @property
    def is_measured(self) -> bool:
        """Whether anything of it was measured: by anyone on such a GPU, or by its user on such a server."""
        return self.note is not None or self.model.scale is not None

    def origin_text(self, *, explain: bool) -> str:
        """Where the step times come from, for people: in a few words, or with the data and how well they fit."""
        device = self.model.device_speed
        scale = self.model.scale
        note = "roofline" if device is None else (device.note if explain else device.short_note or device.note)
        text = f"{self.origin}: {note}" if self.origin in ("measured", "calibrated") else note
        return text if scale is None else f"{text}; {scale.note}"

    def drafting_text(self) -> str:
        """``1 draft token a step, of which 70 % are accepted (assumed)``, for people; empty without a drafter."""
        drafting = self.model.drafting
        if drafting is None:
            return ""
        tokens = plural(drafting.draft.num_tokens, "draft token")
        said = ", assumed: --acceptance-rate" if drafting.is_assumed else ""
        return f"{tokens} a step, each accepted with a chance of {100 * drafting.acceptance_rate:g} %{said}"

    def queues(self, num_users: int) -> Queues | None:
        """What ``num_users`` users see of each other, played.

        None where requests spread like theirs do not fit, and as for ``play_queues``.
        """
        middle = self.model.steady(num_users, "middle")
        load = steady_users(num_users, self.lengths.prompt, self.lengths.answer, middle.reading_share)
        if self.lengths.is_fixed:
            load = load.spread_as("fixed", self.lengths.whole)
            load = replace(load, num_requests=load.num_warmups + max(num_users, _ALIKE) + load.num_cooldowns)
        if max(map(sum, load.lengths)) > min(self.rules.pool_tokens, self.max_model_len):
            return None
        return play_queues(self.model, load, self.rules, middle.requests_per_second)

    def explained_steps(self) -> list[ExplainedStep]:
        """Steps of one sequence, of as many as fit, and of these with a prompt beside them."""
        return [
            *(decode_step(self.model, each, self.lengths.average_context) for each in sorted({1, self.num_users})),
            mixed_step(self.model, self.num_users, self.lengths.average_context),
        ]

    def decode_steps(self) -> list[ExplainedStep]:
        """Steps of more and more sequences."""
        counts = [each for each in _DRAWN if each < self.num_users]
        return [decode_step(self.model, each, self.lengths.average_context) for each in (*counts, self.num_users)]


def deployment_speeds(
    spec: ModelSpec,
    gpus: Sequence[GpuProfile],
    placements: Sequence[Placement],
    cache: CacheSettings,
    measured: MeasuredProfiles,
    engine: EngineChoice,
    drafters: Sequence[DrafterOn | None],
    lengths: RequestLengths = RequestLengths(),
) -> tuple[DeploymentSpeed | None, ...]:
    """One per placement by ``engine``; None where it does not fit, or the model has no positions for such a load.

    With a drafter the times are those of an engine that drafts.
    """
    places = zip(gpus, placements, drafters, strict=True)
    return tuple(
        _speed(spec, gpu, placement, cache, measured, engine, drafter, lengths) for gpu, placement, drafter in places
    )


def _speed(
    spec: ModelSpec,
    gpu: GpuProfile,
    placement: Placement,
    cache: CacheSettings,
    measured: MeasuredProfiles,
    engine: EngineChoice,
    drafter: DrafterOn | None,
    lengths: RequestLengths,
) -> DeploymentSpeed | None:
    deployment, longest = placement.deployment, spec.longest_context
    if not deployment.fits or (longest is not None and longest < lengths.whole):
        return None
    settings = deployment.settings
    layout = ParallelLayout.of(settings)
    weight_bytes = deployment.weight_bytes - (0 if drafter is None else drafter.weight_bytes)
    if engine.name == "kvplan":  # vLLM has them in the host's memory
        weight_bytes -= lookup_bytes(spec, cache.model_dtype)
    work = model_work(spec, weight_bytes, cache.model_dtype, layout)
    profile = measured.for_gpu(gpu, work.speed_format, engine.name)
    known = None if profile is None else DeviceSpeed.of(profile, spec.id, work.speed_format)
    kv_dtype = settings.kv_cache_dtype if spec.has_indexer else cache.kv_dtype  # by the GPU's kernel
    on_a_rank = replace(cache, tensor_parallel_size=layout.tensor_parallel_size, kv_dtype=kv_dtype)
    kv_bytes = kv_read_bytes(spec, lengths.average_context, on_a_rank)
    each = lengths.whole
    room = placement.sequences_of(each)
    # Windows and states take more of a pool for each token of a short sequence than for one of a long one.
    pool_tokens = min(deployment.kv_cache_tokens, (room + 1) * each - 1)
    users = max(min(room, layout.data_parallel_size * settings.max_num_seqs), 1)
    step_tokens = settings.max_num_batched_tokens
    model = engine_speed_model(
        engine,
        work,
        gpu,
        lengths.prompt,
        lengths.answer,
        kv_bytes,
        known,
        settings.moe_backend,
        step_tokens,
        is_eager=settings.enforce_eager,
    )
    model = replace(model, scale=measured.server_scale(gpu, layout.sizes, work.speed_format))
    if drafter is not None:
        given = settings.acceptance_rate
        drafting = Drafting(drafter.draft, ASSUMED_ACCEPTANCE if given is None else given, is_assumed=given is None)
        model = replace(model, drafting=drafting)
    alone, full = model.speed(1), model.speed(users)
    rules = engine_rules(engine, settings, work, pool_tokens)
    rules = model.followed(rules)
    longest_served = settings.max_model_len
    return DeploymentSpeed(gpu.id, alone.origin, alone.note, users, alone, full, model, rules, longest_served, lengths)
