"""What a plan tries and finds: choices, the deployments that serve the load, and what the others lack."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from kvplan.catalog.devices.gpu_profile import usd_per_million_tokens
from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.latency import Range, SpeedModel
from kvplan.estimate.speed.queues import Queues
from kvplan.estimate.vllm.prediction import VllmPrediction
from kvplan.planner.choices.formats import WeightFormat
from kvplan.planner.choices.layouts import num_nodes
from kvplan.planner.choices.load import LoadedReplica
from kvplan.planner.choices.verdict import Expected, Figure, Verdict
from kvplan.units import plural


@dataclass(frozen=True, slots=True)
class DeploymentChoice:
    """What is varied. ``weights`` carries the model in that format.

    ``max_num_batched_tokens``: None for what was asked for, or else the engine's default. ``max_num_seqs``: seats of an
    engine where more requests come at once than have one; None where all have. ``enforce_eager``: without graphs, whose
    memory the KV cache has then.
    """

    gpu: GpuProfile
    layout: ParallelLayout
    weights: WeightFormat
    kv_cache_dtype: str
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    enforce_eager: bool = False

    @property
    def name(self) -> str:
        """``8 x h100-sxm, tp 8``: one instance."""
        return instance_name(self.layout.num_gpus, self.gpu, self.layout)

    @property
    def num_nodes(self) -> int:
        return num_nodes(self.layout, self.gpu)

    @property
    def formats(self) -> tuple[str, str]:
        """(weights, KV cache)."""
        return self.weights.name, self.kv_cache_dtype

    @property
    def layout_key(self) -> tuple[object, ...]:
        """Equal for choices of one plan that differ in batch settings alone."""
        return (self.gpu.id, self.layout, *self.formats)

    @property
    def speed_key(self) -> tuple[object, ...]:
        """Equal for choices of one plan whose steps take as long."""
        return (*self.layout_key, self.max_num_batched_tokens, self.enforce_eager)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal choices of one plan."""
        return (*self.speed_key, self.max_num_seqs)

    def for_all(self, max_num_batched_tokens: int | None) -> DeploymentChoice:
        """The same with that token budget, a seat for every request, and graphs."""
        return DeploymentChoice(self.gpu, self.layout, self.weights, self.kv_cache_dtype, max_num_batched_tokens)

    def has_budget_of(self, other: DeploymentChoice) -> bool:
        """Whether a step has as many tokens."""
        return self.max_num_batched_tokens == other.max_num_batched_tokens

    @property
    def settings_text(self) -> str:
        """``96 seats, no graphs``: of an engine; "" where everybody has a seat and steps have graphs."""
        parts = [] if self.max_num_seqs is None else [plural(self.max_num_seqs, "seat")]
        return ", ".join([*parts, "no graphs"] if self.enforce_eager else parts)


def instance_name(num_gpus: int, gpu: GpuProfile, layout: ParallelLayout) -> str:
    """``b200``, or ``4 x h100-sxm, tp 2`` for two replicas of two GPUs each."""
    if num_gpus == 1:
        return gpu.id
    sizes = layout.short_text() or "tp 1"
    return f"{num_gpus} x {gpu.id}, {sizes}"


@dataclass(frozen=True, slots=True)
class Capacity:
    """Sequences that one replica's pools hold at once (all its data-parallel groups), with one's bytes on each rank.

    planned_tokens: of a sequence of the kind that the load is planned for. pool_tokens: of average sequences that share
    nothing.
    """

    average_sequences: int
    worst_sequences: int
    average_bytes: int
    worst_bytes: int
    planned_tokens: int
    pool_tokens: int


