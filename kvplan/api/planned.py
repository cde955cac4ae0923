"""What a plan answers: deployments that serve a load, or fleets for a trace that is played."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvplan.api.arguments import frame
from kvplan.commands.printing.fleets import print_fleet_text
from kvplan.commands.printing.plans import print_plan
from kvplan.commands.printing.render import captured
from kvplan.errors import KvplanError
from kvplan.planner.answer.document import plan_document, plan_row
from kvplan.planner.answer.fleet_document import fleet_document
from kvplan.planner.choices.deployment import PlannedDeployment
from kvplan.planner.fleets.answering import FleetAnswer
from kvplan.planner.fleets.growth import Growth
from kvplan.planner.fleets.judging import WindowVerdict
from kvplan.planner.fleets.playing import Played
from kvplan.planner.fleets.policies import PolicyAnswer
from kvplan.planner.fleets.pools import PoolAnswer
from kvplan.planner.search.fixes import Fix
from kvplan.planner.search.plan import PlanAnswer

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Plan:
    """Deployments that serve a load, best first; none where nothing does, which ``problem`` explains.

    fix: the cheapest change after which something serves; failure: the error that ``best`` raises. None where
    something does.
    """

    answer: PlanAnswer
    fix: Fix | None
    failure: KvplanError | None

    @property
    def model(self) -> str:
        """The model that was asked for."""
        return self.answer.spec.served_id

    @property
    def deployments(self) -> tuple[PlannedDeployment, ...]:
        """Deployments that serve the load, best first."""
        return self.answer.deployments

    @property
    def best(self) -> PlannedDeployment:
        """The first deployment. KvplanError, with what would help as its hint, where nothing serves the load."""
        if self.failure is not None:
            raise self.failure.with_traceback(None)
        return self.deployments[0]

    @property
    def problem(self) -> str | None:
        """Why nothing serves the load; None where something does."""
        return None if self.failure is None else self.failure.message

    def to_dict(self) -> dict[str, Any]:
        """Return the document that ``kvplan plan --json`` prints."""
        return plan_document(self.answer, self.fix)

    def to_frame(self) -> pandas.DataFrame:
        """Return a DataFrame with one row per deployment, best first. Needs pandas."""
        return frame([plan_row(each, self.model, self.answer.request.api_price) for each in self.deployments])

    def __str__(self) -> str:
        return self._as_text(lambda: print_plan(self.answer))

    def _as_text(self, printing: Callable[[], None]) -> str:
        """What ``printing`` prints; before it why nothing serves the load, and what would, where nothing does."""
        text = captured(printing)
        if self.failure is None:
            return text
        hint = [] if self.failure.hint is None else [f"hint: {self.failure.hint}\n"]
        return "".join([f"{self.failure.message}\n", *hint, text])


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

    def to_dict(self) -> dict[str, Any]:
        """Return the document that ``kvplan plan --workload TRACE --json`` prints."""
        return fleet_document(self.fleet)

    def __str__(self) -> str:
        return self._as_text(lambda: print_fleet_text(self.fleet))
