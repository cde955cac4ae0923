"""All choices tried and ranked; where none serves, the nearest miss and the cheapest change that would."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.devices.measured import MeasuredProfiles
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import KvplanError
from kvplan.estimate.speed.steps.kernels.expert_backends import check_backend
from kvplan.estimate.vllm.division import check_has_experts
from kvplan.planner.choices.basis import PlanBasis
from kvplan.planner.choices.deployment import Miss, PlannedDeployment
from kvplan.planner.choices.formats import FormatPair, format_pairs
from kvplan.planner.question.request import PlanRequest, Workload, complete, with_drafter
from kvplan.planner.search.frontier import MOST_PLAYS, THOROUGH_PLAYS, Frontier, Progress, SearchFindings
from kvplan.planner.search.ranking import price_of, score, within_budget
from kvplan.planner.search.rule_of_thumb import RuleOfThumb, rule_of_thumb
from kvplan.units import plural


@dataclass(frozen=True, slots=True)
class Alternative:
    """The best deployment in formats that were not asked for: cheaper, or the only one, at the price of ``caveats``."""

    deployment: PlannedDeployment
    caveats: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    """The answer: deployments best first, in the formats asked for; ``alternatives`` in others.

    ``too_dear``: the cheapest that serves, where none does within the budget. ``over_budget``: ids of GPUs that would
    serve it for more; ``unplayed``: that cost more than what is shown. ``refusals``: by GPU id, why the engine
    does not run there. ``num_tried``: choices in closed form, of which ``num_played`` loads were played. ``is_cut``:
    the search ended before anything served the load.
    """

    spec: ModelSpec
    request: PlanRequest
    workload: Workload
    deployments: tuple[PlannedDeployment, ...]
    alternatives: tuple[Alternative, ...]
    misses: tuple[Miss, ...]
    too_dear: PlannedDeployment | None
    over_budget: frozenset[str]
    unplayed: frozenset[str]
    refusals: Mapping[str, KvplanError]
    rule: RuleOfThumb | None
    num_tried: int
    num_played: int
    is_cut: bool

    @property
    def nearest_miss(self) -> Miss | None:
        return None if self.deployments or not self.misses else nearest(self.misses)


def _nothing_tried(spec: ModelSpec, request: PlanRequest) -> KvplanError:
    """No layout is left: too many GPUs are asked for, or the model cannot be divided over what is allowed."""
    sizes, spare = request.sizes, request.num_spare_replicas
    given = {"--tp": sizes.tensor, "--pp": sizes.pipeline, "--dp": sizes.data}
    asked = {option: min(values) for option, values in given.items() if values}
    smallest, limit = math.prod(asked.values()), max(map(request.most_gpus, request.gpus))
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


def make_plan(
    spec: ModelSpec,
    request: PlanRequest,
    measured: MeasuredProfiles = MeasuredProfiles(),
    progress: Progress | None = None,
) -> PlanAnswer:
    """Try every GPU, layout and format of ``request`` and rank what serves it. ``measured``: speeds that are known.

    KvplanError where the model cannot be divided over any of the GPUs, or the engine refuses the settings on all.
    """
    spec, request = with_drafter(spec, request)
    check_backend(spec, request.settings.moe_backend, request.engine.name)
    check_has_experts(spec, request.sizes.enable_expert_parallel)
    basis = PlanBasis(request, complete(request, spec), measured)
    asked, others = formats_asked(spec, request)
    most = THOROUGH_PLAYS if request.thorough else MOST_PLAYS
    found = Frontier(basis, asked, None, most, progress).run()
    if not found.deployments and not found.misses:
        raise _said_of_most(basis.refusals.values()) or _nothing_tried(spec, request)
    affordable = tuple(each for each in found.deployments if _costs_at_most(each, request.usd_per_hour))
    in_others = _search_others(basis, others, affordable, most, progress)
    return PlanAnswer(
        spec=spec,
        request=request,
        workload=basis.workload,
        deployments=affordable,
        alternatives=_alternatives(affordable, in_others.deployments, others),
        misses=found.misses,
        too_dear=_cheapest(found.deployments) if not affordable else None,
        over_budget=frozenset(each.choice.gpu.id for each in found.deployments),
        unplayed=found.unplayed,
        refusals=basis.refusals,
        rule=rule_of_thumb(spec, request, basis.workload),
        num_tried=found.num_tried + in_others.num_tried,
        num_played=found.num_played + in_others.num_played,
        is_cut=found.is_cut,
    )


def _said_of_most(refusals: Iterable[KvplanError]) -> KvplanError | None:
    """What keeps the engine from most of the GPUs; the first of those that are said as often."""
    found = list(refusals)
    count = Counter(map(str, found))
    return max(found, key=lambda each: count[str(each)], default=None)


def _search_others(
    basis: PlanBasis,
    others: Sequence[FormatPair],
    best: Sequence[PlannedDeployment],
    most: int,
    progress: Progress | None,
) -> SearchFindings:
    """What serves it in other formats, for no more than the answer costs, where that is sure and has a price."""
    budget, cost = basis.request.usd_per_hour, best[0].usd_per_hour if best else None
    if cost is not None:
        budget = cost if budget is None else min(budget, cost)
    if most < THOROUGH_PLAYS:
        most = MOST_PLAYS // 2
    return Frontier(basis, others, budget, most, progress, is_aside=True).run()


def formats_asked(spec: ModelSpec, request: PlanRequest) -> tuple[list[FormatPair], list[FormatPair]]:
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


def _costs_at_most(deployment: PlannedDeployment, usd_per_hour: float | None) -> bool:
    return within_budget(price_of(deployment.choice.gpu, deployment.num_gpus), usd_per_hour)


def _cheapest(deployments: Sequence[PlannedDeployment]) -> PlannedDeployment | None:
    priced = [each for each in deployments if each.usd_per_hour is not None]
    return min(priced, key=lambda each: each.usd_per_hour or 0.0, default=None)


def _alternatives(
    best: Sequence[PlannedDeployment], others: Sequence[PlannedDeployment], formats: Sequence[FormatPair]
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


_WORTH_SHOWING: Final = 0.9
"""Of the answer's time, or its price where that is less sure: from there on another format is shown beside it."""