@dataclass(frozen=True, slots=True)
class PlannedDeployment:
    """A choice that serves the workload: ``replicas`` instances, of which ``num_spare`` could fail."""

    choice: DeploymentChoice
    replicas: int
    num_spare: int
    prediction: VllmPrediction
    capacity: Capacity
    served: LoadedReplica
    queues: Queues | None
    """The load played on one replica; None where its server would be too busy to say (``play_queues``)."""
    verdict: Verdict
    limit: str
    """What runs out first when more load comes: kv, seats, server, bandwidth, compute, ttft, tpot or e2el."""
    offered_tokens_per_second: float | None
    """Output tokens that the load asks for, all replicas together; None for users, who take what they get."""
    speed_model: SpeedModel
    """How fast one replica is, at any load."""

    @property
    def num_gpus(self) -> int:
        return (self.replicas + self.num_spare) * self.choice.layout.num_gpus

    @property
    def num_nodes(self) -> int:
        """Nodes that the replicas fill: whole ones where an instance spans several."""
        if self.choice.num_nodes > 1:
            return (self.replicas + self.num_spare) * self.choice.num_nodes
        return -(-self.num_gpus // self.choice.gpu.max_gpus_per_node)

    @property
    def name(self) -> str:
        return instance_name(self.num_gpus, self.choice.gpu, self.choice.layout)

    @property
    def weights_name(self) -> str:
        """The format of the weights as they are served: unquantized ones in the dtype that this GPU has."""
        weights = self.choice.weights
        is_plain = weights.is_published and weights.spec.quantization is None
        return self.prediction.settings.serving.dtype if is_plain else weights.name

    @property
    def users_per_replica(self) -> float:
        return self.served.num_users

    @property
    def waits(self) -> bool:
        """Whether more requests come at once than have a seat."""
        return self.served.num_running < self.served.num_users

    @property
    def usd_per_hour(self) -> float | None:
        """Price of all GPUs; of whole instances where a cloud rents them so."""
        gpu = self.choice.gpu
        return None if gpu.price is None else gpu.price.usd_per_hour * paid_gpus(gpu, self.num_gpus)

    @property
    def expected(self) -> Expected:
        """What requests see on one replica."""
        return Expected(self.served, self.queues)

    @property
    def output_tokens_per_second(self) -> Figure:
        """Throughput of all replicas: no more than the load asks for."""
        middle, ends = self.expected.output_tokens_per_second()
        most = math.inf if self.offered_tokens_per_second is None else self.offered_tokens_per_second
        low, middle, high = (min(each * self.replicas, most) for each in (ends.low, middle, ends.high))
        return Figure(middle, Range(low, high, most=min(ends.most * self.replicas, most)))

    def usd_per_million_output_tokens(self) -> tuple[float, float] | None:
        """(cheapest, dearest) of the tokens that are served; None without a price."""
        if self.usd_per_hour is None:
            return None
        ends, cost = self.output_tokens_per_second.between, self.usd_per_hour
        return usd_per_million_tokens(cost, ends.high), usd_per_million_tokens(cost, ends.low)

    def middle_usd_per_million_output_tokens(self) -> float | None:
        """Price by the middle of what is expected."""
        cost, tokens = self.usd_per_hour, self.output_tokens_per_second.middle
        return None if cost is None else usd_per_million_tokens(cost, tokens)

    def usd_per_million_tokens(self) -> tuple[float, float] | None:
        """The same of all tokens, those of prompts too: the price of a mixture as this load has it."""
        output, model = self.usd_per_million_output_tokens(), self.speed_model
        if output is None:
            return None
        share = model.output_tokens / (model.input_tokens + model.output_tokens)
        return output[0] * share, output[1] * share


def paid_gpus(gpu: GpuProfile, num_gpus: int) -> int:
    """GPUs that are paid for where so many are used: those of whole instances where a cloud rents them so."""
    if gpu.rented_as is None:
        return num_gpus
    return -(-num_gpus // gpu.max_gpus_per_node) * gpu.max_gpus_per_node


MissKind = Literal["slo", "capacity", "context", "weights"]
_NEARNESS: dict[MissKind, int] = {"slo": 0, "capacity": 1, "context": 2, "weights": 3}


@dataclass(frozen=True, slots=True)
class Miss:
    """A choice that does not serve the workload. ``missing_bytes`` per GPU, or 0 when memory is not what lacks.

    ``shortfall``: how far it is from serving it, comparable within a ``kind``. ``sentence``: what it lacks, without
    its name.
    """

    choice: DeploymentChoice
    replicas: int
    kind: MissKind
    reason: str
    missing_bytes: int
    shortfall: float
    sentence: str
    prediction: VllmPrediction | None = None
    is_final: bool = False
    """No number of replicas would do: the weights do not load, or one request alone is too slow."""

    @property
    def name(self) -> str:
        layout = self.choice.layout
        return instance_name(self.replicas * layout.num_gpus, self.choice.gpu, layout)

    @property
    def as_clause(self) -> str:
        """The sentence as it stands behind a colon: ``it holds ...``, but ``TTFT would be ...``."""
        return self.sentence if self.sentence[:2].isupper() else self.sentence[0].lower() + self.sentence[1:]

    @property
    def nearness(self) -> tuple[int, bool, float]:
        """What lacks speed is nearer than what lacks room, and that nearer than what does not even load.

        Of what lacks speed, what would be fast enough for one request alone is nearer than what would not.
        """
        return _NEARNESS[self.kind], self.is_final, self.shortfall
