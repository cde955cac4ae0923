"""``vllm bench serve --save-result``: one JSON object per load, with or without ``--save-detailed``.

Fields as vllm/benchmarks/serve.py writes them (0.32 and 0.33 read); ``kvplan load --json`` has the same names. With
details every request's length and times are there; without them requests are taken to be alike.

``vllm bench sweep serve``: a folder for each combination, with a result of ``vllm bench serve`` for each run.

The options of the server and of the load that a combination changed stand in the result's file beside its figures
(vllm/benchmarks/sweep/serve.py, 0.32 and 0.33 read). A run that failed leaves ``run=N.failure.json``.

``vllm bench forward --output-json`` (vLLM 0.33): the time of exact batches as CUDA graphs.

A list with an entry for each case: ``requests`` (``query_len`` new tokens, ``kv_len`` tokens after the step,
``num_draft_tokens``) and ``median_us``, the median over replays of the slowest rank (vllm/benchmarks/forward/main.py
and capture.py, 0.33.0 read). Only the model's forward lies between the two events: no output head, no sampling, no
host. The file names neither model nor GPU.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kvplan.calibrate.results.outcome import (
    BatchResult,
    LoadFigures,
    LoadResult,
    MeasuredRequest,
    Results,
    alike,
    figures_of,
    in_order,
)
from kvplan.calibrate.results.readers.fields import Fields, objects_of, read_json
from kvplan.calibrate.results.served import ServedDeployment, served_by
from kvplan.workload.lengths import Lengths
from kvplan.workload.requests import RequestSpec, WorkloadSpec, generate_requests

_DETAILS: Final = ("input_lens", "output_lens", "ttfts", "itls", "start_times")
_ENGINES: Final = {"tensorrt-llm": "trtllm", "sglang": "sglang", "sglang-native": "sglang", "llama.cpp": "llamacpp"}
"""What some of the client's back ends tell of the server; ``openai`` and ``vllm`` speak to any."""


def is_vllm_serve(document: Mapping[str, Any]) -> bool:
    return {"duration", "completed", "total_input_tokens", "total_output_tokens", "mean_ttft_ms"} <= set(document)


def read_vllm_serve(document: Mapping[str, Any], source: str) -> Results:
    """One load. Left out, with the reason, where requests failed or none was served."""
    fields, found = Fields(document, source), Results()
    completed, failed = fields.count("completed"), fields.optional_number("failed")
    if completed < 1:
        found.excluded["no request was served"] += 1
    elif failed or completed < (fields.optional_number("num_prompts") or 0):
        found.excluded["some requests failed"] += 1
    elif fields.has("ramp_up_strategy"):
        found.excluded["the request rate was ramped up"] += 1
    elif fields.count("total_output_tokens") < 1:
        found.excluded["no tokens were generated"] += 1
    else:
        found.loads.append(_load(fields, completed))
    return found


def _load(fields: Fields, completed: int) -> LoadResult:
    rate = _rate(fields)
    measured = _measured_requests(fields)
    concurrency = fields.optional_positive("max_concurrency")
    told = served_by(fields.values, fields.source)
    name = told.model or fields.text("model_id")
    engine = told.engine or _ENGINES.get(fields.text("backend") or "")
    values = {"model": name, "engine": engine}
    return LoadResult(
        source=fields.source,
        served=told.with_values(**values),
        requests=in_order(measured, arrive_over_time=math.isfinite(rate)) if measured else _means(fields, completed),
        max_concurrency=None if concurrency is None else int(concurrency),
        figures=figures_of(measured, fields.positive("duration")) if measured else _figures(fields),
        has_lengths=bool(measured),
    )


def _rate(fields: Fields) -> float:
    """Requests per second; infinite where all were sent at once."""
    return fields.optional_positive("request_rate") or math.inf


def _measured_requests(fields: Fields) -> list[MeasuredRequest]:
    """One for each request; none without ``--save-detailed``."""
    if not fields.has(*_DETAILS):
        return []
    prompts, outputs = fields.counts("input_lens"), fields.counts("output_lens")
    ttfts, starts, gaps = fields.numbers("ttfts"), fields.numbers("start_times"), fields.number_lists("itls")
    if {len(prompts), len(outputs), len(ttfts), len(starts)} != {len(gaps)}:
        raise fields.malformed("itls", "a list with an entry for every request")
    return [
        MeasuredRequest(starts[index], prompts[index], outputs[index], ttfts[index], ttfts[index] + sum(each))
        for index, each in enumerate(gaps)
    ]