def _is_better(deployment: PlannedDeployment, best: PlannedDeployment) -> bool:
    """Serves it as asked where the best does not; else for less, or for as much and clearly faster.

    What is less sure is shown where it costs clearly less.
    """
    price, dearer = (price_of(each.choice.gpu, each.num_gpus) for each in (deployment, best))
    if deployment.verdict.meets != best.verdict.meets:
        cheap = price.is_unknown == dearer.is_unknown and price.amount < _WORTH_SHOWING * dearer.amount
        return deployment.verdict.meets or (cheap and deployment.verdict.goal.is_asked)
    if price != dearer or deployment.waits != best.waits:
        return (price, deployment.waits) < (dearer, best.waits)
    return score(deployment) < _WORTH_SHOWING * score(best)


def nearest(misses: Sequence[Miss]) -> Miss:
    """Speed is nearer than room, and room nearer than weights that do not load; then by how much is lacking."""
    return min(misses, key=lambda miss: miss.nearness)


@dataclass
class FirstDeployments:
    """The best answers to questions about one model, which share what differs in bounds alone."""

    spec: ModelSpec
    measured: MeasuredProfiles
    _last: PlanBasis | None = None

    def of(self, request: PlanRequest) -> PlannedDeployment | None:
        """Return the best in the formats that ``request`` asks for; None without an answer that serves it as asked."""
        basis = None if self._last is None else self._last.with_bounds_of(request)
        if basis is None:
            try:
                basis = PlanBasis(request, complete(request, self.spec), self.measured)
            except KvplanError:
                return None
        self._last = basis
        asked, _ = formats_asked(self.spec, request)
        found = Frontier(basis, asked, request.usd_per_hour, _PLAYS_FOR_A_HINT, is_aside=True).run()
        return next((each for each in found.deployments if each.verdict.meets), None)


_PLAYS_FOR_A_HINT: Final = 16


def left_out(plan: PlanAnswer) -> Mapping[str, str]:
    """Return, by GPU id, a sentence for each GPU of the request without a deployment in the formats asked for."""
    served = {deployment.choice.gpu.id for deployment in plan.deployments}
    return {gpu.id: _why(plan, gpu) for gpu in plan.request.gpus if gpu.id not in served}


def _why(plan: PlanAnswer, gpu: GpuProfile) -> str:
    if gpu.id in plan.over_budget:
        return f"what serves the load costs more than ${plan.request.usd_per_hour:,.2f} per hour, or has no price."
    budget = plan.request.usd_per_hour
    if gpu.id in plan.unplayed and budget is not None and not within_budget(price_of(gpu, 1), budget):
        return f"one costs more than ${budget:,.2f} per hour, or has no price."
    if gpu.id in plan.unplayed:
        return "it costs more than what is shown, so that its load was not played (--gpu with it alone does that)."
    misses = [miss for miss in plan.misses if miss.choice.gpu.id == gpu.id]
    if misses:
        miss = nearest(misses)
        return miss.as_clause if miss.name == gpu.id else f"the nearest is {miss.name}. {miss.sentence}"
    refusal = plan.refusals.get(gpu.id)
    if refusal is not None:
        return str(refusal) if refusal.hint is None or "--engine" not in refusal.hint else f"{refusal} {refusal.hint}"
    return "the model cannot be divided over so few of them."
