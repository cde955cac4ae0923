"""The load of a workload file: its lengths, its arrivals when it is busiest, and what its prompts share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from kvplan.errors import check
from kvplan.estimate.speed.queueing.loads import TracedLoad
from kvplan.planner.question.request import PlanRequest
from kvplan.workload.part import FilePart
from kvplan.workload.shape import FileShape, rates_as_text, shape_of_file


def refuse_beside_file(given: Mapping[str, object]) -> None:
    """UsageError for an option that says what the file says."""
    for option, value in given.items():
        check(value is None, f"{option} cannot be used with --workload", "the file gives the lengths")


def with_file(request: PlanRequest, path: Path, part: FilePart) -> PlanRequest:
    """``request`` with the load of the file: of its busiest five minutes, where neither users nor a rate are given.

    A prefix cache is counted on as far as --prefix-hit-rate says, and what the file would allow is told.
    """
    shape = shape_of_file(path, part, request.longest_context)
    rate, notes = request.requests_per_second, list(shape.notes)
    if request.num_users is None and rate is None:
        rate = shape.busiest_rate
        if rate is not None:
            rate = float(f"{rate:.4g}")
            notes.append(f"--request-rate {rate:.3g}: {rates_as_text(shape)}.")
    check(
        request.num_users is not None or rate is not None,
        f"A plan needs a load, and {path.name} gives none: its requests have no times, or all the same one",
        "give --users 40 or --request-rate 2 beside it",
    )
    notes += _of_reuse(request, shape)
    shares = shape.reused_share is not None
    trace = TracedLoad(path.name, shape.pairs, shape.gaps, shape.busiest_rate or 0.0, shares)
    return replace(
        request,
        requests_per_second=rate,
        input_tokens=max(round(shape.input_tokens), 1),
        output_tokens=max(round(shape.output_tokens), 1),
        longest_context=request.longest_context or shape.longest,
        pattern=replace(request.pattern, trace=trace),
        load_notes=tuple(notes),
    )


def _of_reuse(request: PlanRequest, shape: FileShape) -> list[str]:
    if shape.reused_share is None:
        return []
    found = f"a cache that keeps everything would find {100 * shape.reused_share:.1f} % of the prompts' tokens"
    counted = "this plan counts none of it; --prefix-hit-rate says what to count on"
    if request.pattern.sharing.hit_rate is not None:
        counted = f"this plan counts {100 * request.pattern.sharing.hit_rate:g} %"
    return [f"prefix cache: {found}; {counted}."]
