"""GuideLLM's ``--output kind=json`` (report version 2, GuideLLM 0.8.1): benchmarks, each with its requests.

Latencies are taken from the requests' own times: GuideLLM's time per output token counts the first token's wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kvplan.calibrate.results.outcome import LoadResult, MeasuredRequest, Results, figures_of, in_order
from kvplan.calibrate.results.readers.fields import Fields
from kvplan.calibrate.results.served import ServedDeployment

_MOST_UNFINISHED: Final = 0.1
_CLOSED: Final = ("concurrent", "synchronous", "throughput")


def is_guidellm(document: Mapping[str, Any]) -> bool:
    return "guidellm_version" in Fields(document, "").inner("metadata").values and "benchmarks" in document


def read_guidellm(document: Mapping[str, Any], source: str) -> Results:
    """Every benchmark of the report."""
    fields, found = Fields(document, source), Results()
    backend = fields.inner("config", "spec", "backend")
    for number, benchmark in enumerate(fields.objects("benchmarks"), start=1):
        name = f"benchmark {number} of {source}"
        found.add(_read(Fields(benchmark.values, name), backend.text("model")))
    return found


def _read(benchmark: Fields, model: str | None) -> Results:
    found, requests = Results(), benchmark.inner("requests")
    answered = [each for each in requests.objects("successful") if each.optional_number("output_tokens")]
    made = benchmark.inner("scheduler_metrics", "requests_made")
    unfinished = (made.optional_number("errored") or 0) + (made.optional_number("incomplete") or 0)
    if not answered:
        found.excluded["no request was served"] += 1
    elif len(answered) < (made.optional_number("successful") or 0):
        found.excluded["only a sample of its requests is stored"] += 1
    elif unfinished > _MOST_UNFINISHED * len(answered):
        found.excluded["more than a tenth of its requests did not end"] += 1
    else:
        found.loads.append(_load(benchmark, [_request(each) for each in answered], model))
    return found


def _request(fields: Fields) -> MeasuredRequest:
    ttft = fields.seconds("time_to_first_token_ms")
    return MeasuredRequest(
        start=fields.number("request_start_time"),
        num_prompt_tokens=fields.count("prompt_tokens"),
        num_output_tokens=fields.count("output_tokens"),
        ttft=ttft,
        latency=fields.positive("request_latency"),
    )


def _load(benchmark: Fields, requests: list[MeasuredRequest], model: str | None) -> LoadResult:
    strategy = benchmark.inner("config", "strategy")
    kind = strategy.text("type_") or ""
    limit = {"concurrent": strategy.optional_positive("streams"), "synchronous": 1.0}.get(kind)
    limit = limit or strategy.optional_positive("max_concurrency")
    return LoadResult(
        source=benchmark.source,
        served=ServedDeployment(model=model),
        requests=in_order(requests, arrive_over_time=kind not in _CLOSED),
        max_concurrency=None if limit is None else int(limit),
        figures=figures_of(requests),
        has_lengths=True,
    )
