"""A plan's fleet with prefill and decode apart: pools of the same replicas, on as many GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvplan.catalog.published_errors import ErrorInterval
from kvplan.fleet.apart.compare import PlayedSplit, PoolComparison, SplitComparison
from kvplan.fleet.apart.moved import MovedKv
from kvplan.fleet.apart.play import ApartSetup, PoolSetup
from kvplan.fleet.apart.rules import HAND_OVERS, HandOver
from kvplan.fleet.replicas.fleet import FleetPlay
from kvplan.fleet.replicas.seen import Seen
from kvplan.fleet.routers.interface import Router
from kvplan.fleet.routers.named import make_router
from kvplan.planner.fleets.demand import Demand
from kvplan.planner.fleets.judging import Bar
from kvplan.planner.fleets.setups import FleetChoice
from kvplan.planner.question.slo import Goal

_TO_DECODE: Final = "least-loaded"
"""Who decodes is chosen by load: what its cache has saves bytes of KV, and no work (Dynamo 1.2, Disaggregated Serving:
decode routing disables overlap scoring)."""
_NOT_COMPARED: Final = 2.0
"""The factor that counts as an error where no published throughput says one."""


@dataclass(frozen=True)
class PoolAnswer:
    """Pools beside a fleet whose replicas do both. link: bytes per second of one GPU, and over what. prefill_tokens:
    token budgets of prefill replicas, by ``Split.prefill``."""

    comparison: SplitComparison
    rules: HandOver
    link_bytes_per_second: float
    link: str
    prefill_tokens: tuple[int, ...]
    interval: ErrorInterval | None

    @property
    def verdict(self) -> str:
        """The answer in a sentence or two."""
        found, best = self.comparison, self.comparison.best
        if best is None:
            return "Prefill and decode cannot be apart on one replica's GPUs."
        split = f"{best.split.num_prefill} prefill + {best.split.num_decode} decode"
        what = "load" if found.by_load else "requests per second"
        if found.by_load and not found.together.most_speed:
            return f"The fleet does not keep the service level at an eighth of this load, so {split} has no measure."
        change = f"{100 * (found.gain - 1):+.0f} % {what}"
        if found.pays:
            return f"Disaggregate: {split} takes {change}, more than the error of {self.error_text}."
        if found.gain > 1:
            return f"Do not disaggregate: {split} takes {change}, within the error of {self.error_text}."
        return f"Do not disaggregate: the best ratio, {split}, takes {change}."

    @property
    def error_text(self) -> str:
        """``+38 %``, and whose error that is."""
        if self.interval is None:
            return "predictions that nothing published was compared with"
        return f"{100 * (self.comparison.error_factor - 1):.0f} % (published throughputs beside predictions)"

    def _split_document(self, played: PlayedSplit) -> dict[str, Any]:
        split = played.split
        return {
            "num_prefill_replicas": split.num_prefill,
            "num_decode_replicas": split.num_decode,
            "prefill_max_num_batched_tokens": self.prefill_tokens[split.prefill] if split.is_apart else None,
            "num_gpus": played.num_gpus,
            **_figures(played),
        }

    def document(self) -> dict[str, Any]:
        """Return what ``--json`` shows: times in milliseconds."""
        found = self.comparison
        return {
            "engine": self.rules.engine,
            "link": self.link,
            "link_bytes_per_second_per_gpu": self.link_bytes_per_second,
            "together": self._split_document(found.together),
            "apart": [self._split_document(each) for each in found.splits],
            "num_ratios": found.num_ratios,
            "compared_by": "load" if found.by_load else "requests_per_second",
            "gain": round(found.gain, 4),
            "error_factor": round(found.error_factor, 4),
            "disaggregate": found.pays,
            "verdict": self.verdict,
        }


def _figures(played: PlayedSplit) -> dict[str, Any]:
    ttft, tpot, moved, waits = played.ttft, played.tpot, played.transfers, played.waits
    return {
        "most_load": None if played.most_speed is None else round(played.most_speed, 3),
        "requests_per_second": round(played.requests_per_second, 3),
        "ttft_p50_ms": _ms(ttft.median),
        "ttft_p99_ms": _ms(ttft.p99),
        "tpot_p50_ms": None if tpot is None else _ms(tpot.median),
        "tpot_p95_ms": None if tpot is None else _ms(tpot.p95),
        "transfer_p50_ms": None if moved is None else _ms(moved.median),
        "transfer_p99_ms": None if moved is None else _ms(moved.p99),
        "decode_wait_p99_ms": None if waits is None else _ms(waits.p99),
        "kv_bytes_moved": round(played.bytes_moved),
    }


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 2)


def compare_pools(
    found: FleetChoice,
    replicas: int,
    demand: Demand,
    goal: Goal,
    share_of_windows: float,
    router: str,
    engine: str = "vllm",
    other_budgets: Sequence[FleetChoice] = (),
) -> PoolAnswer:
    """Hold pools of every ratio against ``replicas`` of ``found``, on the busiest window.

    Prefill goes by ``router``. Replicas of both pools are those of the fleet, with its settings; those that read
    prompts also with ``other_budgets`` of tokens.
    """
    rules, part = HAND_OVERS[engine], demand.busiest
    link, over = _link(found, replicas)
    pool = PoolSetup(found.setup, link * found.num_gpus)
    moved = MovedKv(found.prediction.rank.blocks, found.num_gpus // found.choice.layout.data_parallel_size)
    bar = Bar.of(goal, found.model, share_of_windows)

    def judge(seen: Sequence[Seen], speed: float) -> float:
        play = FleetPlay(seen=list(seen))
        return bar.judge(play, demand.window_seconds / speed, part.judged).deciding.ratio

    def new_routers() -> tuple[Router, Router, Router]:
        return (
            make_router(router, found.sizes),
            make_router(_TO_DECODE, found.sizes),
            make_router(router, found.sizes),
        )

    comparison = PoolComparison(
        part.requests,
        ApartSetup(pool, pool, moved, rules),
        found.setup,
        (found.num_gpus,) * 3,
        judge,
        new_routers,
        tuple(PoolSetup(each.setup, pool.link_bytes_per_second) for each in other_budgets),
    )
    interval = bar.intervals["throughput"]
    error = _NOT_COMPARED if interval is None else max(interval.high, 1 / interval.low)
    tokens = (found.tokens, *(each.tokens for each in other_budgets))
    return PoolAnswer(comparison.compare(replicas, error), rules, link, over, tokens, interval)


def _link(found: FleetChoice, replicas: int) -> tuple[float, str]:
    """What one GPU has to others of the fleet: NVLink where it joins all of them, else the network."""
    gpu = found.choice.gpu
    if gpu.nvlink_bytes_per_second is not None and gpu.joins_by_nvlink(replicas * found.num_gpus):
        return gpu.nvlink_bytes_per_second, "NVLink"
    return gpu.network_bytes_per_second, "network" if gpu.has_known_network else "network, assumed"
