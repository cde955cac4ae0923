"""The default design planned once more, when the engine has said what it keeps free of its GPU.

The boundaries of the memory plane lie within some MiB of the smallest pools. What context, libraries, captured steps
and other processes take of a GPU is known so exactly only when an engine is loaded there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Protocol

from kvplan.machine.opened_device import Reserve
from kvplan.runs.trials import Trial
from kvplan.sweeps.design import base_settings, make_design
from kvplan.sweeps.forecast.timing import TrialTimes
from kvplan.sweeps.forecast.under_load import PreparedTrial, UnderLoad
from kvplan.sweeps.hosts import OnEvent
from kvplan.sweeps.plan import SweepPlan, make_schedule
from kvplan.sweeps.worker.client import TimeLimits

FIRST_POOL_NOTICE: Final = "the engine is loaded first: the sweep's boundaries are planned by what it leaves of the GPU"


class AsksFirst(Protocol):
    """A host that can say what its engine keeps free."""

    def first_reserve(self, prepared: PreparedTrial, limits: TimeLimits, on_event: OnEvent) -> Reserve | None: ...


def has_boundaries_to_measure(plan: SweepPlan) -> bool:
    """Whether the settings of a plan follow from what a GPU leaves: nobody gave them, and no other part has them."""
    options = plan.options
    is_given = bool(options.axes or options.boundary or options.search) or plan.shard is not None
    return plan.device.kind == "cuda" and plan.engine is None and not options.is_counted and not is_given


def planned_by_first_pool(plan: SweepPlan, host: AsksFirst, on_event: OnEvent) -> SweepPlan:
    """``plan`` with the trials that show the boundaries of this GPU as it is now; ``plan`` where nothing is said."""
    first = Trial(1, base_settings(plan.predictor), 1, ())
    under = UnderLoad(plan.workload, plan.predictor)
    prepared = under.prepare(first)
    limits = TrialTimes(under, TimeLimits(), plan.options.trial_timeout).limits_for(prepared)
    reserve = host.first_reserve(prepared, limits, on_event)
    if reserve is None:
        return plan
    predictor = plan.predictor.with_reserve(first.settings, reserve)
    design = make_design({}, predictor)
    trials = design.trials(predictor, plan.options.repetitions)
    schedule = make_schedule(plan.options, predictor, plan.workload, trials)
    return replace(plan, predictor=predictor, trials=trials, planes=design.planes, schedule=schedule)
