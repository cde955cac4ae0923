"""One choice tried: as few replicas as serve the load, or what it lacks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from kvplan.catalog.devices.device_support import dtype_on
from kvplan.catalog.devices.gpus import GpuProfile, with_bridges
from kvplan.catalog.devices.measured import MeasuredProfiles
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.errors import KvplanError
from kvplan.estimate.dtypes import serving_dtype
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.engine_speed import engine_speed_model
from kvplan.estimate.speed.latency import SpeedModel
from kvplan.estimate.speed.queueing.front_end import BUSIEST
from kvplan.estimate.speed.steps.clocks import DeviceSpeed
from kvplan.estimate.speed.steps.work import ModelWork, kv_read_bytes, model_work
from kvplan.estimate.vllm.groups import blocks_per_request
from kvplan.estimate.vllm.memo import Memo
from kvplan.estimate.vllm.prediction import (
    VllmPrediction,
    as_attended,
    cache_settings,
    predict_vllm,
    request_shape,
)
from kvplan.estimate.vllm.ranges import kv_pool_low_bytes, sure_num_seqs
from kvplan.estimate.vllm.settings import batch_defaults
from kvplan.planner.choices import misses
from kvplan.planner.choices.deployment import Capacity, Choice, Deployment, Miss
from kvplan.planner.choices.drafting import drafter_bytes, drafting_of
from kvplan.planner.choices.formats import FormatPair, WeightFormat, check_kernels
from kvplan.planner.choices.layouts import layouts_across_nodes, layouts_in_a_node
from kvplan.planner.choices.load import Served, replica_load, serve_users
from kvplan.planner.choices.played import Replica
from kvplan.planner.choices.prefixes import expected_hits, sequences_beside_prefixes
from kvplan.planner.choices.slo_check import SloCheck, check_averages, check_percentiles, within_pool
from kvplan.planner.question.request import PlanRequest, Workload

_SEQUENCE_STEP = 8
_BUNCHED = 3.0
"""Standard deviations of the number in progress that have a seat: more are there once in a thousand moments."""
MOST_SEQUENCES = 1024
"""Sequences per engine in one step that a plan asks for at most."""


@dataclass
class Trial:
    """Shared between the trials of one plan: the question, and what need not be computed twice."""

    request: PlanRequest
    workload: Workload
    measured: MeasuredProfiles = field(default_factory=MeasuredProfiles)
    memo: Memo = field(default_factory=dict)
    works: dict[tuple[object, ...], tuple[ModelWork, int]] = field(default_factory=dict)
    speeds: dict[tuple[str, str], DeviceSpeed | None] = field(default_factory=dict)
    refusals: dict[str, KvplanError] = field(default_factory=dict)
    """The first of each GPU, by its id."""
    predictions: dict[tuple[object, ...], VllmPrediction] = field(default_factory=dict)
    models: dict[tuple[object, ...], SpeedModel] = field(default_factory=dict)
    tried_layouts: dict[tuple[object, ...], tuple[ParallelLayout, ...]] = field(default_factory=dict)
    alone: dict[tuple[object, ...], SloCheck] = field(default_factory=dict)
    """What one request at a time gets, of choices that miss the service level under their load."""
    dearest: Deployment | None = None
    """What costs as much as this, or without prices takes as many GPUs, need not be tried."""

    @cached_property
    def gpus(self) -> tuple[GpuProfile, ...]:
        """Those of the request, with their bridges. UsageError where it asks for some that none of them takes."""
        asked = self.request.gpus
        return with_bridges(asked) if self.request.settings.nvlink_bridge else asked

    def device_speed(self, choice: Choice, speed_format: str) -> DeviceSpeed | None:
        """What the GPU reached in this format; None where it was not measured."""
        key = (choice.gpu.id, speed_format)
        if key not in self.speeds:
            profile = self.measured.for_gpu(choice.gpu, speed_format, self.request.engine.name)
            spec = choice.weights.spec
            self.speeds[key] = None if profile is None else DeviceSpeed.of(profile, spec.id, speed_format)
        return self.speeds[key]

    def layouts(self, weights: WeightFormat, gpu: GpuProfile, *, across_nodes: bool) -> tuple[ParallelLayout, ...]:
        """Ways to spread an instance over nodes like the GPU's, found once for GPUs that are alike in this."""
        key = (weights.name, across_nodes, gpu.max_gpus_per_node, gpu.joins_by_nvlink(gpu.max_gpus_per_node))
        if key not in self.tried_layouts:
            find = layouts_across_nodes if across_nodes else layouts_in_a_node
            self.tried_layouts[key] = find(weights.spec, gpu, self.request.sizes, self.request.max_gpus)
        return self.tried_layouts[key]

    def most_sequences(self, gpu: GpuProfile) -> int:
        """Sequences per engine in one step: no more than it has tokens, as vLLM refuses settings with fewer."""
        asked = self.request.settings
        tokens = asked.max_num_batched_tokens
        if tokens is None:
            release, memory = vllm_release(self.request.engine.version), asked.device_memory_bytes or gpu.memory_bytes
            tokens, _ = batch_defaults(gpu, memory, asked.usage, release, self.workload.longest_context)
        return min(MOST_SEQUENCES, tokens)

    def refuses(self, formats: FormatPair, gpu: GpuProfile) -> bool:
        """Whether the engine has no kernels for these formats there; the reason is kept."""
        try:
            check_kernels(formats, gpu, self.request.engine.version)
        except KvplanError as error:
            self.refusals.setdefault(gpu.id, error)
            return True
        return False

    def most_replicas(self, choice: Choice) -> int:
        """Replicas beside the spare ones that the limit on GPUs allows, and ``dearest``."""
        return self._most_gpus(choice.gpu) // choice.layout.num_gpus - self.request.num_spare_replicas

    def _most_gpus(self, gpu: GpuProfile) -> int:
        limit, dearest = self.request.max_gpus, self.dearest
        if dearest is None:
            return limit
        if gpu.price is None or dearest.usd_per_hour is None:
            return min(limit, dearest.num_gpus - 1)
        if gpu.price.usd_per_hour == 0:
            return limit if dearest.usd_per_hour > 0 else 0
        return min(limit, math.ceil(dearest.usd_per_hour / gpu.price.usd_per_hour) - 1)


