"""What the user asks a sweep to do, as written; kept in the manifest so that ``--resume`` can compare and continue."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from kvplan.errors import KvplanError, UsageError
from kvplan.sweeps.axes import AXES, AxisValue, parse_axis
from kvplan.sweeps.schedules.reruns import FIRST_RERUN
from kvplan.sweeps.schedules.slo_search import LoadRange
from kvplan.units import parse_bytes, parse_tokens
from kvplan.workload.lengths import Lengths
from kvplan.workload.requests import WorkloadSpec


@dataclass(frozen=True, slots=True)
class DefaultWorkload:
    """The requests of a sweep that says nothing of its own, by kind of device."""

    num_prompts: int
    input_len: str
    output_len: str


# Mixed lengths. On a CPU a trial of a 124M model ends in a few seconds; a GPU needs many more requests before its
# batch is full.
DEFAULT_WORKLOADS: Mapping[str, DefaultWorkload] = {
    "cpu": DefaultWorkload(16, "64..128", "8..24"),
    "cuda": DefaultWorkload(128, "128..512", "32..96"),
}
# A search for the largest load needs more requests than the default: a share within the service level of eight says
# little, and no more can be in flight than there are.
SEARCH_PROMPTS: Mapping[str, int] = {"cpu": 24, "cuda": 256}
SEARCH_RUNS = 3
# A file is used as a whole unless it is long.
MOST_FILE_REQUESTS = 1000
# A step of 2,048 prompt tokens would make every decoding sequence wait for seconds on a CPU.
DEFAULT_BATCHED_TOKENS: Mapping[str, int] = {"cpu": 512, "cuda": 2048}


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """The options of ``kvplan sweep`` that decide what is measured. None: not given, the default by device applies.

    slo_ms: the most that ``ttft``, ``tpot`` and ``e2el`` may be, in ms. search: the load whose largest value within
    them is searched. boundary: the axes whose limit is searched. rerun: run outliers again.
    """

    model: str
    axes: Mapping[str, str] = field(default_factory=dict)
    device: str = "auto"
    device_memory: str | None = None
    num_prompts: int | None = None
    input_len: str | None = None
    output_len: str | None = None
    num_prefixes: int | None = None
    prefix_len: str | None = None
    request_rate: float = math.inf
    burstiness: float = 1.0
    max_concurrency: int | None = None
    workload: str | None = None
    num_runs: int | None = None
    seed: int = 0
    load_format: str = "auto"
    trial_timeout: float | None = None
    boundary: tuple[str, ...] = ()
    search: str | None = None
    rerun: bool = True
    slo_ms: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check(self.device in ("auto", "cpu", "cuda"), f"--device '{self.device}' is not known", "auto, cpu or cuda")
        formats = ("auto", "dummy", "safetensors", "gguf")
        _check(self.load_format in formats, f"--load-format '{self.load_format}' is not known", ", ".join(formats))
        for name in ("num_prompts", "max_concurrency", "num_runs", "num_prefixes"):
            value = getattr(self, name)
            _check(value is None or value >= 1, f"{_option(name)} must be at least 1, got {value}", "leave it out")
        for name in ("request_rate", "burstiness", "trial_timeout"):
            value = getattr(self, name)
            _check(value is None or value > 0, f"{_option(name)} must be above 0, got {value}", "leave it out")
        _check(self.seed >= 0, f"--seed must not be negative, got {self.seed}", "use 0 or more")
        most = FIRST_RERUN - 1
        _check((self.num_runs or 1) <= most, f"--num-runs must be at most {most}, got {self.num_runs}", "take fewer")
        self._check_workload()
        self._check_search()

    def _check_workload(self) -> None:
        """Options that would be ignored are refused."""
        for name in ("input_len", "output_len"):
            given = self.workload is not None and getattr(self, name) is not None
            _check(not given, f"{_option(name)} has no effect on --workload", "its file says the lengths")
        has_rate = not math.isinf(self.request_rate) or (self.search or "").startswith("request")
        _check(self.burstiness == 1 or has_rate, "--burstiness needs a --request-rate", "give one, or leave it out")
        _check(
            self.num_prefixes is None or self.prefix_len is not None, "--num-prefixes needs a --prefix-len", "like 128"
        )

    def _check_search(self) -> None:
        if self.search is None:
            return
        variable = self.load_range().variable
        _check(bool(self.slo_ms), "--search needs a --slo to keep", "like --slo 'ttft:500 tpot:50'")
        _check(not self.boundary, "--search and --boundary exclude each other", "leave one out")
        fixed = self.max_concurrency is not None if variable == "max_concurrency" else not math.isinf(self.request_rate)
        _check(not fixed, f"{_option(variable)} is what --search looks for", f"leave {_option(variable)} out")

    def load_range(self) -> LoadRange:
        """What ``--search`` asks for. UsageError for a malformed one."""
        return LoadRange.parse(self.search or "")

    @property
    def repetitions(self) -> int:
        """Runs of every setting, or of every load at the edge of the service level."""
        return self.num_runs or (SEARCH_RUNS if self.search else 1)

    def parsed_axes(self) -> dict[str, tuple[AxisValue, ...]]:
        """The values of every axis that was given. UsageError for a malformed one."""
        return {name: parse_axis(name, self.axes[name]) for name in AXES if name in self.axes}

    def device_memory_bytes(self) -> int | None:
        return None if self.device_memory is None else parse_bytes(self.device_memory)

    def workload_spec(self, device_kind: str) -> WorkloadSpec:
        default = DEFAULT_WORKLOADS[device_kind]
        usual = SEARCH_PROMPTS[device_kind] if self.search else default.num_prompts
        usual = MOST_FILE_REQUESTS if self.workload else usual
        return WorkloadSpec(
            num_prompts=self.num_prompts or usual,
            input_len=Lengths.parse("--input-len", self.input_len or default.input_len),
            output_len=Lengths.parse("--output-len", self.output_len or default.output_len),
            request_rate=self.request_rate,
            burstiness=self.burstiness,
            max_concurrency=self.max_concurrency,
            seed=self.seed,
            file=self.workload,
            num_prefixes=(self.num_prefixes or 1) if self.prefix_len else 0,
            prefix_len=parse_tokens(self.prefix_len) if self.prefix_len else 0,
        )

    def as_json(self) -> dict[str, Any]:
        record = asdict(self)
        record["request_rate"] = None if math.isinf(self.request_rate) else self.request_rate
        return record

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> SweepOptions:
        values = {
            name: value for name, value in record.items() if name in {option.name for option in fields(SweepOptions)}
        }
        values["boundary"] = tuple(values.get("boundary", ()))
        values["request_rate"] = math.inf if values.get("request_rate") is None else values["request_rate"]
        return SweepOptions(**values)


def with_absolute_paths(given: Mapping[str, Any]) -> dict[str, Any]:
    """Options whose model or workload is a file or directory name it from the root, so that a resume finds it again."""
    values = dict(given)
    for name in ("model", "workload"):
        path = Path(str(values.get(name, ""))).expanduser()
        if name in values and path.exists():
            values[name] = str(path.resolve())
    return values


def refuse_differences(stored: SweepOptions, given: Mapping[str, Any]) -> None:
    """KvplanError when an option given on the command line is not what the directory was started with.

    given: option name -> value, only those that the user wrote; axes by their own names.
    """
    differences = []
    for name, value in given.items():
        before = stored.axes.get(name) if name in AXES else getattr(stored, name)
        if name == "num_runs":
            before = stored.repetitions
        if before != value:
            differences.append(f"{_option(name)} was {_written(before)}, now {_written(value)}")
    if differences:
        raise KvplanError(
            f"The directory was started with other settings: {'; '.join(differences)}.",
            hint="leave those options out to continue it, or start a new sweep with --out",
        )


def _check(good: bool, sentence: str, hint: str) -> None:
    if not good:
        raise UsageError(sentence + ".", hint=hint)


def _option(name: str) -> str:
    return "--slo" if name == "slo_ms" else "--" + name.replace("_", "-")


def _written(value: object) -> str:
    """An option's value as one would write it."""
    if value is None or value in ((), {}):
        return "not given"
    if isinstance(value, Mapping):
        return " ".join(f"{name}:{bound:g}" for name, bound in value.items())
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
