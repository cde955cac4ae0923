"""What the candidates of one plan share: the question, predicted start-ups, speeds, and what a pool holds.

Two more follow from them for each deployment: what it finds in its prefix cache of the prompts that a load sends, and
how many sequences that leaves room for. A prefix that running sequences share is held once on each data-parallel group.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

from kvplan.catalog.devices.device_support import dtype_on
from kvplan.catalog.devices.gpus import GpuProfile, as_equipped
from kvplan.catalog.devices.measured import MeasuredProfiles
from kvplan.catalog.releases.sglang import sglang_release
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.errors import KvplanError
from kvplan.estimate.dtypes import serving_dtype
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.sglang_share import captures_prompts
from kvplan.estimate.speculation import draft_work
from kvplan.estimate.speed.engine_speed import engine_speed_model
from kvplan.estimate.speed.latency import SpeedModel
from kvplan.estimate.speed.queueing.drafting import Drafting
from kvplan.estimate.speed.queueing.sharing import ExpectedHits
from kvplan.estimate.speed.queues import Queues
from kvplan.estimate.speed.steps.clocks import DeviceSpeed
from kvplan.estimate.speed.steps.work import ModelWork, kv_read_bytes, model_work
from kvplan.estimate.vllm.groups import blocks_per_request
from kvplan.estimate.vllm.memo import Memo
from kvplan.estimate.vllm.prediction import (
    VllmPrediction,
    as_attended,
    cache_settings,
    drafter_bytes,
    predict_vllm,
    request_shape,
)
from kvplan.estimate.vllm.prefix_hits import PrefixHits, prefix_hits, shared_blocks
from kvplan.estimate.vllm.ranges import sure_num_seqs
from kvplan.estimate.vllm.settings import device_batch_defaults
from kvplan.estimate.vllm.vision import whole_item_tokens
from kvplan.planner.choices.deployment import Capacity, DeploymentChoice
from kvplan.planner.choices.formats import FormatPair, WeightFormat, check_kernels
from kvplan.planner.choices.layouts import layouts_across_nodes, layouts_in_a_node
from kvplan.planner.question.request import PlanRequest, Workload

_SEQUENCE_STEP = 8
MOST_SEQUENCES = 1024
"""Sequences per engine in one step that a plan asks for at most."""
_STEP_TOKENS = (2048, 4096, 8192, 16384)
"""Token budgets of a step that are tried beside the engine's default: vLLM's defaults on small and large GPUs, and one
between them."""


@dataclass
class PlanBasis:
    """What all candidates of one plan stand on: the question, and what need not be computed twice."""

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
    usual_models: dict[tuple[object, ...], SpeedModel] = field(default_factory=dict)
    """Speeds with graphs and the default token budget, by layout and formats."""
    plays: dict[tuple[object, ...], Queues | None] = field(default_factory=dict)
    """By choice and replicas: no bound decides how a load is served."""
    tried_layouts: dict[tuple[object, ...], tuple[ParallelLayout, ...]] = field(default_factory=dict)

    def with_bounds_of(self, request: PlanRequest) -> PlanBasis | None:
        """The same for ``request``, with what was found; None where it differs in more than its bounds."""
        is_alike = replace(request, slo=self.request.slo) == self.request
        return replace(self, request=request) if is_alike else None

    @cached_property
    def gpus(self) -> tuple[GpuProfile, ...]:
        """GPUs of the request, with bridges and network. UsageError for bridges that none of them takes."""
        asked = self.request.settings
        return as_equipped(
            self.request.gpus,
            nvlink_bridge=asked.nvlink_bridge,
            network_bytes_per_second=asked.network_bytes_per_second,
        )

    def device_speed(self, choice: DeploymentChoice, speed_format: str) -> DeviceSpeed | None:
        """What the GPU reached in this format; None where it was not measured."""
        key = (choice.gpu.id, speed_format)
        if key not in self.speeds:
            profile = self.measured.for_gpu(choice.gpu, speed_format, self.request.engine.name)
            spec = choice.weights.spec
            self.speeds[key] = None if profile is None else DeviceSpeed.of(profile, spec.id, speed_format)
        return self.speeds[key]

    def layouts(self, weights: WeightFormat, gpu: GpuProfile, *, across_nodes: bool) -> tuple[ParallelLayout, ...]:
        """Ways to spread an instance over nodes like the GPU's, found once for GPUs that are alike in this."""
        most = self.request.most_gpus(gpu)
        alike = (gpu.max_gpus_per_node, gpu.nvlink_gpus, gpu.joins_by_nvlink(gpu.max_gpus_per_node))
        key = (weights.name, across_nodes, most, *alike)
        if key not in self.tried_layouts:
            find = layouts_across_nodes if across_nodes else layouts_in_a_node
            self.tried_layouts[key] = find(weights.spec, gpu, self.request.sizes, most)
        return self.tried_layouts[key]

    def default_step_tokens(self, gpu: GpuProfile) -> int:
        """The token budget of a step where nobody gives one, whatever the model."""
        return self._batch_defaults(gpu)[0]

    def _batch_defaults(self, gpu: GpuProfile) -> tuple[int, int]:
        if gpu.id not in self._defaults:
            asked, release = self.request.settings, vllm_release(self.request.engine.version)
            memory = asked.device_memory_bytes or gpu.memory_bytes
            found = device_batch_defaults(gpu, memory, asked.usage, release, self.workload.longest_context)
            self._defaults[gpu.id] = found
        return self._defaults[gpu.id]

    @cached_property
    def _defaults(self) -> dict[str, tuple[int, int]]:
        """Found so far, by GPU."""
        return {}

    def given_sequences(self, gpu: GpuProfile) -> int | None:
        """Sequences per step that nobody may change; None where a plan finds them."""
        asked = self.request.settings.max_num_seqs
        return self._batch_defaults(gpu)[1] if asked is None and self.request.as_started else asked

    def other_step_tokens(self, choice: DeploymentChoice) -> tuple[int, ...]:
        """Budgets to try beside the default; none where one was asked for, or prompts are read whole."""
        if self.request.settings.max_num_batched_tokens is not None or self.request.as_started or choice.gpu.is_cpu:
            return ()
        if not vllm_release(self.request.engine.version).v1:
            return ()
        least, default = self.least_step_tokens(choice), self.default_step_tokens(choice.gpu)
        return tuple(each for each in _STEP_TOKENS if each >= least and each != default)

    def step_budgets(self, choice: DeploymentChoice) -> tuple[int, ...]:
        """Every budget that is tried, the one that was asked for or the default first."""
        default = max(self.default_step_tokens(choice.gpu), self.least_step_tokens(choice))
        return (self.request.settings.max_num_batched_tokens or default, *self.other_step_tokens(choice))

    def least_step_tokens(self, choice: DeploymentChoice) -> int:
        """vLLM raises its default to this and starts with no fewer."""
        release = vllm_release(self.request.engine.version)
        return whole_item_tokens(choice.weights.spec, self.request.settings, release)

    def most_sequences(self, choice: DeploymentChoice) -> int:
        """Seats of an engine at most: no more than a step has tokens, as vLLM refuses settings with fewer."""
        asked = self.request.settings
        tokens = choice.max_num_batched_tokens or asked.max_num_batched_tokens
        seats = choice.max_num_seqs or self.given_sequences(choice.gpu) or MOST_SEQUENCES
        return min(seats, tokens or self.default_step_tokens(choice.gpu))

    def refuses(self, formats: FormatPair, gpu: GpuProfile) -> bool:
        """Whether the engine has no kernels for these formats there; the reason is kept."""
        try:
            check_kernels(formats, gpu, self.request.engine.version)
        except KvplanError as error:
            self.refusals.setdefault(gpu.id, error)
            return True
        return False

    def num_gpus(self, choice: DeploymentChoice, replicas: int) -> int:
        """GPUs of so many replicas and the spare ones."""
        return (replicas + self.request.num_spare_replicas) * choice.layout.num_gpus

    def most_replicas(self, choice: DeploymentChoice) -> int:
        """Replicas beside the spare ones that the limit on GPUs allows."""
        return self.request.most_gpus(choice.gpu) // choice.layout.num_gpus - self.request.num_spare_replicas


