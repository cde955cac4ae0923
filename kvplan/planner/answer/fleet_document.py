"""The fleet of a trace as JSON: ``kvplan.plan/1`` with the fleets as its deployments, and ``fleet`` beside them."""

from __future__ import annotations

import math
from typing import Any

from kvplan.estimate.mixers import speed_caveats
from kvplan.estimate.speed.queueing.figures import Distribution
from kvplan.fleet.routers.named import ROUTERS
from kvplan.planner.answer.document import (
    adapter_notes,
    bridge_notes,
    calibration_notes,
    limit_assumption,
    network_notes,
    offload_notes,
    plan_document,
    scale_notes,
)
from kvplan.planner.choices.verdict import ExpectedBound
from kvplan.planner.fleets.answering import FleetAnswer
from kvplan.planner.fleets.growth import Growth
from kvplan.planner.fleets.judging import WindowVerdict
from kvplan.planner.fleets.playing import Played
from kvplan.planner.search.ranking import price_of


def fleet_document(answer: FleetAnswer) -> dict[str, Any]:
    """The whole answer. Times in milliseconds, moments in seconds from the trace's first request on."""
    document = plan_document(answer.plan)
    best, demand = answer.best, answer.demand
    fleets = [] if best is None else [best, *answer.others]
    shown = [*document["deployments"], *document["alternatives"]]
    for deployment, played in zip(shown, [*fleets, *(each.played for each in answer.formats)], strict=True):
        deployment["balancer"] = balancer_of(played) or deployment["balancer"]
    document["assumptions"] = [*answer.plan.spec.assumptions, *fleet_assumptions(answer)]
    document["left_out"] = {
        gpu.id: str(
            answer.plan.refusals.get(gpu.id, "no fleet there keeps the level" + (" for as little" if best else ""))
        )
        for gpu in answer.plan.request.gpus
        if best is None or gpu.id in answer.dearer
    }
    document["fleet"] = {
        "trace": answer.trace.path.name,
        "num_requests": len(demand.requests),
        "seconds": round(demand.requests[-1].sent, 1),
        "window_seconds": answer.trace.window_seconds,
        "share_of_windows": answer.trace.share_of_windows,
        "reused_share": None if answer.reused_share is None else round(answer.reused_share, 4),
        "was_interrupted": answer.was_interrupted,
        "search_seconds": round(answer.seconds, 1),
        "best": None if best is None else played_document(answer, best),
        "others": [played_document(answer, each) for each in answer.others],
        "other_formats": [played_document(answer, each.played) for each in answer.formats],
        "dearer": list(answer.dearer),
        "windows": [] if best is None else [window_document(each) for each in best.verdict.windows],
        "samples": [] if best is None else _samples(best),
        "routers": [router_document(name, each) for name, each in answer.routers.items()],
        "without_prefix_caching": None
        if answer.without_cache is None
        else _busiest_document(answer, answer.without_cache),
        "growth": growth_document(answer.growth),
        "by_replicas": [_busiest_document(answer, each) for each in answer.frontier],
        "pools": None if answer.pools is None else answer.pools.document(),
        "policy": None if answer.policy is None else answer.policy.document(),
    }
    return document


def balancer_of(played: Played) -> str | None:
    """How the router of ``played`` is put before its replicas; None for one that takes turns, or one replica."""
    plan = played.plan
    return None if plan.replicas == 1 or plan.router == "round-robin" else ROUTERS[plan.router].setting


def usd_per_hour(answer: FleetAnswer, played: Played) -> float | None:
    """Return the price of all its GPUs, spare ones too; None where nobody knows the price."""
    found, spare = played.plan.found, answer.plan.request.num_spare_replicas
    price = price_of(found.choice.gpu, (played.plan.replicas + spare) * found.num_gpus)
    return price.amount if price.is_known else None


def played_document(answer: FleetAnswer, played: Played) -> dict[str, Any]:
    """One fleet: what it is, and the window that decides."""
    plan, verdict = played.plan, played.verdict
    layout = plan.found.choice.layout
    return {
        "gpu": plan.found.choice.gpu.id,
        "weights": plan.found.choice.weights.name,
        "kv_cache_dtype": plan.found.choice.kv_cache_dtype,
        "num_gpus": plan.replicas * plan.found.num_gpus,
        "replicas": plan.replicas,
        "tensor_parallel_size": layout.tensor_parallel_size,
        "pipeline_parallel_size": layout.pipeline_parallel_size,
        "data_parallel_size": layout.data_parallel_size,
        "max_num_batched_tokens": plan.found.tokens,
        "max_num_seqs": plan.found.setup.rules.max_num_seqs,
        "prefix_caching": plan.caches_prefixes and plan.found.setup.pool.caches_prefixes,
        "router": plan.router,
        "usd_per_hour": usd_per_hour(answer, played),
        "hit_rate": round(played.hit_rate, 4),
        "num_preemptions": played.play.num_preemptions,
        "confidence": round(verdict.confidence, 3),
        "num_windows": len(verdict.windows),
        "num_windows_broken": verdict.num_broken,
        "worst_window": window_document(verdict.deciding),
    }


