"""Asks whether a cheaper fleet stayed hidden: plays random fleets of a trace beside what ``plan`` calls best.

    python tools/check_fleet_plans.py MODEL TRACE --slo "p99_ttft:20000 p95_tpot:80" --gpu h100-sxm,h200 --count 200

A random fleet has a GPU, a layout, a token budget, a number of replicas and a router; it costs less than the answer, or
as much. It is played over the whole trace as the answer is. The answer is dominated where one of them keeps the level
for less. The same seed plays the same fleets. Exit code 1 where the answer is dominated, or there is none.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvplan.catalog.devices.measured import load_measured
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.fleet.routers.named import ROUTERS
from kvplan.planner.choices.basis import PlanBasis
from kvplan.planner.choices.deployment import DeploymentChoice
from kvplan.planner.fleets.answering import FleetAnswer, plan_fleet
from kvplan.planner.fleets.playing import FleetPlan, Played, Player
from kvplan.planner.fleets.setups import FleetChoice, fleet_choice
from kvplan.planner.question.asking import plan_request
from kvplan.planner.search.plan import formats_asked
from kvplan.planner.search.ranking import Price, price_of
from kvplan.settings import ServingSettings


@dataclass
class RandomFleets:
    """Fleets that cost at most as much as ``answer``'s best, each with the same chance for every choice of a GPU."""

    answer: FleetAnswer
    basis: PlanBasis
    seed: int = 0

    def draw(self, count: int) -> Iterator[FleetPlan]:
        """So many, no two of them the same; fewer where there are no more."""
        rng, seen = random.Random(self.seed), set()
        choices = [*self._choices()]
        for _ in range(100 * count):
            if len(seen) == count or not choices:
                return
            found = rng.choice(choices)
            most = self._most(found)
            if not most:
                continue
            plan = FleetPlan(found, rng.randint(max(most // 2, 1), most), rng.choice([*ROUTERS]))
            if plan.key not in seen:
                seen.add(plan.key)
                yield plan

    def price(self, plan: FleetPlan) -> Price:
        """What the fleet costs, spare replicas too."""
        return price_of(plan.found.choice.gpu, self.basis.num_gpus(plan.found.choice, plan.replicas))

    def _choices(self) -> Iterator[FleetChoice]:
        formats, _ = formats_asked(self.answer.plan.spec, self.answer.plan.request)
        for gpu in self.basis.gpus:
            for pair in formats:
                for layout in self.basis.layouts(pair.weights, gpu, across_nodes=False):
                    choice = DeploymentChoice(gpu, layout, pair.weights, pair.kv_cache_dtype)
                    for tokens in (None, *self.basis.other_step_tokens(choice)):
                        found = fleet_choice(self.basis, replace(choice, max_num_batched_tokens=tokens))
                        if found is not None:
                            yield found

    def _most(self, found: FleetChoice) -> int:
        best = self.answer.best
        assert best is not None
        limit, most = self.price(best.plan), self.basis.most_replicas(found.choice)
        return max(
            (count for count in range(1, most + 1) if self.price(FleetPlan(found, count, "")) <= limit), default=0
        )


def dominating(fleets: RandomFleets, count: int, tell: bool = False) -> tuple[int, list[Played]]:
    """(fleets that were played, those that keep the level for less than the answer)."""
    answer = fleets.answer
    assert answer.best is not None
    goal, share = answer.plan.request.goal, answer.trace.share_of_windows
    better, played, limit = [], 0, fleets.price(answer.best.plan)
    for plan in fleets.draw(count):
        played += 1
        found = Player(answer.demand, goal, share).whole(plan)
        if found.keeps and fleets.price(plan) < limit:
            better.append(found)
        if tell:
            print(f"{played:4d} {_text(plan):60s} {'keeps' if found.keeps else 'misses'}", file=sys.stderr, flush=True)
    return played, better


def _text(plan: FleetPlan) -> str:
    return f"{plan.replicas} x ({plan.found.choice.name}), {plan.found.tokens:,} step tokens, {plan.router}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Search, draw, play, and say what is cheaper."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("trace", type=Path)
    parser.add_argument("--slo", action="append", required=True)
    parser.add_argument("--gpu", action="append", required=True)
    parser.add_argument("--max-gpus", type=int, default=64)
    parser.add_argument("--window", default="5m")
    parser.add_argument("--to", default=None)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    spec, measured = resolve_model(asked.model), load_measured(None)
    request = plan_request(
        EngineChoice("vllm"),
        ServingSettings(),
        workload=asked.trace,
        slo=asked.slo,
        gpu=asked.gpu,
        max_gpus=asked.max_gpus,
        window=asked.window,
        end=asked.to,
        plays_trace=True,
    )
    answer = plan_fleet(spec, request, measured)
    if answer.best is None:
        print("no fleet keeps the level")
        return 1
    basis = PlanBasis(answer.plan.request, answer.plan.workload, measured)
    fleets = RandomFleets(answer, basis, asked.seed)
    played, better = dominating(fleets, asked.count, tell=True)
    print(f"answer: {_text(answer.best.plan)}, ${fleets.price(answer.best.plan).amount:,.2f}/h")
    for found in better:
        print(f"cheaper: {_text(found.plan)}, ${fleets.price(found.plan).amount:,.2f}/h")
    print(f"{played} random fleets, {len(better)} cheaper that keep the level")
    return 1 if better else 0


if __name__ == "__main__":
    sys.exit(main())
