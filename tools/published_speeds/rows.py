"""A line of speeds.csv: what was served, under which load, and what was measured.

A file needs the columns that rows were collected with; those of ``stated.COLUMNS`` are read from its words where it has
none.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from published_speeds.stated import with_stated

PUBLISHED = Path(__file__).parent / "speeds.csv"


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
    ttft_p99_ms: float | None = None
    tpot_p99_ms: float | None = None


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

    def says(self, column: str) -> bool:
        """Whether a column that answers yes or no says yes; not where the row is silent."""
        return self.text[column] == "yes"

    def number(self, column: str) -> float | None:
        """None where the row is silent; 0 is a number here."""
        return float(self.text[column]) if self.text[column] else None

    @property
    def source(self) -> str:
        """Who measured: the owner of a repository, a thread of its own, or a site; else the beginning of the id."""
        where = self.text["source_url"].removeprefix("https://").removeprefix("http://")
        if thread := re.match(r"github\.com/[^/]+/[^/]+/(?:issues|pull|discussions)/\d+", where):
            return thread.group()
        if owner := re.match(r"github\.com/[^/ ]+", where):
            return owner.group()
        return where.partition("/")[0] or self.id.rsplit("-", 1)[0]


def read_rows(path: Path = PUBLISHED) -> list[PublishedRow | str]:
    """All rows in order; the id and a reason in words for one that lacks what a prediction needs."""
    with path.open(encoding="utf-8", newline="") as file:
        return [parse_row(text) for text in csv.DictReader(file)]


def parse_row(text: Mapping[str, str]) -> PublishedRow | str:
    """One line, by column; the reason in words where it lacks what a prediction needs."""
    text = with_stated(text)
    input_tokens, output_tokens = _number(text["input_len"]), _number(text["output_len"])
    if not input_tokens or not output_tokens:
        return f"{text['id']}: lengths are not stated"
    if text["spec_decode"]:
        return f"{text['id']}: speculative decoding whose acceptance is not stated"
    if text["spans_nodes"] == "yes":
        return f"{text['id']}: an instance spans nodes, whose network is not stated"
    if text["warm_up"] == "running":
        return f"{text['id']}: the server was still warming up, as its later runs show"
    tensor, pipeline = _count(text["tp"]) or 1, _count(text["pp"]) or 1
    num_gpus = _instance_gpus(text, tensor * pipeline * (_count(text["dp"]) or 1))
    return PublishedRow(
        text=text,
        num_gpus=num_gpus,
        tensor_parallel_size=tensor,
        pipeline_parallel_size=pipeline,
        data_parallel_size=_count(text["dp"]) or 1,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        num_prompts=_count(text["num_prompts"]),
        max_concurrency=None if text["concurrency_binds"] == "no" else _count(text["max_concurrency"]),
        request_rate=_number(text["request_rate"]),
        measured=_measured(text, input_tokens, output_tokens, num_gpus),
    )


def _instance_gpus(text: Mapping[str, str], of_the_layout: int) -> int:
    """Those of the layout where a row counts more, as of a rack, and its throughput is one GPU's: one instance's."""
    counted = _count(text["gpu_count"]) or of_the_layout
    return min(counted, of_the_layout) if text["output_tput_per_gpu"] and text["tp"] else counted


_LEAST_OF_TAIL = 200
"""Requests of a run whose 99th percentile is compared: two are beyond it. Of fewer it is the slowest one, as a rule the
first, for which kernels are compiled: a service meets that once a start."""


def _measured(text: Mapping[str, str], input_tokens: float, output_tokens: float, num_gpus: int) -> Measured:
    """Throughputs that were published per GPU are of ``num_gpus`` then.

    TPOT: the mean, else the median. TTFT: the median (a server's first requests hardly count in it), else the mean.

    A TTFT that a prefix cache may have served is not the model's, and a throughput with the server's own warm-up in it
    is not the load's.
    """
    unusable = text["unusable"].split()
    has_ttft = not text["prefix_hits"] and "ttft" not in unusable
    has_tpot = "tpot" not in unusable
    has_p99 = (_number(text["num_prompts"]) or 0) >= _LEAST_OF_TAIL
    throughput = _number(text["output_throughput_tok_s"])
    if (per_gpu := _number(text["output_tput_per_gpu"])) is not None:
        throughput = per_gpu * num_gpus
    if throughput is None and (requests := _number(text["request_throughput"])) is not None:
        throughput = requests * output_tokens
    if throughput is None and (total := _number(text["total_throughput_tok_s"])) is not None:
        throughput = total * output_tokens / (input_tokens + output_tokens)
    return Measured(
        ttft_ms=_number(text["median_ttft_ms"]) or _number(text["mean_ttft_ms"]) if has_ttft else None,
        tpot_ms=_number(text["mean_tpot_ms"]) or _number(text["median_tpot_ms"]) if has_tpot else None,
        ttft_p99_ms=_number(text["p99_ttft_ms"]) if has_ttft and has_p99 and "ttft_p99" not in unusable else None,
        tpot_p99_ms=_number(text["p99_tpot_ms"]) if has_tpot and has_p99 else None,
        output_throughput=None if text["warm_up"] == "included" else throughput,
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
