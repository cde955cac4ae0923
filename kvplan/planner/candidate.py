"""One deployment tried: a GPU, a tensor-parallel size, weight and KV formats, and as many replicas as it takes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from kvplan.catalog.engines import vllm_release
from kvplan.catalog.gpus import GpuProfile
from kvplan.catalog.measured import MeasuredProfiles
from kvplan.errors import KvplanError
from kvplan.estimate.speed.latency import DeviceSpeed, ModelWork, ServingSpeed, kv_read_bytes, model_work, serving_speed
from kvplan.estimate.vllm.groups import blocks_per_request
from kvplan.estimate.vllm.prediction import (
    Memo,
    VllmPrediction,
    cache_settings,
    predict_vllm,
    request_shape,
)
from kvplan.planner.formats import WeightFormat
from kvplan.planner.request import PlanRequest, Workload
from kvplan.planner.slo import SloCheck, check_slo

_SEQUENCE_STEP = 8
_MOST_SEQUENCES = 1024
_MOST_USERS = 100_000


@dataclass(frozen=True, slots=True)
class Choice:
    """What is varied. ``weights`` carries the model in that format."""

    gpu: GpuProfile
    tensor_parallel_size: int
    weights: WeightFormat
    kv_cache_dtype: str


@dataclass(frozen=True, slots=True)
class Capacity:
    """Sequences that one replica's pool holds at once, with the bytes of one on each rank."""

    average_sequences: int
    worst_sequences: int
    average_bytes: int
    worst_bytes: int


@dataclass(frozen=True, slots=True)
class Deployment:
    """A choice that serves the workload: ``replicas`` times ``tensor_parallel_size`` GPUs."""

    choice: Choice
    replicas: int
    prediction: VllmPrediction
    capacity: Capacity
    users_per_replica: float
    speed: ServingSpeed
    slo: SloCheck
    limit: str
    """What runs out first when more users come: kv, bandwidth, compute, ttft, tpot or e2el."""

    @property
    def num_gpus(self) -> int:
        return self.replicas * self.choice.tensor_parallel_size

    @property
    def name(self) -> str:
        """``b200``, or ``4 x h100-sxm, tp 2`` for two replicas of two GPUs each."""
        gpu = self.choice.gpu.id
        return gpu if self.num_gpus == 1 else f"{self.num_gpus} x {gpu}, tp {self.choice.tensor_parallel_size}"

    @property
    def usd_per_hour(self) -> float | None:
        price = self.choice.gpu.price
        return None if price is None else price.usd_per_hour * self.num_gpus

    @property
    def output_tokens_per_second(self) -> tuple[float, float]:
        found = self.speed.output_tokens_per_second
        return found.low * self.replicas, found.high * self.replicas

    def usd_per_million_output_tokens(self) -> tuple[float, float] | None:
        """(cheapest, dearest) of the throughput's range; None without a price."""
        if self.usd_per_hour is None:
            return None
        low, high = self.output_tokens_per_second
        return (self.usd_per_hour / 3600 / high * 1e6, self.usd_per_hour / 3600 / low * 1e6)


@dataclass(frozen=True, slots=True)
class Miss:
    """A choice that does not serve the workload. ``missing_bytes`` per GPU, or 0 when memory is not what lacks."""

    choice: Choice
    reason: str
    missing_bytes: int
    sentence: str
    prediction: VllmPrediction | None = None


@dataclass
class Trial:
    """Shared between the trials of one plan: the question, and what need not be computed twice."""

    request: PlanRequest
    workload: Workload
    memo: Memo = field(default_factory=dict)
    works: dict[tuple[object, ...], tuple[ModelWork, int]] = field(default_factory=dict)
    measured: MeasuredProfiles = field(default_factory=MeasuredProfiles)
    speeds: dict[tuple[str, str], DeviceSpeed | None] = field(default_factory=dict)

    def device_speed(self, choice: Choice, dtype: str) -> DeviceSpeed | None:
        """What the GPU reached in a sweep; None where it was not measured."""
        key = (choice.gpu.id, dtype)
        if key not in self.speeds:
            profile = self.measured.for_gpu(choice.gpu, dtype)
            self.speeds[key] = None if profile is None else DeviceSpeed.of(profile, choice.weights.spec.id, dtype)
        return self.speeds[key]


