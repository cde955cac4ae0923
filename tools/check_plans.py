"""Asks whether a better answer stayed hidden: plays the whole grid of each question beside what ``plan`` calls best.

    python tools/check_plans.py              # thirty questions; up to an hour on one core
    python tools/check_plans.py --only 3 7   # some of them

The grid has every layout within a node, every token budget and every number of replicas that costs no more than the
answer, all played: with a seat for every request and, under bounds, where that is cheaper than the answer or the answer
has fewer itself, for three quarters, half and a quarter of those that users send; without graphs where those with
graphs do not hold as many. The answer is dominated where one of them serves the load as asked for less, or at the same
price with a seat for everybody where the answer has not, or with 2 % more room within the bounds (without bounds, and
of what has fewer seats: 2 % sooner). An answer that says that it keeps its service level
is then played again under 20 other seeds of its load. Exit code 1 where an answer is dominated.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvplan.catalog.devices.measured import MeasuredProfiles, load_measured
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.catalog.spec import ModelSpec
from kvplan.commands.printing.plan_tables import full_name
from kvplan.errors import KvplanError
from kvplan.estimate.speed.queues import Queues
from kvplan.planner.choices.basis import PlanBasis
from kvplan.planner.choices.candidate import Candidate, with_seats
from kvplan.planner.choices.deployment import DeploymentChoice, PlannedDeployment
from kvplan.planner.choices.evaluation import PlayedReplica, evaluate
from kvplan.planner.choices.sizing import for_all
from kvplan.planner.choices.verdict import Expected, Verdict
from kvplan.planner.question.asking import plan_request
from kvplan.planner.question.request import PlanRequest, complete
from kvplan.planner.search.plan import formats_asked, make_plan
from kvplan.planner.search.ranking import price_of, score
from kvplan.settings import ServingSettings

_NOTICEABLE = 0.98
_SEATS = (1.0, 0.75, 0.5, 0.25)
_SEEDS = range(1, 21)

QUESTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("llama-3.1-8b", {"users": 200, "ctx_avg": "4k", "gpu": ["a100-80gb-sxm"], "max_gpus": 2}),
    ("llama-3.1-8b", {"users": 200, "ctx_avg": "4k", "gpu": ["a100-80gb-sxm"], "max_gpus": 2, "slo": ["ttft:2000"]}),
    ("llama-3.1-8b", {"users": 100, "ctx_avg": "4k", "gpu": ["a100-80gb-sxm"], "slo": ["p99_ttft:2500"]}),
    ("llama-3.1-8b", {"users": 300, "ctx_avg": "4k", "gpu": ["h200"], "max_gpus": 2}),
    ("llama-3.1-8b", {"users": 40, "ctx_avg": "8k", "ctx_max": "32k", "gpu": ["a100-80gb-sxm", "h100-sxm"]}),
    ("llama-3.1-8b", {"users": 40, "input_len": "8000", "output_len": "64", "gpu": ["h100"], "slo": ["ttft:832"]}),
    ("llama-3.1-8b", {"users": 10, "gpu": ["l4", "l40s", "rtx-4090"], "slo": ["tpot:40"]}),
    ("llama-3.1-8b", {"request_rate": 4.0, "input_len": "4k", "gpu": ["l40s"]}),
    ("llama-3.1-8b", {"request_rate": 10.0, "input_len": "1k", "output_len": "256", "gpu": ["l40s", "h100"]}),
    ("llama-3.1-8b", {"request_rate": 5.0, "input_len": "1k", "gpu": ["l4", "h100"], "slo": ["ttft:1000 tpot:50"]}),
    ("qwen3-8b", {"users": 64, "ctx_avg": "2k", "gpu": ["rtx-5090", "rtx-pro-6000"], "slo": ["p99_tpot:30"]}),
    ("qwen3-14b", {"users": 40, "ctx_avg": "4k", "gpu": ["l40s"], "max_gpus": 4}),
    ("qwen3-14b", {"users": 8, "ctx_avg": "8k", "gpu": ["rtx-4090", "rtx-5090"], "quantization": ["fp8"]}),
    ("qwen3-32b", {"users": 100, "ctx_avg": "4k", "gpu": ["h100-sxm"], "max_gpus": 4}),
    ("qwen3-32b", {"users": 50, "ctx_avg": "8k", "ctx_max": "32k", "gpu": ["rtx-3090", "rtx-pro-6000"]}),
    ("qwen3-32b", {"users": 20, "ctx_avg": "16k", "gpu": ["a100-80gb-sxm", "h200"], "slo": ["ttft:4000 tpot:60"]}),
    ("qwen3-32b", {"request_rate": 2.0, "input_len": "2k", "output_len": "500", "gpu": ["h100"], "slo": ["tpot:40"]}),
    ("qwen3-30b-a3b", {"users": 40, "ctx_avg": "4k", "gpu": ["h100-sxm"], "slo": ["ttft:500 tpot:30"]}),
    ("qwen3-30b-a3b", {"users": 200, "ctx_avg": "4k", "gpu": ["h200", "b200"]}),
    ("qwen3-30b-a3b", {"request_rate": 20.0, "input_len": "1k", "output_len": "200", "gpu": ["h100"]}),
    ("gpt-oss-120b", {"users": 60, "ctx_avg": "8k", "gpu": ["h100-sxm", "b200"]}),
    ("gpt-oss-20b", {"users": 30, "ctx_avg": "8k", "gpu": ["rtx-4090", "l40s"], "slo": ["tpot:50"]}),
    ("llama-3.3-70b", {"users": 300, "ctx_avg": "4k", "gpu": ["h100"], "budget": 60.0, "slo": ["ttft:1000"]}),
    ("llama-3.3-70b", {"users": 100, "ctx_avg": "4k", "gpu": ["h200"], "max_gpus": 4}),
    ("llama-3.3-70b", {"users": 24, "ctx_avg": "8k", "gpu": ["a100-80gb-sxm", "h100-sxm"], "slo": ["p99_tpot:80"]}),
    ("llama-3.3-70b", {"request_rate": 1.0, "input_len": "3k", "output_len": "400", "gpu": ["h100", "h200"]}),
    ("llama-3.3-70b", {"users": 8, "ctx_avg": "16k", "gpu": ["l40s"], "quantization": ["awq"]}),
    ("gemma-3-27b", {"users": 30, "ctx_avg": "8k", "gpu": ["h100-sxm", "l40s"], "slo": ["ttft:2000"]}),
    ("mixtral-8x7b", {"users": 50, "ctx_avg": "2k", "gpu": ["a100-80gb-sxm"]}),
    ("deepseek-v3", {"users": 64, "ctx_avg": "8k", "gpu": ["h200"], "slo": ["tpot:100"]}),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One question. ``better``: what dominates the answer. ``kept``: of twenty seeds; None without a promise."""

    best: PlannedDeployment | None
    num_in_grid: int
    better: tuple[PlannedDeployment, ...]
    kept: int | None
    seconds: float


