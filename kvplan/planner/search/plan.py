"""All choices tried and ranked; where none serves, the nearest miss and the cheapest change that would."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.devices.measured import MeasuredProfiles
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import KvplanError
from kvplan.estimate.speed.steps.kernels.expert_backends import check_backend
from kvplan.estimate.vllm.division import check_has_experts
from kvplan.planner.choices.deployment import Choice, Deployment, Miss
from kvplan.planner.choices.formats import FormatPair, format_pairs
from kvplan.planner.choices.trial import Trial, try_choice
from kvplan.planner.question.drafter import with_drafter
from kvplan.planner.question.request import PlanRequest, Workload, complete
from kvplan.planner.search.rule_of_thumb import RuleOfThumb, rule_of_thumb
from kvplan.units import plural


@dataclass(frozen=True, slots=True)
class Found:
    """What serves and what does not, of one search."""

    deployments: tuple[Deployment, ...]
    misses: tuple[Miss, ...]
    num_tried: int


@dataclass(frozen=True, slots=True)
class Alternative:
    """The best deployment in formats that were not asked for: cheaper, or the only one, at the price of ``caveats``."""

    deployment: Deployment
    caveats: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer: deployments best first, in the formats asked for; ``alternatives`` in others.

    ``too_dear``: the cheapest that serves, where none does within the budget. ``over_budget``: ids of GPUs that would
    serve it for more. ``refusals``: by GPU id, why the engine does not run there.
    """

    spec: ModelSpec
    request: PlanRequest
    workload: Workload
    deployments: tuple[Deployment, ...]
    alternatives: tuple[Alternative, ...]
    misses: tuple[Miss, ...]
    too_dear: Deployment | None
    over_budget: frozenset[str]
    refusals: Mapping[str, KvplanError]
    rule: RuleOfThumb | None
    num_tried: int

    @property
    def nearest_miss(self) -> Miss | None:
        return None if self.deployments or not self.misses else nearest(self.misses)


def _nothing_tried(spec: ModelSpec, request: PlanRequest) -> KvplanError:
    """No layout is left: too many GPUs are asked for, or the model cannot be divided over what is allowed."""
    sizes, spare = request.sizes, request.num_spare_replicas
    given = {"--tp": sizes.tensor, "--pp": sizes.pipeline, "--dp": sizes.data}
    asked = {option: min(values) for option, values in given.items() if values}
    smallest, limit = math.prod(asked.values()), request.max_gpus
    named = " ".join(f"{option} {size}" for option, size in asked.items())
    if smallest > limit:
        return KvplanError(
            f"An instance takes {plural(smallest, 'GPU')} ({named}), and the plan may have {limit}.",
            hint=f"use --max-gpus {smallest} or more, or give other sizes",
        )
    needed = (1 + spare) * smallest
    if needed > limit:
        return KvplanError(
            f"{spare + 1} replicas ({plural(spare, 'spare replica')}) take {needed:,} GPUs or more, and the plan may "
            f"have {limit}.",
            hint=f"use --max-gpus {needed} or more, or fewer --spare-replicas",
        )
    widest = max(gpu.max_gpus_per_node for gpu in request.gpus) * (sizes.num_nodes or limit)
    if smallest > widest:
        return KvplanError(
            f"An instance takes {plural(smallest, 'GPU')} ({named}), and --nodes {sizes.num_nodes} has {widest}.",
            hint="raise --nodes, or give other sizes",
        )
    hint = "allow other GPUs, or raise --max-gpus"
    return KvplanError(
        f"{spec.served_id} cannot be divided over the GPUs of this plan.",
        hint=f"leave {' and '.join(asked)} out or give other sizes, {hint}" if asked else hint,
    )


def make_plan(spec: ModelSpec, request: PlanRequest, measured: MeasuredProfiles = MeasuredProfiles()) -> Plan:
    """Try every GPU, layout and format of ``request`` and rank what serves it. ``measured``: speeds that are known.

    KvplanError where the model cannot be divided over any of the GPUs, or the engine refuses the settings on all.
    """
    spec, request = with_drafter(spec, request)
    check_backend(spec, request.settings.moe_backend, request.engine.name)
    check_has_experts(spec, request.sizes.enable_expert_parallel)
    trial = Trial(request, complete(request, spec), measured)
    asked, others = _formats_asked(spec, request)
    found = search(trial, asked, budget=None)
    if not found.deployments and not found.misses:
        raise next(iter(trial.refusals.values()), _nothing_tried(spec, request))
    affordable = tuple(each for each in found.deployments if within_budget(each, request.usd_per_hour))
    trial.dearest = affordable[0] if affordable else None
    in_others = search(trial, others, budget=request.usd_per_hour)
    return Plan(
        spec=spec,
        request=request,
        workload=trial.workload,
        deployments=affordable,
        alternatives=_alternatives(affordable, in_others.deployments, others),
        misses=found.misses,
        too_dear=_cheapest(found.deployments) if not affordable else None,
        over_budget=frozenset(each.choice.gpu.id for each in found.deployments),
        refusals=trial.refusals,
        rule=rule_of_thumb(spec, request, trial.workload),
        num_tried=found.num_tried + in_others.num_tried,
    )


