"""The answer to a trace: the best fleet as a deployment of a plan, with what was found beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kvplan.catalog.devices.measured import MeasuredProfiles
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import KvplanError
from kvplan.estimate.speed.queues import Queues
from kvplan.estimate.vllm.division import check_has_experts
from kvplan.fleet.requests import FleetRequest, requests_of_file
from kvplan.fleet.shapes import read_shape, stretched
from kvplan.planner.choices.basis import PlanBasis
from kvplan.planner.choices.deployment import PlannedDeployment
from kvplan.planner.choices.formats import FormatPair
from kvplan.planner.choices.load import serve_users
from kvplan.planner.choices.verdict import Verdict
from kvplan.planner.fleets.demand import Alone, Demand
from kvplan.planner.fleets.growth import Growth, growth_of
from kvplan.planner.fleets.playing import Played, Player
from kvplan.planner.fleets.policies import PolicyAnswer, find_policy
from kvplan.planner.fleets.pools import PoolAnswer, compare_pools
from kvplan.planner.fleets.search import FleetSearch
from kvplan.planner.fleets.setups import fleet_choice
from kvplan.planner.question.request import PlanRequest, Workload, complete, with_drafter
from kvplan.planner.question.trace import TraceQuestion
from kvplan.planner.search.plan import Alternative, PlanAnswer, formats_asked
from kvplan.planner.search.ranking import price_of
from kvplan.planner.search.rule_of_thumb import rule_of_thumb
from kvplan.workload.shape import shape_of_file

_SHOWN_BELOW: Final = 2
_SHOWN_ABOVE: Final = 3
_LIMITS: Final = {"kv": "kv", "seats": "seats", "prefill": "compute", "decode": "bandwidth"}


@dataclass(frozen=True, slots=True)
class Listener:
    """What is told while a search runs: how many fleets were played, and each one that is the best so far."""

    on_play: Callable[[int], None] | None = None
    on_best: Callable[[Played], None] | None = None


@dataclass(frozen=True)
class FleetAnswer:
    """plan: the fleets as deployments, best first; its first is ``best``. frontier: the best choice with fewer and with
    more replicas, on the busiest window. reused_share: of prompt tokens, what a cache finds that keeps everything; None
    where the file does not say. notes: what to tell about the file. quickest: how fast prompts are read alone, on what
    reads them fastest. dearer: GPUs of which no fleet keeps the level that costs as little as the best.
    was_interrupted: the search ended before its end. pools, policy: what the trace's ``wishes`` ask for. formats: what
    keeps the level for less, or at all, in formats that were not asked for.
    """

    plan: PlanAnswer
    demand: Demand
    trace: TraceQuestion
    best: Played | None
    others: tuple[Played, ...]
    routers: dict[str, Played]
    without_cache: Played | None
    growth: Growth | None
    frontier: tuple[Played, ...]
    nearest: Played | None
    quickest: Alone | None
    reused_share: float | None
    notes: tuple[str, ...]
    dearer: tuple[str, ...]
    num_left_out: int
    seconds: float
    was_interrupted: bool
    pools: PoolAnswer | None = None
    policy: PolicyAnswer | None = None
    formats: tuple[OtherFormat, ...] = ()


def plan_fleet(
    spec: ModelSpec,
    request: PlanRequest,
    measured: MeasuredProfiles = MeasuredProfiles(),
    listener: Listener = Listener(),
) -> FleetAnswer:
    """Search the fleet for the trace of ``request``. KvplanError as ``make_plan``, and for what the file lacks."""
    began = time.monotonic()
    trace = request.trace
    assert trace is not None, "without a trace there is no fleet to search"
    spec, request = with_drafter(spec, request)
    check_has_experts(spec, request.sizes.enable_expert_parallel)
    shape = shape_of_file(trace.path, trace.part, request.longest_context)
    request = replace(request, load_notes=())
    workload = complete(request, spec)
    demand = Demand(_requests(trace, request, workload), trace.window_seconds)
    basis = PlanBasis(request, workload, measured)
    player = Player(demand, request.goal, trace.share_of_windows, listener.on_play)
    asked, unasked = formats_asked(spec, request)
    search = FleetSearch(basis, player, asked, trace.router, listener.on_best)
    search.run()
    growth: Growth | None = None
    frontier: tuple[Played, ...] = ()
    formats: tuple[OtherFormat, ...] = ()
    pools: PoolAnswer | None = None
    policy: PolicyAnswer | None = None
    if search.best is not None and not search.was_interrupted:
        try:
            growth = growth_of(search.best, player)
            frontier = _frontier(search.best, player, basis)
            pools, policy = _pools(search.best, player, trace, basis), _policy(search.best, player, trace, basis)
        except KeyboardInterrupt:
            search.was_interrupted = True
    if not search.was_interrupted:
        formats = other_formats(search, unasked)
    others = tuple(each for each in search.cheapest.values() if each is not search.best)
    fleets = [] if search.best is None else [search.best, *sorted(others, key=lambda each: _cost(basis, each))]
    return FleetAnswer(
        plan=_as_plan(
            spec,
            request,
            basis,
            search,
            [_deployment(basis, each, growth) for each in fleets],
            [Alternative(_deployment(basis, each.played, growth), each.caveats) for each in formats],
        ),
        demand=demand,
        trace=trace,
        best=search.best,
        others=tuple(fleets[1:]),
        routers=search.routers,
        without_cache=search.without_cache,
        growth=growth,
        frontier=frontier,
        nearest=search.nearest,
        quickest=search.quickest,
        reused_share=demand.reused_share,
        notes=shape.notes,
        dearer=tuple(gpu.id for gpu in basis.gpus if fleets and gpu.id not in {kind[0] for kind in search.cheapest}),
        num_left_out=search.num_left_out,
        seconds=time.monotonic() - began,
        was_interrupted=search.was_interrupted,
        pools=pools,
        policy=policy,
        formats=formats,
    )


def _pools(best: Played, player: Player, trace: TraceQuestion, basis: PlanBasis) -> PoolAnswer | None:
    """Prefill and decode apart, where that is asked for. Prefill replicas are tried with every larger token budget."""
    plan, engine = best.plan, trace.wishes.hand_over
    if engine is None:
        return None
    demand, share, choice = player.demand, trace.share_of_windows, plan.found.choice
    budgets = [each for each in basis.step_budgets(choice) if each > plan.found.tokens]
    others = [fleet_choice(basis, replace(choice, max_num_batched_tokens=each)) for each in sorted(budgets)]
    larger = [each for each in others if each is not None]
    return compare_pools(plan.found, plan.replicas, demand, player.goal, share, plan.router, engine, larger)


def _policy(best: Played, player: Player, trace: TraceQuestion, basis: PlanBasis) -> PolicyAnswer | None:
    """Replicas that come and go, where that is asked for."""
    plan, bounds = best.plan, trace.wishes.scaling
    if bounds is None:
        return None
    spare, share = basis.request.num_spare_replicas, trace.share_of_windows
    told, demand = player.on_play, player.demand
    on_play = None if told is None else lambda count: told(player.num_played + count)
    return find_policy(plan.found, plan.replicas, demand, player.goal, share, plan.router, bounds, spare, on_play)


def _requests(trace: TraceQuestion, request: PlanRequest, workload: Workload) -> tuple[FleetRequest, ...]:
    """Return the requests of the file, with the head-room and the shape of a day that were asked for."""
    part = trace.part
    if request.headroom:
        part = replace(part, speed=part.speed * (1 + request.headroom))
    found = requests_of_file(trace.path, part, workload.longest_context)
    return found if trace.shape is None else stretched(found, read_shape(trace.shape))


def _cost(basis: PlanBasis, played: Played) -> tuple[object, ...]:
    plan = played.plan
    gpu = plan.found.choice.gpu
    return (*price_of(gpu, basis.num_gpus(plan.found.choice, plan.replicas)), played.verdict.deciding.ratio)


def _frontier(best: Played, player: Player, basis: PlanBasis) -> tuple[Played, ...]:
    """The best choice with other numbers of replicas."""
    plan, most = best.plan, basis.most_replicas(best.plan.found.choice)
    counts = range(max(plan.replicas - _SHOWN_BELOW, 1), min(plan.replicas + _SHOWN_ABOVE, most) + 1)
    plans = [replace(plan, replicas=count) for count in counts]
    player.prepare(plans, whole_play=True)
    return tuple(player.busiest(each, whole_play=True) for each in plans)


def _deployment(basis: PlanBasis, played: Played, growth: Growth | None) -> PlannedDeployment:
    """A fleet as a deployment of a plan, with the figures of its play."""
    plan, figures, verdict = played.plan, played.figures, played.verdict
    assert figures is not None, "every request of a whole play has ended"
    found = plan.found
    running = figures.request_throughput * figures.e2el.mean / plan.replicas
    tokens = figures.output_throughput / plan.replicas
    queues = Queues(figures, tokens, verdict.bar.intervals)
    resource = "prefill" if growth is None or growth.resource is None else growth.resource
    return PlannedDeployment(
        choice=found.choice,
        replicas=plan.replicas,
        num_spare=basis.request.num_spare_replicas,
        prediction=found.prediction,
        capacity=found.capacity,
        served=serve_users(found.model, max(round(running), 1)),
        queues=queues,
        verdict=Verdict(basis.request.goal, verdict.deciding.seen, verdict.confidence),
        limit=_LIMITS[resource],
        offered_tokens_per_second=figures.output_throughput,
        speed_model=found.model,
    )


def _as_plan(
    spec: ModelSpec,
    request: PlanRequest,
    basis: PlanBasis,
    search: FleetSearch,
    deployments: list[PlannedDeployment],
    alternatives: list[Alternative],
) -> PlanAnswer:
    if not search.num_tried:
        raise KvplanError(
            f"{spec.served_id} cannot be divided over the GPUs of this plan.",
            hint="allow other GPUs, or raise --max-gpus",
        )
    return PlanAnswer(
        spec=spec,
        request=request,
        workload=basis.workload,
        deployments=tuple(deployments),
        alternatives=tuple(alternatives),
        misses=(),
        too_dear=None,
        over_budget=frozenset(),
        unplayed=frozenset(),
        refusals=basis.refusals,
        rule=rule_of_thumb(spec, request, basis.workload),
        num_tried=search.num_tried,
        num_played=search.player.num_played,
        is_cut=search.was_interrupted,
    )


@dataclass(frozen=True)
class OtherFormat:
    """The cheapest fleet in formats that were not asked for, and what these need or may cost in quality."""

    played: Played
    caveats: tuple[str, ...]


def other_formats(search: FleetSearch, pairs: Sequence[FormatPair]) -> tuple[OtherFormat, ...]:
    """What keeps the level for less than the best in each other format, on the best's GPU with its token budget.

    Where nothing keeps it, the first format in which something does, on any GPU. What was found before Ctrl-C is kept.
    """
    found: list[OtherFormat] = []
    best = search.best
    for pair in pairs:
        other = FleetSearch(search.basis, search.player, [pair], search.router)
        if best is not None:
            other.router = best.plan.router
            other.gpus = (best.plan.found.choice.gpu,)
            other.budgets = (best.plan.found.tokens,)
            other.ceiling = search.price(best.plan.found, best.plan.replicas)
        other.search()
        search.num_tried += other.num_tried
        if other.best is not None:
            found.append(OtherFormat(other.best, pair.caveats()))
        if other.was_interrupted:
            search.was_interrupted = True
        if other.was_interrupted or (best is None and found):
            break
    return tuple(sorted(found, key=lambda each: search.price(each.played.plan.found, each.played.plan.replicas)))
