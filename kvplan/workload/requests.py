"""The requests of a trial: lengths, arrivals and tokens, the same for the same seed.

Lengths and arrivals are drawn once for the whole sweep, so that every trial serves the same requests. If a trial's
max_model_len is too short for a request, its prompt is shortened, and the row says how many were.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvplan.units import plural
from kvplan.workload.arrivals import drawn_arrivals
from kvplan.workload.files import FileRequest, read_workload_file
from kvplan.workload.lengths import Lengths

if TYPE_CHECKING:
    import numpy as np


ALL_AT_ONCE: Final = math.inf
"""The request rate of a workload whose requests all arrive at once, or at the times in its file."""
MOST_REQUESTS: Final = 10_000_000
"""Of one run: each is held in memory."""
LOWEST_RATE: Final = 1e-6
"""In requests per second: one in eleven days."""
LARGEST_SEED: Final = 2**63 - 1
"""torch's generators take 64 bits."""
POISSON: Final = 1.0
"""The burstiness of a Poisson process; less is burstier."""


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """The requests of every trial.

    request_rate: mean arrivals per second. max_concurrency: maximum number of requests in flight (closed loop), None
    for no limit. num_prefixes, prefix_len: each prompt starts with one of ``num_prefixes`` shared prefixes of
    ``prefix_len`` tokens, in turn; input_len comes on top.
    """

    num_prompts: int
    input_len: Lengths
    output_len: Lengths
    request_rate: float = ALL_AT_ONCE
    burstiness: float = POISSON
    max_concurrency: int | None = None
    seed: int = 0
    file: str | None = None
    num_prefixes: int = 0
    prefix_len: int = 0

    def as_text(self) -> str:
        """One line: how many requests, how long, how they arrive."""
        lengths = f"{self.input_len.as_text()} in, {self.output_len.as_text()} out tokens"
        source = f"lengths of {Path(self.file).name}" if self.file else lengths
        if self.num_prefixes:
            one = "1 prefix" if self.num_prefixes == 1 else f"one of {self.num_prefixes} prefixes"
            source += f" after {one} of {self.prefix_len:,} tokens"
        return f"{plural(self.num_prompts, 'request')}, {source}, {self.arrivals_as_text()}"

    def arrivals_as_text(self) -> str:
        """``all at once, at most 8 in flight`` or ``4 requests/s, burstiness 0.5``."""
        if math.isinf(self.request_rate):
            arrivals = "arriving as in the file" if self.file else "all at once"
        else:
            arrivals = f"{self.request_rate:g} requests/s"
            arrivals += f", burstiness {self.burstiness:g}" if self.burstiness != POISSON else ""
        return arrivals if self.max_concurrency is None else f"{arrivals}, at most {self.max_concurrency} in flight"

    def as_json(self) -> dict[str, Any]:
        record = asdict(self)
        record["request_rate"] = None if math.isinf(self.request_rate) else self.request_rate
        return record

    @staticmethod
    def from_json(record: dict[str, Any]) -> WorkloadSpec:
        values = dict(record)
        values["input_len"] = Lengths(**values["input_len"])
        values["output_len"] = Lengths(**values["output_len"])
        values["request_rate"] = math.inf if values["request_rate"] is None else values["request_rate"]
        return WorkloadSpec(**values)


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """One request: ``index`` determines its tokens, ``arrival_seconds`` counts from the trial's start.

    The first ``num_prefix_tokens`` of the prompt are those of the shared prefix ``prefix_index``.
    """

    index: int
    num_prompt_tokens: int
    num_output_tokens: int
    arrival_seconds: float = 0.0
    prefix_index: int = 0
    num_prefix_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ClippedRequests:
    """The requests of one trial, and how many had to be shortened."""

    requests: tuple[RequestSpec, ...]
    num_clipped: int


