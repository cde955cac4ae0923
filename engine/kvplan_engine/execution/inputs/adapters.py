"""The adapters of a step's sequences."""

from __future__ import annotations

from kvplan_engine.adapters.library import AdapterLibrary
from kvplan_engine.requests.step_plan import StepPlan


def begin_step(library: AdapterLibrary, plan: StepPlan) -> None:
    """Let the products of ``plan`` be corrected as its sequences want it."""
    if not plan.has_adapters:
        library.step.clear()
        return
    keys = [sequence.request.adapter for sequence in plan.decodes]
    keys += [item.sequence.request.adapter for item in plan.chunks]
    counts = [1] * len(plan.decodes) + [item.num_new_tokens for item in plan.chunks]
    is_sampled = [True] * len(plan.decodes) + [item.needs_sampling for item in plan.chunks]
    library.begin_step(keys, counts, is_sampled)
