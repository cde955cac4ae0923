"""The fleet for a trace that is played: what ``kvplan plan --workload TRACE`` prints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvplan.api.arguments import in_arguments_of
from kvplan.api.plans import Plan, plan
from kvplan.catalog.devices.measured import MeasuredProfiles
from kvplan.catalog.spec import ModelSpec
from kvplan.commands.printing.fleets import no_fleet, print_fleet_text
from kvplan.errors import KvplanError
from kvplan.planner.answer.fleet_document import fleet_document
from kvplan.planner.fleets.answering import FleetAnswer, Listener, plan_fleet
from kvplan.planner.fleets.growth import Growth
from kvplan.planner.fleets.judging import WindowVerdict
from kvplan.planner.fleets.playing import Played
from kvplan.planner.fleets.policies import PolicyAnswer
from kvplan.planner.fleets.pools import PoolAnswer
from kvplan.planner.question.request import PlanRequest


@dataclass(frozen=True)
class TracePlan(Plan):
    """A plan for a trace: its deployments are fleets, played request by request, the cheapest first."""

    fleet: FleetAnswer

    @property
    def windows(self) -> tuple[WindowVerdict, ...]:
        """The best fleet's windows, each with its load, what its requests saw and how sure its bounds are kept."""
        return () if self.fleet.best is None else self.fleet.best.verdict.windows

    @property
    def confidence(self) -> float | None:
        """How sure the service level is kept in the window that decides; None without a fleet."""
        return None if self.fleet.best is None else self.fleet.best.verdict.confidence

    @property
    def replicas(self) -> int | None:
        """Replicas of the best fleet, spare ones aside."""
        return None if self.fleet.best is None else self.fleet.best.plan.replicas

    @property
    def router(self) -> str | None:
        """The name of the router that the best fleet was played behind."""
        return None if self.fleet.best is None else self.fleet.best.plan.router

    @property
    def hit_rate(self) -> float | None:
        """Share of the prompts' tokens that the best fleet finds in its prefix caches."""
        return None if self.fleet.best is None else self.fleet.best.hit_rate

    @property
    def reused_share(self) -> float | None:
        """What a cache finds that keeps everything; None where the file does not say what prompts share."""
        return self.fleet.reused_share

    @property
    def growth(self) -> Growth | None:
        """How much more load the best fleet takes, and what fails first."""
        return self.fleet.growth

    @property
    def routers(self) -> dict[str, Played]:
        """The best fleet behind every router, on the busiest window."""
        return self.fleet.routers

    @property
    def pools(self) -> PoolAnswer | None:
        """Prefill and decode apart; None without ``disaggregate``."""
        return self.fleet.pools

    @property
    def policy(self) -> PolicyAnswer | None:
        """Replicas that come and go; None without ``autoscale``."""
        return self.fleet.policy

    def _failure(self) -> KvplanError:
        return in_arguments_of(plan, no_fleet(self.fleet))

    def to_dict(self) -> dict[str, Any]:
        """Return the document that ``kvplan plan --workload TRACE --json`` prints."""
        return fleet_document(self.fleet)

    def __str__(self) -> str:
        return self._as_text(lambda: print_fleet_text(self.fleet))


def planned_fleet(
    spec: ModelSpec, request: PlanRequest, measured: MeasuredProfiles, progress: Callable[[int, int], None] | None
) -> TracePlan:
    """Search the fleet for the trace of ``request``. Ctrl-C keeps the best that was found until then."""
    listener = Listener() if progress is None else Listener(lambda count: progress(count, count))
    found = plan_fleet(spec, request, measured, listener)
    return TracePlan(found.plan, None, found)