def generate_requests(spec: WorkloadSpec) -> tuple[RequestSpec, ...]:
    """The sweep's requests in order of arrival. Lengths and arrivals have separate streams of random numbers.

    KvplanError if the file cannot be read.
    """
    import numpy as np

    arrivals = np.random.default_rng([spec.seed, 1])
    if spec.file is not None:
        requests = _from_file(spec, read_workload_file(Path(spec.file), spec.num_prompts), arrivals)
    else:
        lengths = np.random.default_rng([spec.seed, 0])
        inputs = spec.input_len.draw(lengths, spec.num_prompts)
        outputs = spec.output_len.draw(lengths, spec.num_prompts)
        times = _arrivals(spec, spec.num_prompts, arrivals)
        requests = [
            RequestSpec(index, *values) for index, values in enumerate(zip(inputs, outputs, times, strict=True))
        ]
    return tuple(_with_prefixes(spec, requests))


def _from_file(spec: WorkloadSpec, read: Sequence[FileRequest], rng: np.random.Generator) -> list[RequestSpec]:
    """Arrival times from the file if it has them, rescaled to ``request_rate`` if one is given; otherwise drawn.

    They are drawn, too, where all of the file's are one moment: that is no pattern which could be rescaled.
    """
    known = [item.arrival_seconds for item in read if item.arrival_seconds is not None]
    times = _rescaled(known, spec.request_rate) if any(known) else _arrivals(spec, len(read), rng)
    requests = [
        RequestSpec(index, item.num_prompt_tokens, item.num_output_tokens, seconds)
        for index, (item, seconds) in enumerate(zip(read, times, strict=True))
    ]
    return sorted(requests, key=lambda request: request.arrival_seconds)


def _rescaled(times: list[float], request_rate: float) -> list[float]:
    """The same arrival pattern at another mean rate: n requests in n / rate seconds."""
    last = max(times)
    if math.isinf(request_rate):
        return times
    return [seconds * (len(times) / request_rate / last) for seconds in times]


def _with_prefixes(spec: WorkloadSpec, requests: Sequence[RequestSpec]) -> list[RequestSpec]:
    if not spec.num_prefixes:
        return list(requests)
    return [
        replace(
            request,
            num_prompt_tokens=spec.prefix_len + request.num_prompt_tokens,
            prefix_index=request.index % spec.num_prefixes,
            num_prefix_tokens=spec.prefix_len,
        )
        for request in requests
    ]


def _arrivals(spec: WorkloadSpec, count: int, rng: np.random.Generator) -> list[float]:
    if math.isinf(spec.request_rate):
        return [0.0] * count
    return drawn_arrivals(spec.request_rate, spec.burstiness, count, rng)


def clip_requests(requests: Sequence[RequestSpec], max_model_len: int) -> ClippedRequests:
    """Shorten prompts (and, where even that is not enough, outputs) so that prompt + output <= max_model_len."""
    clipped: list[RequestSpec] = []
    for request in requests:
        num_output = min(request.num_output_tokens, max_model_len - 1)
        num_prompt = min(request.num_prompt_tokens, max_model_len - num_output)
        num_prefix = min(request.num_prefix_tokens, num_prompt)
        clipped.append(
            replace(request, num_prompt_tokens=num_prompt, num_output_tokens=num_output, num_prefix_tokens=num_prefix)
        )
    num_clipped = sum(new != old for new, old in zip(clipped, requests, strict=True))
    return ClippedRequests(tuple(clipped), num_clipped)


def prompt_token_ids(seed: int, request: RequestSpec, vocab_size: int) -> list[int]:
    """Random tokens of one request, after those of its shared prefix. A shortened prompt is a prefix of the whole."""
    import numpy as np

    prefix = np.random.default_rng([seed, 3, request.prefix_index])
    own = np.random.default_rng([seed, 2, request.index])
    shared = prefix.integers(0, vocab_size, size=request.num_prefix_tokens).tolist()
    return shared + own.integers(0, vocab_size, size=request.num_prompt_tokens - request.num_prefix_tokens).tolist()


def adapter_of(index: int, num_adapters: int) -> int | None:
    """Which of ``num_adapters`` the request of this index uses: they take turns. None where there are none."""
    return index % num_adapters if num_adapters else None