def ask(model: str, options: dict[str, Any], measured: MeasuredProfiles) -> Outcome:
    """Plan, and play the grid beside the answer."""
    spec = resolve_model(model)
    request = plan_request(EngineChoice("vllm"), ServingSettings(), **options)
    began = time.perf_counter()
    found = make_plan(spec, request, measured)
    seconds = time.perf_counter() - began
    best = next((each for each in found.deployments if each.verdict.meets), None)
    grid = [*whole_grid(spec, request, measured, best)]
    better = tuple(each for each in grid if each.verdict.meets and _dominates(each, best))
    promised = best if best is not None and best.verdict.goal.is_asked else None
    return Outcome(best, len(grid), better, None if promised is None else num_kept(promised, found.workload), seconds)


def whole_grid(
    spec: ModelSpec, request: PlanRequest, measured: MeasuredProfiles, best: PlannedDeployment | None
) -> Iterator[PlannedDeployment]:
    """All that costs no more than ``best``, played."""
    basis = PlanBasis(request, complete(request, spec), measured)
    for choice in _choices(basis, spec):
        for replicas in range(1, basis.most_replicas(choice) + 1):
            price = price_of(choice.gpu, replicas * choice.layout.num_gpus)
            dearest = None if best is None else price_of(best.choice.gpu, best.num_gpus)
            if dearest is not None and price > dearest:
                break
            waits = request.goal.is_asked and (best is None or best.waits or dearest is None or price < dearest)
            try:
                yield from map(evaluate, _with_settings(basis, choice, replicas, waits=waits))
            except KvplanError:
                break


