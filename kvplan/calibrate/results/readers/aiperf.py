"""AIPerf's ``profile_export_aiperf.json`` (schema 1.4, AIPerf 0.13): figures over requests, and the configuration.

Its inter-token latency is vLLM's time per output token: (latency - TTFT) / (tokens - 1). Where GPU telemetry ran, the
file names the GPU. Lengths are means over requests, which is exact where they do not vary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kvplan.calibrate.results.outcome import LoadFigures, LoadResult, Results, alike
from kvplan.calibrate.results.readers.fields import Fields
from kvplan.calibrate.results.readers.vllm_bench import with_arrivals
from kvplan.calibrate.results.served import ServedDeployment


def is_aiperf(document: Mapping[str, Any]) -> bool:
    return {"aiperf_version", "input_config"} <= set(document)


def read_aiperf(document: Mapping[str, Any], source: str) -> Results:
    """One load. Left out, with the reason, where requests failed, none was served, or nothing was streamed."""
    fields, found = Fields(document, source), Results()
    requests = fields.inner("request_count")
    count = requests.count("avg") if requests.values else 0
    # The one that is measured; None where there are several.
    phases = [each for each in fields.inner("input_config").objects("phases") if each.text("name") != "warmup"]
    phase = phases[0] if len(phases) == 1 else None
    if not count:
        found.excluded["no request was served"] += 1
    elif fields.inner("error_request_count").optional_number("avg") or _is_cut_short(document):
        found.excluded["some requests failed"] += 1
    elif not fields.inner("time_to_first_token").optional_number("avg"):
        found.excluded["answers were not streamed"] += 1
    elif phase is None:
        found.excluded["its phases have loads of different kinds"] += 1
    else:
        found.loads.append(_load(fields, phase, count))
    return found


def _is_cut_short(document: Mapping[str, Any]) -> bool:
    return bool(document.get("was_cancelled")) or document.get("is_complete") is False


def _load(fields: Fields, phase: Fields, count: int) -> LoadResult:
    prompts, outputs = fields.inner("input_sequence_length"), fields.inner("output_sequence_length")
    requests = alike(count, count * prompts.positive("avg"), count * outputs.positive("avg"))
    rate, concurrency = phase.optional_positive("rate"), phase.optional_positive("concurrency")
    if rate is not None:
        requests = with_arrivals(requests, rate, math.inf if phase.text("type") == "constant" else 1.0)
    return LoadResult(
        source=fields.source,
        served=_served(fields),
        requests=requests,
        max_concurrency=None if concurrency is None else int(concurrency),
        figures=_figures(fields, count * outputs.positive("avg")),
        has_lengths=prompts.optional_number("std") == 0 and outputs.optional_number("std") == 0,
    )


def _served(fields: Fields) -> ServedDeployment:
    models = fields.inner("input_config", "models").objects("items")
    endpoints = fields.inner("telemetry_data", "endpoints").entries()
    gpus = {gpu.text("gpu_name") for endpoint in endpoints for gpu in endpoint.inner("gpus").entries()}
    return ServedDeployment(
        model=models[0].text("name") if len(models) == 1 else None, gpu=gpus.pop() if len(gpus) == 1 else None
    )


def _figures(fields: Fields, output_tokens: float) -> LoadFigures:
    duration = fields.inner("benchmark_duration").positive("avg")
    ttft, tpot = fields.inner("time_to_first_token"), fields.inner("inter_token_latency")
    return LoadFigures(
        duration=duration,
        output_throughput=output_tokens / duration,
        mean_ttft=ttft.seconds("avg"),
        median_ttft=ttft.seconds("p50"),
        mean_tpot=tpot.seconds("avg"),
        median_tpot=tpot.seconds("p50"),
    )