def predict(basis: PlanBasis, choice: DeploymentChoice, users: float) -> VllmPrediction:
    """vLLM's start-up with seats for ``users`` requests in each data-parallel group, or as many as it starts with.

    That are those for which even the low end of the pool has blocks, where each needs one for its states.
    """
    rows = max(math.ceil(users / _SEQUENCE_STEP) * _SEQUENCE_STEP, _SEQUENCE_STEP)
    rows = min(choice.max_num_seqs or basis.given_sequences(choice.gpu) or rows, basis.most_sequences(choice))
    key = (choice.key, rows)
    if key not in basis.predictions:
        found = _predict_rows(basis, choice, rows)
        sure = sure_num_seqs(choice.weights.spec, choice.gpu, found)
        basis.predictions[key] = found if not sure or rows <= sure else _predict_rows(basis, choice, sure)
    return basis.predictions[key]


def _predict_rows(basis: PlanBasis, choice: DeploymentChoice, rows: int) -> VllmPrediction:
    layout, asked, spec = choice.layout, basis.request.settings, choice.weights.spec
    version = basis.request.engine.version
    tokens = choice.max_num_batched_tokens or asked.max_num_batched_tokens
    if tokens is None and rows * basis.workload.longest_context < basis.least_step_tokens(choice):
        tokens = basis.least_step_tokens(choice)  # the release lowers its default to what the seats can fill, and stops
    settings = replace(
        asked,
        dtype=dtype_on(choice.gpu, spec, serving_dtype(spec.dtype, asked.dtype), asked=asked.dtype, version=version),
        max_model_len=basis.workload.longest_context,
        max_num_seqs=rows,
        max_num_batched_tokens=tokens,
        tensor_parallel_size=layout.tensor_parallel_size,
        pipeline_parallel_size=layout.pipeline_parallel_size,
        data_parallel_size=layout.data_parallel_size,
        enable_expert_parallel=layout.enable_expert_parallel,
        kv_cache_dtype=choice.kv_cache_dtype,
        enforce_eager=asked.enforce_eager or choice.enforce_eager,
    )
    return predict_vllm(spec, choice.gpu, settings, version, memo=basis.memo)


