"""One model over 1 to 64 GPUs: the throughput of each layout by the steady state's formula and by playing its load."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.devices.measured import MeasuredProfiles
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.queueing.loads import Lengths, PlayedLoad
from kvplan.estimate.speed.queueing.play import play
from kvplan.estimate.speed.queueing.rules import vllm_rules
from kvplan.estimate.vllm.prediction import predict_vllm
from kvplan.planner.choices.deployment import Choice
from kvplan.planner.choices.formats import weight_formats
from kvplan.planner.choices.trial import Trial, capacity_of, speed_model
from kvplan.planner.question.request import PlanRequest, Workload
from kvplan.settings import ServingSettings

PROMPT_TOKENS: Final = 1024
ANSWER_TOKENS: Final = 256
USERS_PER_GPU: Final = 32
_LEAST: Final = 0.5
_ROUNDS: Final = 3
LAYOUTS: Final = (
    (1, 1, 1),
    (2, 1, 1),
    (4, 1, 1),
    (8, 1, 1),
    (8, 2, 1),
    (8, 1, 2),
    (8, 4, 1),
    (8, 1, 4),
    (8, 8, 1),
    (8, 1, 8),
)
"""(tensor, pipeline, replicas): tensor parallelism within a node of eight, stages and replicas across nodes."""


@dataclass(frozen=True, slots=True)
class PaperPoint:
    """Output tokens per second of all GPUs; None where the weights do not fit."""

    tensor: int
    pipeline: int
    replicas: int
    steady: float | None
    played: float | None

    @property
    def num_gpus(self) -> int:
        return self.tensor * self.pipeline * self.replicas


def paper_points(model: str, gpu: str, measured: MeasuredProfiles) -> Iterator[PaperPoint]:
    """Of ``model`` on vLLM's latest release, ``USERS_PER_GPU`` users for each GPU."""
    for tensor, pipeline, replicas in LAYOUTS:
        yield _point(model, gpu, measured, tensor, pipeline, replicas)


def _point(
    model: str, gpu_name: str, measured: MeasuredProfiles, tensor: int, pipeline: int, replicas: int
) -> PaperPoint:
    spec, gpu = resolve_model(model), find_gpu(gpu_name)
    users = USERS_PER_GPU * tensor * pipeline
    layout = ParallelLayout(tensor_parallel_size=tensor, pipeline_parallel_size=pipeline)
    settings = ServingSettings(
        tensor_parallel_size=tensor,
        pipeline_parallel_size=pipeline,
        max_model_len=2048,
        max_num_seqs=users,
        max_num_batched_tokens=8192,
    )
    workload = Workload(
        num_users=users,
        requests_per_second=None,
        average_context=PROMPT_TOKENS + ANSWER_TOKENS // 2,
        longest_context=2048,
        input_tokens=PROMPT_TOKENS,
        output_tokens=ANSWER_TOKENS,
        assumptions=(),
    )
    trial = Trial(PlanRequest(engine=EngineChoice("vllm", "latest"), settings=settings), workload, measured)
    choice = Choice(gpu, layout, weight_formats(spec, None)[0], "auto")
    start = predict_vllm(spec, gpu, settings, "latest")
    if not start.fits:
        return PaperPoint(tensor, pipeline, replicas, None, None)
    speeds = speed_model(trial, choice, start)
    tokens = capacity_of(trial, choice, start).average_sequences * workload.average_context
    rules = vllm_rules(start.settings.serving, vllm_release(start.version), tokens)
    rules = rules.over_groups(1, pipeline)
    lengths = [Lengths(mean, "uniform", _LEAST) for mean in (PROMPT_TOKENS, ANSWER_TOKENS)]
    load = PlayedLoad(lengths[0], lengths[1], _ROUNDS * users, max_concurrency=users)
    played = play(load, rules, speeds.steps).output_throughput
    steady = speeds.steady(users, "middle").requests_per_second * ANSWER_TOKENS
    return PaperPoint(tensor, pipeline, replicas, replicas * steady, replicas * played)