def _means(fields: Fields, completed: int) -> tuple[RequestSpec, ...]:
    """Requests alike, at the rate that was asked for."""
    prompts, outputs = fields.count("total_input_tokens"), fields.count("total_output_tokens")
    requests, rate = alike(completed, prompts, outputs), _rate(fields)
    if math.isinf(rate):
        return requests
    return with_arrivals(requests, rate, fields.optional_positive("burstiness") or 1.0)


def with_arrivals(requests: tuple[RequestSpec, ...], rate: float, burstiness: float) -> tuple[RequestSpec, ...]:
    """Arrivals drawn as the benchmark draws them, though not the same."""
    drawn = WorkloadSpec(len(requests), Lengths(1, 1), Lengths(1, 1), request_rate=rate, burstiness=burstiness)
    times = [each.arrival_seconds for each in generate_requests(drawn)]
    return tuple(
        RequestSpec(each.index, each.num_prompt_tokens, each.num_output_tokens, seconds)
        for each, seconds in zip(requests, times, strict=True)
    )


def _figures(fields: Fields) -> LoadFigures:
    duration = fields.positive("duration")
    return LoadFigures(
        duration=duration,
        output_throughput=fields.count("total_output_tokens") / duration,
        mean_ttft=fields.seconds("mean_ttft_ms"),
        median_ttft=fields.seconds("median_ttft_ms"),
        mean_tpot=fields.seconds("mean_tpot_ms"),
        median_tpot=fields.seconds("median_tpot_ms"),
    )


def run_files(directory: Path) -> list[Path]:
    """Results of runs in a combination's folder, an experiment's, or the ``--output-dir`` of several; none deeper."""
    return _files(directory, "run=*.json")


def _files(directory: Path, pattern: str) -> list[Path]:
    return sorted(path for depth in ("", "*/", "*/*/") for path in directory.glob(depth + pattern))


def is_vllm_sweep(directory: Path) -> bool:
    return bool(run_files(directory))


def read_vllm_sweep(directory: Path) -> Results:
    """All runs of the folder; warm-ups and summaries are not runs. Failed ones are counted."""
    found = Results()
    for path in run_files(directory):
        if path.name.endswith(".failure.json"):
            found.excluded["the benchmark failed"] += 1
            continue
        for document in objects_of(read_json(path)) or ({},):
            found.add(_read_run(document, str(path)))
    for _ in _files(directory, "SERVE-*-failure.json"):
        found.excluded["the server did not start"] += 1
    return found


def _read_run(document: Mapping[str, Any], source: str) -> Results:
    if is_vllm_serve(document):
        return read_vllm_serve({"engine": "vllm", **document}, source)
    return Results(excluded=Counter(["no result of a served load"]))


def is_vllm_forward(documents: Sequence[Mapping[str, Any]]) -> bool:
    return all({"case", "requests", "median_us"} <= set(each) for each in documents)


def read_vllm_forward(documents: Sequence[Mapping[str, Any]], source: str) -> Results:
    """Every case but those with a drafter, whose forward is timed along."""
    found = Results()
    for document in documents:
        fields = Fields(document, f"case {document['case']} of {source}")
        requests = fields.objects("requests")
        if any(each.optional_number("num_draft_tokens") for each in requests):
            found.excluded["a drafter ran along"] += 1
        elif not requests or fields.number("median_us") <= 0:
            found.excluded["nothing was timed"] += 1
        else:
            sizes = tuple((each.count("query_len"), each.count("kv_len")) for each in requests)
            ranks = fields.values.get("ranks")
            tp = len(ranks) if isinstance(ranks, list) and len(ranks) > 1 else None
            served = ServedDeployment(engine="vllm", tensor_parallel_size=tp)
            found.batches.append(BatchResult(fields.source, served, sizes, fields.number("median_us") / 1e6))
    return found