def speed_model(basis: PlanBasis, choice: DeploymentChoice, prediction: VllmPrediction) -> SpeedModel:
    """The speeds of one replica under the workload's lengths: one model for any number of replicas.

    It keeps the steady states that it has found, which their searches share.
    """
    settings = prediction.settings.serving
    shares = basis.workload.pattern.sharing.finds_anything
    capacity = capacity_of(basis, choice, prediction) if shares else None
    hits = None if capacity is None else expected_hits(basis.workload, choice, prediction, capacity)
    key = (choice.speed_key, settings.dtype, settings.max_num_batched_tokens, hits)
    if key not in basis.models:
        drafting = drafting_of(basis.request, basis.workload, choice, prediction)
        basis.models[key] = replace(_speed_model(basis, choice, prediction), hits=hits, drafting=drafting)
    return basis.models[key]


def _speed_model(basis: PlanBasis, choice: DeploymentChoice, prediction: VllmPrediction) -> SpeedModel:
    work, kv_bytes = _work(basis, choice, prediction)
    workload = basis.workload
    measured = basis.device_speed(choice, work.speed_format)
    engine = basis.request.engine
    if engine.name == "vllm":
        engine = replace(engine, version=prediction.version)
    model = engine_speed_model(
        engine,
        work,
        choice.gpu,
        workload.input_tokens,
        workload.output_tokens,
        kv_bytes,
        measured,
        basis.request.settings.moe_backend,
        prediction.settings.serving.max_num_batched_tokens,
        is_eager=prediction.settings.serving.enforce_eager,
        captures_prompts=_captures_prompts(basis, choice),
    )
    scale = basis.measured.server_scale(choice.gpu, choice.layout.sizes, work.speed_format)
    return replace(model, scale=scale, offloaded_bytes=prediction.rank.offloaded_bytes)


def _captures_prompts(basis: PlanBasis, choice: DeploymentChoice) -> bool:
    """Whether SGLang captures steps that read prompts, in pieces."""
    engine, layout = basis.request.engine, choice.layout
    if engine.name != "sglang":
        return False
    spec, stages, groups = choice.weights.spec, layout.pipeline_parallel_size, layout.data_parallel_size
    return captures_prompts(spec, choice.gpu, stages, groups, sglang_release(engine.version))


def _work(basis: PlanBasis, choice: DeploymentChoice, prediction: VllmPrediction) -> tuple[ModelWork, int]:
    spec, settings = choice.weights.spec, prediction.settings.serving
    key = (choice.layout, choice.weights.name, settings.kv_cache_dtype, settings.dtype)
    if key not in basis.works:
        spec = as_attended(spec, vllm_release(prediction.version))
        rank = prediction.rank
        weight_bytes = rank.weight_bytes + rank.offloaded_bytes - _drafter_bytes(choice, prediction)
        work = model_work(spec, weight_bytes, settings.dtype, choice.layout)
        kv_bytes = kv_read_bytes(spec, basis.workload.average_context, cache_settings(spec, settings))
        basis.works[key] = (work, kv_bytes)
    return basis.works[key]


def capacity_of(basis: PlanBasis, choice: DeploymentChoice, prediction: VllmPrediction) -> Capacity:
    """How many sequences of the average and of the longest context one replica holds."""
    shape = request_shape(prediction.settings, vllm_release(prediction.version))
    plan, groups, workload = prediction.rank.blocks, choice.layout.data_parallel_size, basis.workload
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
        planned_tokens=workload.longest_context if basis.request.worst_case else workload.average_context,
        pool_tokens=groups * (prediction.num_blocks // each) * workload.average_context,
    )


def _drafter_bytes(choice: DeploymentChoice, prediction: VllmPrediction) -> int:
    release = vllm_release(prediction.version)
    return drafter_bytes(choice.weights.spec, choice.gpu, prediction.settings.serving, release)


def drafting_of(
    request: PlanRequest, workload: Workload, choice: DeploymentChoice, prediction: VllmPrediction
) -> Drafting | None:
    """None without a drafter."""
    spec, settings, rate = choice.weights.spec, prediction.settings.serving, request.settings.acceptance_rate
    if spec.drafter is None:
        return None
    assert rate is not None, "asked for with the drafter"
    weights, cache = _drafter_bytes(choice, prediction), cache_settings(spec, settings)
    layout: ParallelLayout = choice.layout
    return Drafting(draft_work(spec, spec.drafter, weights, cache, layout, workload.average_context), rate)


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
