"""A replica policy as Kubernetes has it: what is measured, its targets, and how fast replicas may come and go.

KEDA makes a HorizontalPodAutoscaler of a ScaledObject, and that decides between one replica and the most:

    desired = ceil(sum of a metric over the replicas / its target)       KEDA's metrics are of type AverageValue
    several triggers                                                     the largest of them
    every 15 s                                                           --horizontal-pod-autoscaler-sync-period
    no change within 10 % of the target                                  --horizontal-pod-autoscaler-tolerance
    up: doubling, or 4 more in 15 s, whichever is more; at once          behavior.scaleUp
    down: to the highest of the last 300 s                               behavior.scaleDown.stabilizationWindowSeconds

Sources: kubernetes.io, Horizontal Pod Autoscaling (algorithm details; default behavior), and autoscaling/v2's
HPAScalingRules; keda.sh 2.22, ScaledObject specification. Its pollingInterval (30 s) and cooldownPeriod (300 s) are
about the step from none to one replica alone, which no policy here takes: loading a model takes minutes.

Before a replica serves, its weights are read from disk and the rest of the engine starts (``ColdStart``). Both differ
by a factor of ten from one cluster to the next, so ``--cold-start`` states them. Where nobody does:

    weights    at 1.2 GiB/s each GPU's own share: 21.82 GiB in 18 s (vllm-project/vllm issue 44881, a rented GPU); 20 s
               for 75.64 GiB where the page cache had them, and 340 s for 51.35 GiB from a network, were logged too
    the rest   240 s: 205 s (issue 19824: peers' check 60, bytecode 15, torch.compile 70, graphs 60) and 259 s (issue
               44881: container 16, torch.compile 43, profiling and graphs 200)

A node that must be rented first, and an image that must be pulled, come on top: no figure is assumed for them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from kvplan.errors import check
from kvplan.units import GIB, plural

READ_BYTES_PER_SECOND: Final = 1.2 * GIB
START_SECONDS: Final = 240.0
MetricName = Literal["waiting", "in_flight", "kv_usage", "prompt_tokens"]
SYNC_SECONDS: Final = 15.0
TOLERANCE: Final = 0.1
METRIC_AGE_SECONDS: Final = 15.0
"""How old a metric is when it is looked at: half of the 30 s between two readings of kube-prometheus-stack's Prometheus
(prometheusSpec.scrapeInterval)."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """``target``: of each replica. waiting and in_flight count requests; kv_usage is a share of the blocks, 0 to 1;
    prompt_tokens are those that no cache has and no step has read. Of routers llm-d's alone measures them
    (``llm_d_epp_inflight_tokens``; llm-d/llm-d at 560d420e, guides/workload-autoscaling/keda-epp-token-aware)."""

    metric: MetricName
    target: float

    @property
    def text(self) -> str:
        """``5 waiting``, ``kv usage 70 %``, ``12,000 prompt tokens``"""
        if self.metric == "kv_usage":
            return f"kv usage {100 * self.target:.0f} %"
        if self.metric == "prompt_tokens":
            return f"{self.target:,.0f} prompt tokens"
        return f"{self.target:g} {'waiting' if self.metric == 'waiting' else 'in flight'}"


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most so many replicas more or fewer in a period."""

    kind: Literal["pods", "percent"]
    value: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Direction:
    """How fast replicas may come, or go: the limit that allows most counts."""

    stabilization_seconds: float
    limits: tuple[RateLimit, ...]


SCALE_UP: Final = Direction(0.0, (RateLimit("percent", 100, 15.0), RateLimit("pods", 4, 15.0)))
SCALE_DOWN: Final = Direction(300.0, (RateLimit("percent", 100, 15.0),))


@dataclass(frozen=True, slots=True)
class ReplicaPolicy:
    """cold_start_seconds: from the decision until a new replica takes requests. num_spare: replicas beside those that
    the triggers ask for, so that one may fail (N+1). metric_age_seconds: of what is looked at."""

    min_replicas: int
    max_replicas: int
    triggers: tuple[Trigger, ...]
    cold_start_seconds: float
    num_spare: int = 0
    sync_seconds: float = SYNC_SECONDS
    tolerance: float = TOLERANCE
    metric_age_seconds: float = METRIC_AGE_SECONDS
    up: Direction = field(default=SCALE_UP)
    down: Direction = field(default=SCALE_DOWN)

    def __post_init__(self) -> None:
        least, most = self.min_replicas, self.max_replicas
        check(least >= 1, f"--min-replicas must be at least 1, got {least}", "loading a model takes minutes")
        check(most >= least, f"--max-replicas {most} is below --min-replicas {least}", f"use {least} or more")
        check(self.cold_start_seconds >= 0, "--cold-start must not be negative", "for example --cold-start 4m")

    @property
    def text(self) -> str:
        """``2 to 12 replicas by 5 waiting or kv usage 70 %``"""
        if self.min_replicas == self.max_replicas:
            return f"{plural(self.min_replicas, 'replica')} always"
        return (
            f"{self.min_replicas} to {self.max_replicas} replicas by {' or '.join(each.text for each in self.triggers)}"
        )


@dataclass(frozen=True, slots=True)
class ColdStart:
    """Seconds from the decision to the first request, and whether a user stated them."""

    seconds: float
    is_stated: bool

    @staticmethod
    def of(weight_bytes_per_gpu: int, stated_seconds: float | None = None) -> ColdStart:
        """What was stated, or the sum of the assumed parts."""
        if stated_seconds is not None:
            return ColdStart(stated_seconds, is_stated=True)
        return ColdStart(weight_bytes_per_gpu / READ_BYTES_PER_SECOND + START_SECONDS, is_stated=False)

    @property
    def note(self) -> str:
        """A sentence on where it is from."""
        if self.is_stated:
            return f"A new replica serves after {self.seconds:,.0f} s (--cold-start)."
        return (
            f"A new replica is assumed to serve after {self.seconds:,.0f} s: weights at 1.2 GiB/s, and 240 s more; "
            "--cold-start says what yours takes, with the node and the image where these have to come first."
        )