def try_choice(trial: Trial, choice: Choice) -> Deployment | Miss | None:
    """The smallest number of replicas that serves the workload, or why none does; None where it cannot be divided."""
    try:
        prediction = _predict(trial, choice, _MOST_SEQUENCES if trial.workload.num_users is None else None)
    except KvplanError:
        return None
    if not prediction.fits:
        return _memory_miss(trial, choice, prediction)
    best: Miss | None = None
    most = trial.request.max_gpus // choice.tensor_parallel_size
    for replicas in range(1, most + 1):
        found = _with_replicas(trial, choice, replicas)
        if isinstance(found, Deployment):
            return found
        best = found
    return best


def _predict(trial: Trial, choice: Choice, users: float | None) -> VllmPrediction:
    wanted = users if users is not None else trial.workload.num_users or 1
    rows = min(max(math.ceil(wanted / _SEQUENCE_STEP) * _SEQUENCE_STEP, _SEQUENCE_STEP), _MOST_SEQUENCES)
    settings = replace(
        trial.request.settings,
        max_model_len=trial.workload.longest_context,
        max_num_seqs=rows,
        tensor_parallel_size=choice.tensor_parallel_size,
        kv_cache_dtype=choice.kv_cache_dtype,
    )
    return predict_vllm(choice.weights.spec, choice.gpu, settings, trial.request.engine.version, memo=trial.memo)


def _with_replicas(trial: Trial, choice: Choice, replicas: int) -> Deployment | Miss:
    work, kv_bytes = _work(trial, choice)
    users = _users_per_replica(trial, choice, replicas, work, kv_bytes)
    prediction = _predict(trial, choice, users)
    if not prediction.fits:
        return _memory_miss(trial, choice, prediction)
    capacity = capacity_of(trial, prediction)
    room = capacity.worst_sequences if trial.request.worst_case else capacity.average_sequences
    if users > min(room, _MOST_SEQUENCES):
        return _capacity_miss(trial, choice, prediction, capacity, users, replicas)
    speed = _speed(trial, choice, work, users, kv_bytes)
    check = check_slo(trial.request.slo, speed)
    if not check.possible:
        return _slo_miss(choice, prediction, speed, check)
    limit = _limit(trial, choice, work, kv_bytes, speed, room)
    return Deployment(choice, replicas, prediction, capacity, users, speed, check, limit)


def _work(trial: Trial, choice: Choice) -> tuple[ModelWork, int]:
    key = (choice.tensor_parallel_size, choice.weights.name, choice.kv_cache_dtype)
    if key not in trial.works:
        prediction = _predict(trial, choice, None)
        spec, settings = choice.weights.spec, prediction.settings.serving
        work = model_work(spec, prediction.rank.weight_bytes, settings.dtype, choice.tensor_parallel_size)
        kv_bytes = kv_read_bytes(spec, trial.workload.average_context, cache_settings(spec, settings))
        trial.works[key] = (work, kv_bytes)
    return trial.works[key]


def capacity_of(trial: Trial, prediction: VllmPrediction) -> Capacity:
    """How many sequences of the average and of the longest context one replica holds."""
    shape = request_shape(prediction.settings, vllm_release(prediction.version))
    plan = prediction.rank.blocks
    # Between batches a window holds no tokens in flight: what is used on average, not what admission reserves.
    average = replace(shape, max_model_len=trial.workload.average_context, in_flight_tokens=1)
    each = max(blocks_per_request(plan, average), 1)
    return Capacity(
        average_sequences=prediction.num_blocks // each,
        worst_sequences=prediction.num_blocks // prediction.blocks_per_request,
        average_bytes=each * prediction.bytes_per_block,
        worst_bytes=prediction.blocks_per_request * prediction.bytes_per_block,
    )