def try_choice(trial: Trial, choice: Choice) -> list[Deployment] | Miss | None:
    """The smallest deployment that probably serves the load and the smallest that surely does (often the same one).

    Or what the largest one lacks; None where the model cannot be divided so, or the replicas are too many.
    """
    most = trial.most_replicas(choice)
    if most < 1:
        return None
    tried: dict[int, Deployment | Miss] = {}

    def attempt(replicas: int) -> Deployment | Miss:
        if replicas not in tried:
            tried[replicas] = _with_replicas(trial, choice, replicas)
        return tried[replicas]

    def is_sure(found: Deployment | Miss) -> bool:
        return isinstance(found, Deployment) and found.slo.sure

    try:
        first = attempt(1)
        if isinstance(first, Miss) and first.is_final:
            return first
        fewest = _fewest(most, lambda count: isinstance(attempt(count), Deployment))
    except KvplanError as error:
        trial.refusals.setdefault(choice.gpu.id, error)
        return None
    if fewest is None:
        last = attempt(most)
        return last if isinstance(last, Miss) else None
    found = [each for each in (attempt(fewest),) if isinstance(each, Deployment)]
    surest = fewest if is_sure(attempt(fewest)) else _fewest(most, lambda count: is_sure(attempt(count)), fewest)
    if surest is not None and surest != fewest:
        found += [each for each in (attempt(surest),) if isinstance(each, Deployment)]
    return found


def _fewest(most: int, serves: Callable[[int], bool], least: int = 1) -> int | None:
    """The smallest number from ``least`` to ``most`` that serves: more replicas never serve less."""
    if serves(least):
        return least
    if most <= least or not serves(most):
        return None
    low, high = least, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if serves(middle) else (middle, high)
    return high


