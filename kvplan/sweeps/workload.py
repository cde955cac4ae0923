"""The requests of a trial: lengths, arrivals and tokens, the same for the same seed.

Lengths and arrivals are drawn once for the whole sweep, so that every trial serves the same requests. A trial whose
max_model_len is too short for one of them gets it with a shortened prompt (and says how many were shortened).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvplan.errors import UsageError
from kvplan.sweeps.workload_files import FileRequest, read_workload_file
from kvplan.units import parse_tokens

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class LengthRange:
    """Lengths drawn uniformly from first to last tokens, both included; one value when they are equal."""

    first: int
    last: int

    @staticmethod
    def parse(option: str, text: str) -> LengthRange:
        """``128`` or ``64..256``. UsageError otherwise."""
        ends = [parse_tokens(part) for part in text.split("..")] if re.fullmatch(r"[^.]+(\.\.[^.]+)?", text) else []
        if not ends or ends[0] > ends[-1]:
            raise UsageError(f"{option} '{text}' is not a length.", hint="write 128, or 64..256 for lengths in between")
        return LengthRange(ends[0], ends[-1])

    @property
    def mean(self) -> float:
        return (self.first + self.last) / 2

    def as_text(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}..{self.last}"


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """What is asked of every trial.

    request_rate: mean arrivals per second, math.inf for all at once. burstiness: 1 is a Poisson process, below is
    burstier. max_concurrency: most requests in flight (closed loop), None for no limit.
    """

    num_prompts: int
    input_len: LengthRange
    output_len: LengthRange
    request_rate: float = math.inf
    burstiness: float = 1.0
    max_concurrency: int | None = None
    seed: int = 0
    file: str | None = None

    def as_text(self) -> str:
        arrivals = "all at once" if math.isinf(self.request_rate) else f"{self.request_rate:g} requests/s"
        if self.max_concurrency is not None:
            arrivals += f", at most {self.max_concurrency} in flight"
        source = (
            Path(self.file).name if self.file else f"{self.input_len.as_text()} in, {self.output_len.as_text()} out"
        )
        return f"{self.num_prompts} requests, {source} tokens, {arrivals}"

    def as_json(self) -> dict[str, Any]:
        record = asdict(self)
        record["request_rate"] = None if math.isinf(self.request_rate) else self.request_rate
        return record

    @staticmethod
    def from_json(record: dict[str, Any]) -> WorkloadSpec:
        values = dict(record)
        values["input_len"] = LengthRange(**values["input_len"])
        values["output_len"] = LengthRange(**values["output_len"])
        values["request_rate"] = math.inf if values["request_rate"] is None else values["request_rate"]
        return WorkloadSpec(**values)


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """One request: ``index`` decides its tokens, ``arrival_seconds`` counts from the trial's start."""

    index: int
    num_prompt_tokens: int
    num_output_tokens: int
    arrival_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ClippedRequests:
    """The requests of one trial, and how many had to be shortened for it."""

    requests: tuple[RequestSpec, ...]
    num_clipped: int


def generate_requests(spec: WorkloadSpec) -> tuple[RequestSpec, ...]:
    """The sweep's requests in order of arrival. Lengths and arrivals have a stream of random numbers each."""
    import numpy as np

    if spec.file is not None:
        read = read_workload_file(Path(spec.file), spec.num_prompts)
        return _from_file(read, _arrivals(spec, len(read), np.random.default_rng([spec.seed, 1])))
    lengths = np.random.default_rng([spec.seed, 0])
    inputs = lengths.integers(spec.input_len.first, spec.input_len.last + 1, size=spec.num_prompts)
    outputs = lengths.integers(spec.output_len.first, spec.output_len.last + 1, size=spec.num_prompts)
    arrivals = _arrivals(spec, spec.num_prompts, np.random.default_rng([spec.seed, 1]))
    return tuple(
        RequestSpec(index, int(inputs[index]), int(outputs[index]), arrivals[index])
        for index in range(spec.num_prompts)
    )


def _from_file(read: Sequence[FileRequest], arrivals: Sequence[float]) -> tuple[RequestSpec, ...]:
    requests = [
        RequestSpec(
            index,
            item.num_prompt_tokens,
            item.num_output_tokens,
            arrivals[index] if item.arrival_seconds is None else item.arrival_seconds,
        )
        for index, item in enumerate(read)
    ]
    return tuple(sorted(requests, key=lambda request: request.arrival_seconds))


def _arrivals(spec: WorkloadSpec, count: int, rng: np.random.Generator) -> list[float]:
    """Arrival times: gamma-distributed gaps, scaled so that the last of n requests arrives n / rate after the start.

    The scaling keeps the offered rate the same for every seed, as vLLM's benchmark does.
    """
    if math.isinf(spec.request_rate):
        return [0.0] * count
    gaps = rng.gamma(shape=spec.burstiness, scale=1.0 / (spec.request_rate * spec.burstiness), size=count)
    times = gaps.cumsum()
    scaled = times * (count / spec.request_rate / times[-1])
    return [float(seconds) for seconds in scaled]


def clip_requests(requests: Sequence[RequestSpec], max_model_len: int) -> ClippedRequests:
    """Shorten prompts (and, where even that is not enough, outputs) so that prompt + output <= max_model_len."""
    clipped: list[RequestSpec] = []
    for request in requests:
        num_output = min(request.num_output_tokens, max_model_len - 1)
        num_prompt = min(request.num_prompt_tokens, max_model_len - num_output)
        clipped.append(RequestSpec(request.index, num_prompt, num_output, request.arrival_seconds))
    num_clipped = sum(new != old for new, old in zip(clipped, requests, strict=True))
    return ClippedRequests(tuple(clipped), num_clipped)


def prompt_token_ids(seed: int, request: RequestSpec, vocab_size: int) -> list[int]:
    """Random tokens of one request. A shortened prompt is a prefix of the whole one."""
    import numpy as np

    rng = np.random.default_rng([seed, 2, request.index])
    return [int(token) for token in rng.integers(0, vocab_size, size=request.num_prompt_tokens)]
