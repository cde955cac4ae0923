"""Where nothing serves a load: the first change, from free to dear, after which something does."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvplan.catalog.devices.gpus import load_gpus
from kvplan.catalog.devices.measured import MeasuredProfiles
from kvplan.planner.choices.deployment import Miss, PlannedDeployment
from kvplan.planner.question.request import MOST_GPUS, PlanRequest
from kvplan.planner.question.slo import Slo
from kvplan.planner.search.plan import FirstDeployments, PlanAnswer

_SLACK = (1.0, 1.25, 1.6, 2.5, 5.0)


@dataclass(frozen=True, slots=True)
class Fix:
    """A change after which the plan has an answer: ``sentence`` says it, ``deployment`` is the answer."""

    sentence: str
    deployment: PlannedDeployment


def cheapest_fix(plan: PlanAnswer, measured: MeasuredProfiles = MeasuredProfiles()) -> Fix | None:
    """None where the plan has an answer, or no single change gives it one."""
    if plan.deployments:
        return None
    sure = next((each.deployment for each in plan.alternatives if each.deployment.verdict.meets), None)
    if sure is not None:
        return Fix(f"change the format ({_format_options(sure)})", sure)
    if plan.too_dear is not None and plan.too_dear.usd_per_hour is not None:
        dear = plan.too_dear.usd_per_hour
        return Fix(f"the cheapest that serves costs ${dear:,.2f} per hour (--budget {dear:.2f})", plan.too_dear)
    first = FirstDeployments(plan.spec, measured)
    for sentence, changed in _changes(plan):
        answer = first.of(changed)
        if answer is not None:
            return Fix(sentence.format(num_gpus=answer.num_gpus), answer)
    return None


def _format_options(deployment: PlannedDeployment) -> str:
    choice, options = deployment.choice, []
    if not choice.weights.is_published:
        options.append(f"--quantization {choice.weights.name}")
    if choice.kv_cache_dtype != "auto":
        options.append(f"--kv-cache-dtype {choice.kv_cache_dtype}")
    return " ".join(options)


def _changes(plan: PlanAnswer) -> Iterator[tuple[str, PlanRequest]]:
    request, miss = plan.request, plan.nearest_miss
    # What came nearest comes nearest to the changed question too; among all GPUs a hint would play hundreds of loads.
    near = request if miss is None else replace(request, gpus=(miss.choice.gpu,))
    if miss is not None and miss.kind == "context" and miss.prediction is not None:
        longest = miss.prediction.largest_max_model_len
        if longest and (request.average_context or 0) <= longest:
            yield (
                f"limit sequences to {longest:,} tokens (--ctx-max {longest})",
                replace(near, longest_context=longest),
            )
    if miss is not None and miss.kind == "slo":
        yield from _slower(near, miss)
    if miss is not None and miss.reason == "seats" and request.settings.max_num_batched_tokens is not None:
        roomy = replace(request.settings, max_num_batched_tokens=None)
        yield "leave --max-num-batched-tokens out", replace(request, settings=roomy)
    yield "raise --max-gpus to {num_gpus}", replace(near, max_gpus=MOST_GPUS)
    fewer_bytes = replace(request, quantizations=("awq",), kv_cache_dtypes=("fp8",))
    if plan.spec.quantization is None:
        yield "store the weights in 4 bits and the KV cache in 8 (--quantization awq --kv-cache-dtype fp8)", fewer_bytes
    yield "use other GPUs (leave out --gpu)", replace(request, gpus=tuple(gpu for gpu in load_gpus() if not gpu.is_cpu))
    yield (
        "use other GPUs, and --max-gpus {num_gpus}",
        replace(request, gpus=tuple(gpu for gpu in load_gpus() if not gpu.is_cpu), max_gpus=MOST_GPUS),
    )
    if not request.slo.is_empty:  # several bounds that nothing keeps
        yield "leave --slo out", replace(request, slo=Slo())


def _slower(request: PlanRequest, miss: Miss) -> Iterator[tuple[str, PlanRequest]]:
    """The bound that is missed by most, relaxed to what the nearest choice would reach and more, rounded up."""
    bound = next((each for each in request.slo.bounds() if each.name == miss.reason), None)
    if bound is None or not math.isfinite(miss.shortfall):
        return
    for factor in _SLACK:  # what one request alone reaches is too little for many
        reached = _rounded_up(bound.seconds * (1 + miss.shortfall) * factor * 1000)
        relaxed = request.slo.with_bound(bound._replace(seconds=reached / 1000))
        yield f"allow {bound.word}:{reached:g}", replace(request, slo=relaxed)


def _rounded_up(milliseconds: float) -> float:
    """To two digits: 1.23 -> 1.3, 412 -> 420."""
    if milliseconds <= 0:
        return milliseconds
    digits = f"{milliseconds:.1e}"
    rounded = float(digits)
    if rounded < milliseconds:
        exponent = int(digits.split("e")[1])
        rounded += 10.0 ** (exponent - 1)
    return rounded
