"""A plan's fleet with replicas that come and go: the cheapest policy that keeps the service level over the trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvplan.fleet.replicas.fleet import FleetPlay
from kvplan.fleet.replicas.seen import Seen
from kvplan.fleet.routers.named import ROUTERS, make_router
from kvplan.fleet.scaling.policy import ColdStart
from kvplan.fleet.scaling.search import ScalingAnswer, ScalingSearch, TriedPolicy
from kvplan.planner.fleets.demand import Demand
from kvplan.planner.fleets.judging import Bar, hopeless
from kvplan.planner.fleets.setups import FleetChoice
from kvplan.planner.question.slo import Goal
from kvplan.planner.question.trace import PolicyBounds
from kvplan.units import plural


@dataclass(frozen=True)
class PolicyAnswer:
    """The policies tried, beside a fixed fleet and a perfect autoscaler. usd_per_replica_hour: None without a price."""

    found: ScalingAnswer
    cold_start: ColdStart
    usd_per_replica_hour: float | None

    @property
    def verdict(self) -> str:
        """The answer in a sentence or two."""
        best, fixed = self.found.best, self.found.fixed
        always = plural(fixed.num_replicas + fixed.num_spare, "replica")
        if best is None:
            return f"No policy that was tried keeps the service level: keep {always}."
        policy, saved = best.played.policy, self.found.saved_share
        if saved <= 0:
            return f"Keep {always}: no policy that was tried keeps the service level for less."
        return f"Scale {policy.text}: {100 * saved:.0f} % fewer replica-hours than {always} always."

    def usd(self, replica_seconds: float) -> float | None:
        """What so much costs."""
        return None if self.usd_per_replica_hour is None else self.usd_per_replica_hour * replica_seconds / 3600

    def document(self) -> dict[str, Any]:
        """Return what ``--json`` shows."""
        found = self.found
        return {
            "verdict": self.verdict,
            "cold_start_seconds": round(self.cold_start.seconds, 1),
            "cold_start_is_stated": self.cold_start.is_stated,
            "fixed": {
                "num_replicas": found.fixed.num_replicas,
                "num_spare_replicas": found.fixed.num_spare,
                **self._cost(found.fixed.replica_seconds),
            },
            "perfect": self._cost(found.perfect_replica_seconds),
            "policies": [self._policy(each) for each in found.tried],
            "saved_share": round(found.saved_share, 4),
        }

    def _policy(self, tried: TriedPolicy) -> dict[str, Any]:
        policy, played = tried.played.policy, tried.played
        return {
            "min_replicas": policy.min_replicas,
            "max_replicas": policy.max_replicas,
            "triggers": [{"metric": each.metric, "target": each.target} for each in policy.triggers],
            "keeps_slo": tried.keeps,
            "ratio_to_slo": round(tried.ratio, 4) if tried.is_whole else None,
            "most_replicas": played.most_replicas if tried.is_whole else None,
            "num_starts": played.num_starts if tried.is_whole else None,
            **self._cost(played.replica_seconds if tried.is_whole else None),
        }

    def _cost(self, replica_seconds: float | None) -> dict[str, Any]:
        if replica_seconds is None:
            return {"replica_hours": None, "usd": None}
        usd = self.usd(replica_seconds)
        return {"replica_hours": round(replica_seconds / 3600, 3), "usd": None if usd is None else round(usd, 2)}


def find_policy(
    found: FleetChoice,
    replicas: int,
    demand: Demand,
    goal: Goal,
    share_of_windows: float,
    router: str,
    bounds: PolicyBounds,
    num_spare: int = 0,
    on_play: Callable[[int], None] | None = None,
) -> PolicyAnswer:
    """Policies over the whole trace, beside ``replicas`` of ``found``, the fewest that keep the service level."""
    requests, bar = demand.requests, Bar.of(goal, found.model, share_of_windows)

    def judge(seen: Sequence[Seen]) -> float:
        return bar.judge(FleetPlay(seen=list(seen)), demand.window_seconds).deciding.ratio

    cold_start = ColdStart.of(found.prediction.rank.weight_bytes, bounds.cold_start_seconds)
    search = ScalingSearch(
        requests,
        found.setup,
        lambda: make_router(router, found.sizes),
        judge,
        cold_start.seconds,
        demand.window_seconds,
        num_spare,
        lambda part: hopeless(bar, part, demand.window_seconds),
        on_play,
        counts_prompt_tokens=ROUTERS[router].counts_prompt_tokens,
    )
    most = bounds.max_replicas or max(replicas, bounds.min_replicas) + num_spare
    answer = search.answer(search.play_fixed(replicas, requests), min(bounds.min_replicas, most), most)
    gpu = found.choice.gpu
    usd = None if gpu.price is None else gpu.price.usd_per_hour * found.num_gpus
    return PolicyAnswer(answer, cold_start, usd)
