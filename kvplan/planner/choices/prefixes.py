"""What a deployment finds in its prefix cache of the prompts that a load sends, and how many sequences that leaves room
for. A prefix that running sequences share is held once on each data-parallel group."""

from __future__ import annotations

from kvplan.catalog.releases.vllm import vllm_release
from kvplan.estimate.speed.queueing.sharing import ExpectedHits
from kvplan.estimate.vllm.prediction import VllmPrediction
from kvplan.estimate.vllm.prefix_hits import PrefixHits, prefix_hits, shared_blocks
from kvplan.planner.choices.deployment import Capacity, DeploymentChoice
from kvplan.planner.question.request import Workload


def hits_on(workload: Workload, choice: DeploymentChoice, prediction: VllmPrediction) -> PrefixHits:
    """Return the hits by vLLM's rules for the model, the release and the blocks of this deployment."""
    return prefix_hits(
        choice.weights.spec,
        prediction.settings.serving,
        vllm_release(prediction.version),
        prediction.rank.blocks,
        shares_prefixes=workload.pattern.sharing.prefix_tokens > 0,
    )


def expected_hits(
    workload: Workload, choice: DeploymentChoice, prediction: VllmPrediction, capacity: Capacity
) -> ExpectedHits:
    """Return the hits of a load whose prompts share something."""
    sharing = workload.pattern.sharing
    groups, hits = choice.layout.data_parallel_size, hits_on(workload, choice, prediction)
    return ExpectedHits(
        sharing,
        capacity.pool_tokens / groups,
        hits.hit_tokens,
        workload.message_tokens,
        workload.output_tokens,
        workload.pattern.think_seconds,
        hits.dropped_tokens,
        groups,
    )


def sequences_beside_prefixes(
    workload: Workload, choice: DeploymentChoice, prediction: VllmPrediction, blocks_each: int
) -> int:
    """Sequences of ``blocks_each`` that one data-parallel group's pool holds at once.

    Of ``num_prefixes`` shared ones those are held that one of the sequences begins with: each with any of them.
    """
    sharing, blocks = workload.pattern.sharing, prediction.num_blocks
    hit_tokens = hits_on(workload, choice, prediction).hit_tokens if sharing.prefix_tokens else 0
    if not hit_tokens:
        return blocks // blocks_each
    of_prefix = shared_blocks(prediction.rank.blocks, sharing.prefix_tokens // hit_tokens * hit_tokens)
    own, kinds = max(blocks_each - of_prefix, 1), sharing.num_prefixes

    def held(count: int) -> float:
        in_use = kinds * (1 - (1 - 1 / kinds) ** count) if kinds > 1 else min(count, 1)
        return count * own + in_use * of_prefix

    low, high = 0, blocks // own + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if held(middle) <= blocks else (low, middle)
    return low
