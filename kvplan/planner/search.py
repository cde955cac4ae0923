"""All choices tried and ranked; when none serves, the nearest miss and the cheapest change that would."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvplan.catalog.gpus import load_gpus
from kvplan.catalog.measured import MeasuredProfiles
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import KvplanError
from kvplan.planner.candidate import Choice, Deployment, Miss, Trial, try_choice
from kvplan.planner.formats import runs_on, weight_formats
from kvplan.planner.request import PlanRequest, Workload, complete
from kvplan.planner.rule_of_thumb import RuleOfThumb, rule_of_thumb

_SIZES = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Fix:
    """A change after which the plan has an answer: ``sentence`` says it, ``deployment`` is the answer."""

    sentence: str
    deployment: Deployment


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer: deployments best first; without any, the nearest miss and the cheapest fix."""

    spec: ModelSpec
    request: PlanRequest
    workload: Workload
    deployments: tuple[Deployment, ...]
    nearest_miss: Miss | None
    fix: Fix | None
    rule: RuleOfThumb | None
    num_tried: int


def make_plan(spec: ModelSpec, request: PlanRequest, measured: MeasuredProfiles = MeasuredProfiles()) -> Plan:
    """Try every GPU, size and format of ``request`` and rank what serves it. ``measured``: speeds that are known."""
    trial = Trial(request, complete(request, spec), measured=measured)
    found, misses, tried = [], [], 0
    for choice in choices(spec, request):
        tried += 1
        result = try_choice(trial, choice)
        if isinstance(result, Deployment):
            found.append(result)
        elif isinstance(result, Miss):
            misses.append(result)
    if not found and not misses:
        raise KvplanError(
            f"{spec.id} cannot be divided over the GPUs of this plan.", hint="allow other GPUs, or raise --max-gpus"
        )
    found.sort(key=_rank)
    miss = None if found else nearest(misses)
    return Plan(
        spec=spec,
        request=request,
        workload=trial.workload,
        deployments=tuple(found),
        nearest_miss=miss,
        fix=None if miss is None else cheapest_fix(spec, request, miss, measured),
        rule=rule_of_thumb(spec, request, trial.workload),
        num_tried=tried,
    )


def choices(spec: ModelSpec, request: PlanRequest) -> Iterator[Choice]:
    """Every combination worth trying: GPUs that have kernels for the formats, sizes that a node and the limit allow."""
    for weights in weight_formats(spec, request.quantizations, request.settings.dtype):
        for kv_cache_dtype in request.kv_cache_dtypes:
            for gpu in request.gpus:
                if not runs_on(weights, kv_cache_dtype, gpu):
                    continue
                for size in _SIZES:
                    if size <= min(request.max_gpus, gpu.max_gpus_per_node):
                        yield Choice(gpu, size, weights, kv_cache_dtype)


def _rank(deployment: Deployment) -> tuple[object, ...]:
    """Sure of its service level first, then cheap (known prices before unknown ones), then few GPUs, then fast."""
    cost = deployment.usd_per_hour
    return (
        not deployment.slo.sure,
        cost is None,
        cost if cost is not None else 0.0,
        deployment.num_gpus,
        deployment.num_gpus * deployment.choice.gpu.memory_bytes,
        -deployment.speed.output_tokens_per_second.middle,
    )


def nearest(misses: list[Miss]) -> Miss:
    """The miss that lacks the fewest bytes over all its GPUs; one that lacks only speed is nearer still."""
    return min(misses, key=lambda miss: (miss.missing_bytes > 0, miss.missing_bytes * miss.choice.tensor_parallel_size))


def cheapest_fix(
    spec: ModelSpec, request: PlanRequest, miss: Miss, measured: MeasuredProfiles = MeasuredProfiles()
) -> Fix | None:
    """The first change, from free to dear, that gives the plan an answer on the GPU of the nearest miss (or any)."""
    gpu = miss.choice.gpu
    same = replace(request, gpus=(gpu,))
    longest = miss.prediction.largest_max_model_len if miss.prediction is not None else 0
    changes: list[tuple[str, PlanRequest]] = [
        ("keep the KV cache in 8 bits (--kv-cache-dtype fp8)", replace(same, kv_cache_dtypes=("fp8",))),
        ("store the weights in 8 bits (--quantization fp8)", replace(same, quantizations=("fp8",))),
        (
            "store weights and KV cache in 8 bits (--quantization fp8 --kv-cache-dtype fp8)",
            replace(same, quantizations=("fp8",), kv_cache_dtypes=("fp8",)),
        ),
        (
            "store the weights in 4 bits and the KV cache in 8 (--quantization awq --kv-cache-dtype fp8)",
            replace(same, quantizations=("awq",), kv_cache_dtypes=("fp8",)),
        ),
    ]
    if longest and request.average_context is not None and request.average_context <= longest:
        shorter = replace(same, longest_context=longest)
        changes.append((f"limit sequences to {longest:,} tokens (--ctx-max {longest})", shorter))
    for factor in (2, 4, 8):
        more = request.max_gpus * factor
        changes.append((f"allow {more} GPUs (--max-gpus {more})", replace(same, max_gpus=more)))
        eight_bit = replace(same, max_gpus=more, quantizations=("fp8",), kv_cache_dtypes=("fp8",))
        sentence = f"allow {more} GPUs and 8 bits (--max-gpus {more} --quantization fp8 --kv-cache-dtype fp8)"
        changes.append((sentence, eight_bit))
    others = tuple(each for each in load_gpus() if not each.is_cpu)
    changes.append(("use other GPUs (leave out --gpu)", replace(request, gpus=others)))
    for sentence, changed in changes:
        answer = _first(spec, changed, measured)
        if answer is not None:
            return Fix(sentence, answer)
    return None


def _first(spec: ModelSpec, request: PlanRequest, measured: MeasuredProfiles) -> Deployment | None:
    try:
        trial = Trial(request, complete(request, spec), measured=measured)
    except KvplanError:
        return None
    found = [result for choice in choices(spec, request) if isinstance(result := try_choice(trial, choice), Deployment)]
    return min(found, key=_rank, default=None)
