"""A line of speeds.csv: what was served, under which load, and what was measured."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PUBLISHED = Path(__file__).parent / "speeds.csv"

_PREFIX_CACHE_SERVED = ("prefix cache is on", "later runs can hit the prefix cache")
_WARMING_UP = "the server was still warming up"
_NOT_THE_LIMIT = "does not bind"
_PER_GPU = re.compile(r"output_tput_per_gpu ([\d.]+)")


@dataclass(frozen=True, slots=True)
class Measured:
    """Milliseconds and output tokens per second of all GPUs; None where it was not published or cannot be meant.

    ``ttft_kind``, ``tpot_kind``: "mean" or "median", as published.
    """

    ttft_ms: float | None
    tpot_ms: float | None
    output_throughput: float | None
    ttft_kind: str = "mean"
    tpot_kind: str = "mean"


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """``text``: the line as it stands, by column; the rest of it in numbers. None: not stated.

    ``max_concurrency``: requests in flight at most; ``request_rate``: per second, None where all are sent at once.
    """

    text: Mapping[str, str]
    num_gpus: int
    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    input_tokens: float
    output_tokens: float
    num_prompts: int | None
    max_concurrency: int | None
    request_rate: float | None
    measured: Measured

    @property
    def id(self) -> str:
        return self.text["id"]

    @property
    def grade(self) -> str:
        return self.text["grade"]

    @property
    def notes(self) -> str:
        return self.text["notes"]

    @property
    def source(self) -> str:
        """``gpustack`` of gpustack-001."""
        return self.id.rsplit("-", 1)[0]


def read_rows(path: Path = PUBLISHED) -> list[PublishedRow | str]:
    """All rows in order; the id and a reason in words for one that lacks what a prediction needs."""
    with path.open(encoding="utf-8", newline="") as file:
        return [parse_row(text) for text in csv.DictReader(file)]


def parse_row(text: Mapping[str, str]) -> PublishedRow | str:
    """One line, by column; the reason in words where it lacks what a prediction needs."""
    input_tokens, output_tokens = _number(text["input_len"]), _number(text["output_len"])
    if not input_tokens or not output_tokens:
        return f"{text['id']}: lengths are not stated"
    if text["spec_decode"]:
        return f"{text['id']}: speculative decoding whose acceptance is not stated"
    if _WARMING_UP in text["notes"]:
        return f"{text['id']}: the server was still warming up, as its later runs show"
    tensor, pipeline = _count(text["tp"]) or 1, _count(text["pp"]) or 1
    num_gpus = _instance_gpus(text, tensor * pipeline)
    return PublishedRow(
        text=text,
        num_gpus=num_gpus,
        tensor_parallel_size=tensor,
        pipeline_parallel_size=pipeline,
        data_parallel_size=_count(text["dp"]) or 1,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        num_prompts=_count(text["num_prompts"]),
        max_concurrency=None if _NOT_THE_LIMIT in text["notes"] else _count(text["max_concurrency"]),
        request_rate=_number(text["request_rate"]),
        measured=_measured(text, input_tokens, output_tokens, num_gpus),
    )


def _instance_gpus(text: Mapping[str, str], of_a_group: int) -> int:
    """InferenceX states a whole rack where one instance served its users: that instance's own are meant."""
    counted = _count(text["gpu_count"]) or of_a_group
    return of_a_group if "inferencex" in text["id"] and counted > of_a_group else counted


def _measured(text: Mapping[str, str], input_tokens: float, output_tokens: float, num_gpus: int) -> Measured:
    """Throughputs that were published per GPU are of ``num_gpus`` then.

    TPOT: the mean, else the median. TTFT: the median (a server's first requests hardly count in it), else the mean.

    A TTFT that a prefix cache served is not the model's.
    """
    cached = "probably hit" in text["prefix_cache_or_random"] or any(
        phrase in text["notes"] for phrase in _PREFIX_CACHE_SERVED
    )
    throughput = _number(text["output_throughput_tok_s"])
    if per_gpu := _PER_GPU.search(text["verbatim"]):
        throughput = float(per_gpu.group(1)) * num_gpus
    if throughput is None and (requests := _number(text["request_throughput"])) is not None:
        throughput = requests * output_tokens
    if throughput is None and (total := _number(text["total_throughput_tok_s"])) is not None:
        throughput = total * output_tokens / (input_tokens + output_tokens)
    return Measured(
        ttft_ms=None if cached else _number(text["median_ttft_ms"]) or _number(text["mean_ttft_ms"]),
        tpot_ms=_number(text["mean_tpot_ms"]) or _number(text["median_tpot_ms"]),
        output_throughput=throughput,
        ttft_kind="median" if _number(text["median_ttft_ms"]) else "mean",
        tpot_kind="mean" if _number(text["mean_tpot_ms"]) else "median",
    )


def _number(text: str) -> float | None:
    """The number that the cell is; None for an empty cell, words, and "inf"."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < float("inf") else None


def _count(text: str) -> int | None:
    value = _number(text)
    return None if value is None else int(value)