def _with_settings(basis: PlanBasis, choice: DeploymentChoice, replicas: int, *, waits: bool) -> Iterator[Candidate]:
    """``choice`` with each number of seats, without graphs where it holds them only so."""
    users, groups = basis.workload.num_users, choice.layout.data_parallel_size
    eager = replace(choice, enforce_eager=True)
    for share in _SEATS if waits and users is not None and not basis.workload.pattern.think_seconds else (1.0,):
        seats = int(share * math.ceil((users or 0) / replicas) / groups)
        for each in (choice, eager):
            if share == 1.0:
                found = for_all(basis, each, replicas)
            elif seats:
                found = with_seats(basis, replace(each, max_num_seqs=seats), replicas, seats)
            else:
                continue
            if isinstance(found, Candidate) and (share == 1.0 or found.held >= groups * seats):
                yield found
                break


def _choices(basis: PlanBasis, spec: ModelSpec) -> Iterator[DeploymentChoice]:
    formats, _ = formats_asked(spec, basis.request)
    for gpu in basis.gpus:
        for pair in formats:
            if basis.refuses(pair, gpu):
                continue
            for layout in basis.layouts(pair.weights, gpu, across_nodes=False):
                choice = DeploymentChoice(gpu, layout, pair.weights, pair.kv_cache_dtype)
                for tokens in (None, *basis.other_step_tokens(choice)):
                    yield replace(choice, max_num_batched_tokens=tokens)


def _dominates(each: PlannedDeployment, best: PlannedDeployment | None) -> bool:
    if best is None:
        return True
    price, answer = (price_of(found.choice.gpu, found.num_gpus) for found in (each, best))
    if price != answer or each.waits != best.waits:
        return (price, each.waits) < (answer, best.waits)
    return score(each) < _NOTICEABLE * score(best)


def num_kept(best: PlannedDeployment, workload: Any) -> int:
    """Of twenty seeds of its load, under how many ``best`` keeps its bounds by the middle of what is expected."""
    kept = 0
    for seed in _SEEDS:
        replica = PlayedReplica(
            workload, best.choice, best.replicas, best.prediction, best.capacity, best.speed_model, seed=seed
        )
        queues: Queues | None = replica.play(best.served)
        verdict = Verdict.of(replace(best.verdict.goal, confidence=0.5), Expected(best.served, queues), ())
        kept += verdict.broken is None
    return kept


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each question, and the sums."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of questions, from 1")
    chosen = parser.parse_args(arguments)
    measured, dominated, promises, kept = load_measured(), 0, 0, 0
    for number, (model, options) in enumerate(QUESTIONS, 1):
        if chosen.only and number not in chosen.only:
            continue
        found = ask(model, options, measured)
        dominated += bool(found.better)
        if found.kept is not None:
            promises, kept = promises + 1, kept + (found.kept >= 18)
        name = "nothing serves it" if found.best is None else full_name(found.best)
        seeds = "" if found.kept is None else f", {found.kept} of 20 seeds"
        print(f"{number:2d} {model}: {name}; {found.num_in_grid} in the grid{seeds}, {found.seconds:.2f} s", flush=True)
        for each in found.better[:3]:
            tokens = each.prediction.settings.serving.max_num_batched_tokens
            print(f"     better: {full_name(each)}, {tokens} tokens a step, {each.usd_per_hour} $/h", flush=True)
    print(f"{dominated} answers dominated; of {promises} promises {kept} are kept under 18 of 20 seeds or more")
    return 1 if dominated else 0


if __name__ == "__main__":
    sys.exit(main())