def _busiest_document(answer: FleetAnswer, played: Played) -> dict[str, Any]:
    """A fleet on the busiest window."""
    return {
        "replicas": played.plan.replicas,
        "usd_per_hour": usd_per_hour(answer, played),
        "keeps": played.keeps,
        "hit_rate": round(played.hit_rate, 4),
        "window": window_document(played.verdict.deciding),
    }


def router_document(name: str, played: Played) -> dict[str, Any]:
    """The best choice behind another router, on the busiest window."""
    return {
        "router": name,
        "title": ROUTERS[name].title,
        "keeps": played.keeps,
        "hit_rate": round(played.hit_rate, 4),
        "window": window_document(played.verdict.deciding),
    }


def window_document(judged: WindowVerdict) -> dict[str, Any]:
    """One window: load, what its requests saw, and how sure each bound is kept."""
    window = judged.window
    return {
        "start_seconds": window.start,
        "num_requests": window.num_requests,
        "requests_per_second": round(window.requests_per_second, 3),
        "hit_rate": round(window.hit_rate, 4),
        "most_waiting": window.most_waiting,
        "most_kv_usage": round(window.most_kv_usage, 4),
        "num_preemptions": window.num_preemptions,
        "ttft_ms": _percentiles(window.ttft),
        "tpot_ms": _percentiles(window.tpot),
        "bounds": [bound_document(seen) for seen in judged.seen],
        "keeps": judged.keeps,
        "confidence": round(judged.confidence, 3),
    }


def bound_document(seen: ExpectedBound) -> dict[str, Any]:
    """One bound with its figure as [low, middle, high], and how sure it is that it is kept."""
    ends = seen.figure.between
    return {
        "bound": seen.bound.word,
        "bound_ms": round(1000 * seen.bound.seconds, 1),
        "ms": [_milliseconds(each) for each in (ends.low, seen.figure.middle, ends.high)],
        "confidence": round(seen.confidence, 3),
    }


def _milliseconds(seconds: float) -> float | None:
    return round(1000 * seconds, 1) if math.isfinite(seconds) else None


def _percentiles(found: Distribution | None) -> dict[str, float] | None:
    if found is None:
        return None
    values = {"mean": found.mean, "p50": found.median, "p90": found.p90, "p95": found.p95, "p99": found.p99}
    return {name: round(1000 * value, 1) for name, value in values.items()}


def _samples(played: Played) -> list[list[float]]:
    """[seconds, waiting, running, KV usage, hit rate since the sample before]."""
    return [
        [
            round(each.at, 1),
            each.num_waiting,
            each.num_running,
            round(each.kv_usage, 4),
            round(each.num_hit_tokens / max(each.num_prompt_tokens, 1), 4),
        ]
        for each in played.play.samples
    ]


def growth_document(growth: Growth | None) -> dict[str, Any] | None:
    """How much more load it takes, and what is missed first beyond."""
    if growth is None:
        return None
    return {
        "factor": round(growth.factor, 2),
        "is_capped": growth.is_capped,
        "breaks": None if growth.breaks is None else bound_document(growth.breaks),
        "factor_beyond": round(growth.factor_beyond, 2),
        "resource": growth.resource,
    }


def fleet_assumptions(answer: FleetAnswer) -> list[str]:
    """How the trace was read, how it was played, and what its figures rest on."""
    plan = answer.plan
    deployments = plan.deployments
    shares = "what their prompts share is what the file says"
    if answer.reused_share is None:
        shares = "the file does not say what prompts share, so none shares anything: hits would need fewer replicas"
    limit = limit_assumption(plan)
    sentences = [
        *(f"{note}." for note in answer.notes),
        f"Requests are sent when the file says, whatever the fleet does; {shares}. Answers are new tokens.",
        "A window is of the requests sent within it; the caches are empty at the first request.",
        *([] if limit is None else [limit]),
        *speed_caveats(plan.spec.layers),
        *adapter_notes(plan),
        *offload_notes(deployments),
        *bridge_notes(deployments),
        *network_notes(deployments),
    ]
    if answer.trace.shape is not None:
        sentences.append(
            f"Stretched over a day by {answer.trace.shape.name}: requests are repeated or left out at random, and what "
            "comes again has tokens of its own."
        )
    return sentences + calibration_notes(deployments) + scale_notes(deployments)
