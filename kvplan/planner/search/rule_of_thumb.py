"""A rule of thumb in wide use for sizing vLLM: weights + 1.2 GB per user + 5 GB. Shown for comparison."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.catalog.spec import ModelSpec
from kvplan.estimate.dtypes import serving_dtype
from kvplan.estimate.weights import size_weights
from kvplan.planner.choices.deployment import PlannedDeployment
from kvplan.planner.question.request import PlanRequest, Workload

BYTES_PER_USER = 1_200_000_000
BUFFER_BYTES = 5_000_000_000


@dataclass(frozen=True, slots=True)
class RuleOfThumb:
    """Bytes in all, and the parts of the sum."""

    weight_bytes: int
    num_users: int

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.num_users * BYTES_PER_USER + BUFFER_BYTES

    def users_on(self, memory_bytes: int) -> int:
        """Users it would allow on so much memory."""
        return max((memory_bytes - self.weight_bytes - BUFFER_BYTES) // BYTES_PER_USER, 0)


def rule_of_thumb(spec: ModelSpec, request: PlanRequest, workload: Workload) -> RuleOfThumb | None:
    """None when the question gives a rate of requests instead of users."""
    if workload.num_users is None:
        return None
    weights = size_weights(spec, serving_dtype(spec.dtype, request.settings.dtype)).total_bytes
    return RuleOfThumb(weights, workload.num_users)


def users_by_rule(rule: RuleOfThumb, deployment: PlannedDeployment) -> int:
    """Users that the rule would put on the deployment's GPUs: each replica holds the weights."""
    memory_bytes = deployment.choice.gpu.memory_bytes * deployment.choice.layout.num_gpus
    return deployment.replicas * rule.users_on(memory_bytes)