def _with_replicas(trial: Trial, choice: Choice, replicas: int) -> Deployment | Miss:
    groups = choice.layout.data_parallel_size
    prediction = _predict(trial, choice, _first_guess(trial, replicas) / groups)
    if not prediction.fits:
        return misses.lacks_memory(trial.workload, choice, replicas, prediction)
    seats = groups * _most_seats(trial, choice, prediction)
    model = speed_model(trial, choice, prediction)
    capacity = capacity_of(trial, choice, prediction)
    served = replica_load(trial.workload, replicas, model, min(_room(trial, capacity), seats))
    if trial.workload.requests_per_second is not None and served.keeps_up:
        # Fewer seats than at first: less for the sampler, more for the pool. As many as are in progress at the slowest
        # speed: too few make requests wait that could run, and more cost little. Requests come in bunches, so more than
        # there are on average: arrivals at random have a standard deviation of the square root of their mean.
        seats_used = min(served.most_users, _room(trial, capacity), seats) / groups
        smaller = _predict(trial, choice, seats_used + _BUNCHED * seats_used**0.5)
        prediction, capacity = smaller, capacity_of(trial, choice, smaller)
    room = min(_room(trial, capacity), seats)
    if not served.keeps_up or served.num_users > room:
        return misses.lacks_room(
            trial.workload, choice, replicas, prediction, capacity, served, seats, trial.request.worst_case
        )
    replica = Replica(trial.workload, choice, replicas, prediction, capacity, model)
    check = _check(trial, replica, served)
    check = within_pool(check, _pool_share(choice, prediction, served.num_users, room))
    if not check.possible:
        if choice.key not in trial.alone:
            trial.alone[choice.key] = _check(trial, replica, serve_users(model, 1))
        return misses.lacks_speed(choice, replicas, prediction, served, check, trial.alone[choice.key])
    rate = trial.workload.requests_per_second
    return Deployment(
        choice=choice,
        replicas=replicas,
        num_spare=trial.request.num_spare_replicas,
        prediction=prediction,
        capacity=capacity,
        served=served,
        slo=check,
        limit=_limit(trial, replica, served, room, seats),
        offered_tokens_per_second=None if rate is None else rate * trial.workload.output_tokens,
        speed_model=model,
    )


def _most_seats(trial: Trial, choice: Choice, prediction: VllmPrediction) -> int:
    """Sequences per engine in one step: no more than the blocks for their states, even at the pool's low end."""
    sure = sure_num_seqs(choice.weights.spec, choice.gpu, prediction)
    return min(trial.most_sequences(choice.gpu), sure or prediction.most_num_seqs or MOST_SEQUENCES)


def _first_guess(trial: Trial, replicas: int) -> float:
    """Requests in progress on one replica: as many as the users, or under a rate as many as there can be."""
    users = trial.workload.num_users
    return MOST_SEQUENCES if users is None else math.ceil(users / replicas)


def _predict(trial: Trial, choice: Choice, users: float) -> VllmPrediction:
    """vLLM's start-up with seats for ``users`` requests in each data-parallel group, or as many as it starts with.

    That are those for which even the low end of the pool has blocks, where each needs one for its states.
    """
    rows = max(math.ceil(users / _SEQUENCE_STEP) * _SEQUENCE_STEP, _SEQUENCE_STEP)
    rows = min(rows, trial.most_sequences(choice.gpu))
    key = (choice.key, rows)
    if key not in trial.predictions:
        found = _predict_rows(trial, choice, rows)
        sure = sure_num_seqs(choice.weights.spec, choice.gpu, found)
        trial.predictions[key] = found if not sure or rows <= sure else _predict_rows(trial, choice, sure)
    return trial.predictions[key]


def _predict_rows(trial: Trial, choice: Choice, rows: int) -> VllmPrediction:
    layout, asked, spec = choice.layout, trial.request.settings, choice.weights.spec
    version = trial.request.engine.version
    settings = replace(
        asked,
        dtype=dtype_on(choice.gpu, spec, serving_dtype(spec.dtype, asked.dtype), asked=asked.dtype, version=version),
        max_model_len=trial.workload.longest_context,
        max_num_seqs=rows,
        tensor_parallel_size=layout.tensor_parallel_size,
        pipeline_parallel_size=layout.pipeline_parallel_size,
        data_parallel_size=layout.data_parallel_size,
        enable_expert_parallel=layout.enable_expert_parallel,
        kv_cache_dtype=choice.kv_cache_dtype,
    )
    return predict_vllm(spec, choice.gpu, settings, version, memo=trial.memo)


def speed_model(trial: Trial, choice: Choice, prediction: VllmPrediction) -> SpeedModel:
    """The speeds of one replica under the workload's lengths: one model for any number of replicas.

    It keeps the steady states that it has found, which their searches share.
    """
    settings = prediction.settings.serving
    shares = trial.workload.pattern.sharing.finds_anything
    capacity = capacity_of(trial, choice, prediction) if shares else None
    hits = None if capacity is None else expected_hits(trial.workload, choice, prediction, capacity)
    key = (choice.key, settings.dtype, settings.max_num_batched_tokens, hits)
    if key not in trial.models:
        drafting = drafting_of(trial.request, trial.workload, choice, prediction)
        trial.models[key] = replace(_speed_model(trial, choice, prediction), hits=hits, drafting=drafting)
    return trial.models[key]