def _speed(trial: Trial, choice: Choice, work: ModelWork, users: float, kv_bytes: int) -> ServingSpeed:
    workload = trial.workload
    measured = trial.device_speed(choice, work.compute_dtype)
    return serving_speed(work, choice.gpu, users, workload.input_tokens, workload.output_tokens, kv_bytes, measured)


def _users_per_replica(trial: Trial, choice: Choice, replicas: int, work: ModelWork, kv_bytes: int) -> float:
    """Requests in progress on one replica: given, or the request rate times the time a request takes (Little)."""
    workload = trial.workload
    if workload.requests_per_second is None:
        return math.ceil((workload.num_users or 1) / replicas)
    rate = workload.requests_per_second / replicas
    users = 1.0
    for _ in range(60):
        speed = _speed(trial, choice, work, users, kv_bytes)
        wanted = max(rate * speed.e2el_seconds.middle, 1.0)
        if abs(wanted - users) < 0.01 * users:
            break
        users = min(wanted, _MOST_USERS)
    return math.ceil(users)


def _limit(trial: Trial, choice: Choice, work: ModelWork, kv_bytes: int, speed: ServingSpeed, room: int) -> str:
    """What stops the next users: the service level if it breaks before the pool is full, else the pool."""
    if not trial.request.slo.is_empty:
        full = _speed(trial, choice, work, min(room, _MOST_SEQUENCES), kv_bytes)
        check = check_slo(trial.request.slo, full)
        if check.broken is not None:
            return check.broken
    if room < 1.5 * speed.num_users:
        return "kv"
    return "bandwidth" if speed.bandwidth_bound else "compute"


def _memory_miss(trial: Trial, choice: Choice, prediction: VllmPrediction) -> Miss:
    rank = prediction.rank
    if prediction.outcome == "oom_weights":
        missing = rank.weight_bytes - rank.requested_bytes
        return Miss(choice, "weights", missing, "The weights alone do not fit.", prediction)
    if prediction.outcome == "oom_kv_init":
        missing = prediction.missing_bytes
        return Miss(choice, "weights", missing, "Weights and activations leave no room for a KV cache.", prediction)
    longest = trial.workload.longest_context
    sentence = f"One request of {longest:,} tokens does not fit; {prediction.largest_max_model_len:,} do."
    return Miss(choice, "kv", prediction.missing_bytes, sentence, prediction)


def _capacity_miss(
    trial: Trial, choice: Choice, prediction: VllmPrediction, capacity: Capacity, users: float, replicas: int
) -> Miss:
    worst = trial.request.worst_case
    room = capacity.worst_sequences if worst else capacity.average_sequences
    each = capacity.worst_bytes if worst else capacity.average_bytes
    missing = math.ceil(users) * each - prediction.num_blocks * prediction.bytes_per_block
    context = trial.workload.longest_context if worst else trial.workload.average_context
    sentence = (
        f"{replicas} x {choice.tensor_parallel_size} GPUs hold {replicas * room:,} sequences of {context:,} tokens "
        f"at once; {math.ceil(users) * replicas:,} are needed."
    )
    return Miss(choice, "kv", max(missing, 0), sentence, prediction)


def _slo_miss(choice: Choice, prediction: VllmPrediction, speed: ServingSpeed, check: SloCheck) -> Miss:
    field_name = {"ttft": "ttft_seconds", "tpot": "tpot_seconds", "e2el": "e2el_seconds"}[check.broken or "ttft"]
    predicted = getattr(speed, field_name)
    sentence = (
        f"{(check.broken or '').upper()} would be {predicted.low * 1000:,.0f} to {predicted.high * 1000:,.0f} ms "
        f"with {speed.num_users:,.0f} users on each replica."
    )
    return Miss(choice, check.broken or "slo", 0, sentence, prediction)
