"""The requests of a trial: lengths, arrivals and tokens, the same for the same seed.

Lengths and arrivals are drawn once for the whole sweep, so that every trial serves the same requests. If a trial's
max_model_len is too short for a request, its prompt is shortened, and the row says how many were.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvplan.errors import KvplanError, UsageError
from kvplan.units import plural
from kvplan.workload.files import FileRequest, FileSurvey, read_requests, survey_file
from kvplan.workload.lengths import Lengths
from kvplan.workload.part import WHOLE_FILE, FilePart

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
    ``prefix_len`` tokens, in turn; input_len comes on top. part: of the file. file_seconds: from the first request
    of it to the last, 0 where it has no times; None to look.
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
    part: FilePart = field(default=WHOLE_FILE)
    file_seconds: float | None = None

    @property
    def survey(self) -> FileSurvey | None:
        """What the file has of these requests; None without one. KvplanError if it cannot be read."""
        if self.file is None:
            return None
        return survey_file(Path(self.file), replace(self.part, most=self.num_prompts))

    @property
    def follows_file(self) -> bool:
        """Whether the requests come when the file says."""
        return math.isinf(self.request_rate) and self._file_seconds > 0

    @property
    def offered_rate(self) -> float:
        """Requests per second: those of the file where it says when they come, infinite where all come at once."""
        return self.num_prompts / self._file_seconds if self.follows_file else self.request_rate

    @property
    def _file_seconds(self) -> float:
        if self.file_seconds is not None:
            return self.file_seconds
        return 0.0 if self.survey is None else self.survey.seconds

    def as_text(self) -> str:
        """One line: how many requests, how long, how they arrive."""
        return f"{plural(self.num_prompts, 'request')}, {self.lengths_as_text()}, {self.arrivals_as_text()}"

    def lengths_as_text(self) -> str:
        """``64..128 in, 16 out tokens after 1 prefix of 64 tokens``, ``lengths of trace.csv``."""
        lengths = f"{self.input_len.as_text()} in, {self.output_len.as_text()} out tokens"
        source = f"lengths of {Path(self.file).name}" if self.file else lengths
        if self.num_prefixes:
            one = "1 prefix" if self.num_prefixes == 1 else f"one of {self.num_prefixes} prefixes"
            source += f" after {one} of {self.prefix_len:,} tokens"
        return source

    def arrivals_as_text(self) -> str:
        """``all at once, at most 8 in flight`` or ``4 requests/s, burstiness 0.5``."""
        if math.isinf(self.request_rate):
            arrivals = "all at once"
            if self.follows_file:
                faster = f" at {self.part.speed:g} times its speed" if self.part.speed != 1 else ""
                arrivals = f"arriving as in the file{faster}"
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
        values["part"] = FilePart(**values.get("part", {}))
        values["request_rate"] = math.inf if values["request_rate"] is None else values["request_rate"]
        return WorkloadSpec(**values)


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """One request: ``index`` determines its tokens, ``arrival_seconds`` counts from the trial's start.

    The first ``num_prefix_tokens`` of the prompt are those of the shared prefix ``prefix_index``. Behind them stand the
    tokens of ``block_ids``, ``block_tokens`` of each, or those that the chat of this number begins with; what is left
    is its own.
    """

    index: int
    num_prompt_tokens: int
    num_output_tokens: int
    arrival_seconds: float = 0.0
    prefix_index: int = 0
    num_prefix_tokens: int = 0
    block_ids: tuple[int, ...] = ()
    block_tokens: int = 0
    chat: int | None = None

    @property
    def shares_by_file(self) -> bool:
        """Whether its file says what of it others have, too."""
        return bool(self.block_ids) or self.chat is not None


def share_by_file(requests: Sequence[RequestSpec]) -> bool:
    """Whether two prompts begin alike by what their file says."""
    chats = [request.chat for request in requests if request.chat is not None]
    blocks = [request.block_ids[0] for request in requests if request.block_ids]
    return len(set(chats)) < len(chats) or len(set(blocks)) < len(blocks)


def survey_for_run(path: Path, part: FilePart) -> FileSurvey:
    """What a run takes of a file. KvplanError for more than can be held, and as for ``survey_file``."""
    found = survey_file(path, part)
    if found.num_requests > MOST_REQUESTS:
        raise KvplanError(
            f"The workload file {path} has {found.num_requests:,} requests; a run has {MOST_REQUESTS:,} at most.",
            hint="--num-prompts, --sample, --from and --to take a part of them",
        )
    return found


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
        part = replace(spec.part, most=spec.num_prompts)
        requests = _from_file(spec, list(read_requests(Path(spec.file), part)), arrivals)
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
        RequestSpec(
            index,
            item.num_prompt_tokens,
            item.num_output_tokens,
            seconds,
            block_ids=item.block_ids,
            block_tokens=item.block_tokens,
            chat=item.chat,
        )
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
    if any(request.shares_by_file for request in requests):
        raise UsageError(
            "--prefix-len cannot be used with a workload file that says what prompts share.", hint="leave it out"
        )
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
    """Random tokens of one request, after those that others have, too. A shortened prompt is a prefix of the whole."""
    import numpy as np

    def drawn(count: int, *stream: int) -> list[int]:
        tokens: list[int] = np.random.default_rng([seed, *stream]).integers(0, vocab_size, size=count).tolist()
        return tokens

    num_left = request.num_prompt_tokens - request.num_prefix_tokens
    shared = drawn(request.num_prefix_tokens, 3, request.prefix_index)
    if request.chat is not None:
        return shared + drawn(num_left, 5, request.chat)
    of_blocks: list[int] = []
    for block in request.block_ids[: -(-num_left // max(request.block_tokens, 1))]:
        of_blocks += _block(seed, block, request.block_tokens, vocab_size).tolist()
    of_blocks = of_blocks[:num_left]
    return shared + of_blocks + drawn(num_left - len(of_blocks), 2, request.index)


@lru_cache(maxsize=4096)
def _block(seed: int, block: int, num_tokens: int, vocab_size: int) -> np.ndarray:
    """The tokens that only the block id ``block`` stands for."""
    import numpy as np

    return np.random.default_rng([seed, 4, block]).integers(0, vocab_size, size=num_tokens, dtype=np.int32)


def adapter_of(index: int, num_adapters: int) -> int | None:
    """Which of ``num_adapters`` the request of this index uses: they take turns. None where there are none."""
    return index % num_adapters if num_adapters else None


def drawn_arrivals(rate: float, burstiness: float, count: int, rng: np.random.Generator) -> list[float]:
    """``count`` times, ascending: the first after a gap, the last of n at n / rate whatever the seed.

    The scaling keeps the offered rate the same for every seed, as vLLM's benchmark does (get_request, 0.33).
    burstiness: shape of the gaps' distribution; less is burstier, infinity is equal gaps. UsageError where it is so low
    that all gaps are 0.
    """
    if math.isinf(burstiness):
        return [place / rate for place in range(1, count + 1)]
    times = rng.gamma(shape=burstiness, scale=1.0 / (rate * burstiness), size=count).cumsum()
    last = float(times[-1]) if count else 1.0
    stretch = count / rate / last if last > 0 else math.inf
    if not math.isfinite(stretch):
        raise UsageError(
            f"A burstiness of {burstiness:g} is too low: all {count:,} requests would arrive at one moment.",
            hint="use a larger one, such as 0.1",
        )
    return [float(seconds) for seconds in times * stretch]