def _speed_model(trial: Trial, choice: Choice, prediction: VllmPrediction) -> SpeedModel:
    work, kv_bytes = _work(trial, choice, prediction)
    workload = trial.workload
    measured = trial.device_speed(choice, work.speed_format)
    engine = trial.request.engine
    if engine.name == "vllm":
        engine = replace(engine, version=prediction.version)
    return engine_speed_model(
        engine,
        work,
        choice.gpu,
        workload.input_tokens,
        workload.output_tokens,
        kv_bytes,
        measured,
        trial.request.settings.moe_backend,
        prediction.settings.serving.max_num_batched_tokens,
    )


def _work(trial: Trial, choice: Choice, prediction: VllmPrediction) -> tuple[ModelWork, int]:
    spec, settings = choice.weights.spec, prediction.settings.serving
    key = (choice.layout, choice.weights.name, settings.kv_cache_dtype, settings.dtype)
    if key not in trial.works:
        spec = as_attended(spec, vllm_release(prediction.version))
        weight_bytes = prediction.rank.weight_bytes - drafter_bytes(choice, prediction)
        work = model_work(spec, weight_bytes, settings.dtype, choice.layout)
        kv_bytes = kv_read_bytes(spec, trial.workload.average_context, cache_settings(spec, settings))
        trial.works[key] = (work, kv_bytes)
    return trial.works[key]


def capacity_of(trial: Trial, choice: Choice, prediction: VllmPrediction) -> Capacity:
    """How many sequences of the average and of the longest context one replica holds."""
    shape = request_shape(prediction.settings, vllm_release(prediction.version))
    plan, groups, workload = prediction.rank.blocks, choice.layout.data_parallel_size, trial.workload
    # Between batches a window holds no tokens in flight: what is used on average, not what admission reserves.
    average = replace(shape, max_model_len=workload.average_context, in_flight_tokens=1)
    each = max(blocks_per_request(plan, average), 1)
    fitting = (sequences_beside_prefixes(workload, choice, prediction, size)
               for size in (each, prediction.blocks_per_request))  # fmt: skip
    average_sequences, worst_sequences = (groups * number for number in fitting)
    return Capacity(
        average_sequences=average_sequences,
        worst_sequences=worst_sequences,
        average_bytes=each * prediction.bytes_per_block,
        worst_bytes=prediction.blocks_per_request * prediction.bytes_per_block,
        planned_tokens=workload.longest_context if trial.request.worst_case else workload.average_context,
        pool_tokens=groups * (prediction.num_blocks // each) * workload.average_context,
    )


_AT_THE_PREDICTION = 0.5
_AT_THE_LOW_END = 0.95
"""Shares of start-ups whose pool is larger: half of them than predicted, and than the low end of the 90 % interval."""


def _pool_share(choice: Choice, prediction: VllmPrediction, num_users: float, room: int) -> float:
    """How much of the range of KV pools holds so many sequences; 1 where its low end does."""
    pool = max(prediction.rank.available_kv_bytes, 1)
    low = kv_pool_low_bytes(choice.weights.spec, choice.gpu, prediction)
    least = int(room * low / pool)
    if num_users <= least:
        return 1.0
    return _AT_THE_PREDICTION + (_AT_THE_LOW_END - _AT_THE_PREDICTION) * (room - num_users) / max(room - least, 1)


def _room(trial: Trial, capacity: Capacity) -> int:
    return capacity.worst_sequences if trial.request.worst_case else capacity.average_sequences


def _check(trial: Trial, replica: Replica, served: Served) -> SloCheck:
    """Against the service level: percentiles of a load with queues, where it has any, only if averages do not fail."""
    slo = trial.request.slo
    check = check_averages(slo, served)
    if not check.possible or not slo.has_percentiles:
        return check
    return check_percentiles(check, slo, served, replica.play(served))


def _limit(trial: Trial, replica: Replica, served: Served, room: int, seats: int) -> str:
    """What stops the next users: the service level if it breaks before the pool is full, else the pool."""
    if not trial.request.slo.is_empty:
        full = check_averages(trial.request.slo, serve_users(replica.model, room))
        if full.broken is not None:
            return full.broken.bound.name
    if served.server_share > BUSIEST:
        return "server"
    if room < 1.5 * served.num_users:
        return "kv" if room < seats else "seats"
    return "bandwidth" if served.speed.bandwidth_bound else "compute"