def _formats_asked(spec: ModelSpec, request: PlanRequest) -> tuple[list[FormatPair], list[FormatPair]]:
    """(what the answer consists of, what is shown beside it)."""
    pairs = format_pairs(
        spec, request.quantizations, request.kv_cache_dtypes, request.settings, vllm_release(request.engine.version)
    )
    asked: list[FormatPair] = []
    others: list[FormatPair] = []
    for pair in pairs:
        changed_weights = request.quantizations is None and not pair.weights.is_published
        changed_cache = request.kv_cache_dtypes is None and pair.kv_cache_dtype != "auto"
        (others if changed_weights or changed_cache else asked).append(pair)
    return asked, others


def search(trial: Trial, formats: Sequence[FormatPair], *, budget: float | None) -> Found:
    """Every choice in ``formats``; deployments ranked, best first."""
    deployments: list[Deployment] = []
    misses: list[Miss] = []
    num_tried = 0
    for gpu in trial.gpus:
        for pair in formats:
            if trial.refuses(pair, gpu):
                continue
            for group in _groups(trial, pair, gpu):
                results = [try_choice(trial, choice) for choice in group]
                num_tried += len(group)
                misses += [result for result in results if isinstance(result, Miss)]
                served = [each for result in results if isinstance(result, list) for each in result]
                deployments += [each for each in served if within_budget(each, budget)]
                if any(each.slo.sure for each in served):
                    break  # within a node: no need to cross
    return Found(tuple(sorted(deployments, key=rank)), tuple(misses), num_tried)


def _groups(trial: Trial, pair: FormatPair, gpu: GpuProfile) -> Iterator[list[Choice]]:
    """Choices within a node, then those across nodes."""
    for is_across in (False, True):
        layouts = trial.layouts(pair.weights, gpu, across_nodes=is_across)
        if layouts:
            yield [Choice(gpu, layout, pair.weights, pair.kv_cache_dtype) for layout in layouts]


def within_budget(deployment: Deployment, usd_per_hour: float | None) -> bool:
    """Whether it costs at most so much; without a price nobody knows, so it does not count as cheap."""
    cost = deployment.usd_per_hour
    return usd_per_hour is None or (cost is not None and cost <= usd_per_hour)


def rank(deployment: Deployment) -> tuple[object, ...]:
    """Sure of its load and service level first, then cheap (known prices before unknown ones), few GPUs, fast."""
    cost = deployment.usd_per_hour
    return (
        not deployment.slo.sure,
        cost is None,
        cost if cost is not None else 0.0,
        deployment.num_gpus,
        deployment.num_gpus * deployment.choice.gpu.memory_bytes,
        deployment.choice.layout.data_parallel_size > 1,
        -deployment.served.speed.output_tokens_per_second.middle,
    )


def _cheapest(deployments: Sequence[Deployment]) -> Deployment | None:
    priced = [each for each in deployments if each.usd_per_hour is not None]
    return min(priced, key=lambda each: each.usd_per_hour or 0.0, default=None)


def _alternatives(
    best: Sequence[Deployment], others: Sequence[Deployment], formats: Sequence[FormatPair]
) -> tuple[Alternative, ...]:
    """The best in each other format, where it is cheaper or smaller than the best as asked."""
    found: dict[tuple[str, str], Alternative] = {}
    for deployment in others:
        formats_of = deployment.choice.formats
        if formats_of in found or (best and not _is_better(deployment, best[0])):
            continue
        pair = next(each for each in formats if (each.weights.name, each.kv_cache_dtype) == formats_of)
        found[formats_of] = Alternative(deployment, pair.caveats())
    return tuple(found.values())


def _is_better(deployment: Deployment, best: Deployment) -> bool:
    """Cheaper (or, where nothing has a price, smaller), no less sure, and at least half as fast."""
    if best.slo.sure and not deployment.slo.sure:
        return False
    fast, slow = (each.replicas * each.served.speed.output_tokens_per_second.middle for each in (best, deployment))
    if deployment.offered_tokens_per_second is None and slow < fast / 2:
        return False
    cost, dearer = deployment.usd_per_hour, best.usd_per_hour
    if dearer is not None:
        return cost is not None and cost < dearer
    return deployment.num_gpus < best.num_gpus


def nearest(misses: Sequence[Miss]) -> Miss:
    """Speed is nearer than room, and room nearer than weights that do not load; then by how much is lacking."""
    return min(misses, key=lambda miss: miss.nearness)


def first_deployment(
    spec: ModelSpec, request: PlanRequest, measured: MeasuredProfiles = MeasuredProfiles()
) -> Deployment | None:
    """The best answer to ``request`` in the formats it asks for; None without one."""
    try:
        trial = Trial(request, complete(request, spec), measured)
    except KvplanError:
        return None
    asked, _ = _formats_asked(spec, request)
    found = search(trial, asked, budget=request.usd_per_hour)
    return found.deployments[0] if found.deployments else None
