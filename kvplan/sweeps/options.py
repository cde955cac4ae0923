"""What the user asked a sweep to do, as written; kept in the manifest so that ``--resume`` can compare and continue."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from kvplan.catalog.devices.gpus import GpuCount, parse_gpu_count
from kvplan.errors import KvplanError, check
from kvplan.runs.answers.slo_result import objectives_ms
from kvplan.runs.shape import ShapeError, check_shape
from kvplan.settings import option_of
from kvplan.sweeps.axes import AXES, AxisValue, parse_values
from kvplan.sweeps.drafting import check_drafting, with_absolute_path
from kvplan.sweeps.engine_names import OWN_ENGINE, check_engine
from kvplan.sweeps.schedules.reruns import FIRST_RERUN
from kvplan.sweeps.schedules.slo_search import LoadRange
from kvplan.sweeps.shards.shard import Shard
from kvplan.units import parse_bytes
from kvplan.workload.files import survey_file
from kvplan.workload.lengths import Lengths, parse_length
from kvplan.workload.part import FilePart, file_part
from kvplan.workload.requests import (
    ALL_AT_ONCE,
    LARGEST_SEED,
    LOWEST_RATE,
    MOST_REQUESTS,
    POISSON,
    WorkloadSpec,
    survey_for_run,
)
from kvplan.workload.times import LONGEST_SECONDS


@dataclass(frozen=True, slots=True)
class DefaultWorkload:
    """The requests of a sweep whose options do not describe any, by kind of device."""

    num_prompts: int
    input_len: str
    output_len: str


# Mixed lengths. On a CPU a trial of a 124M model takes a few seconds; a GPU needs many more requests to fill a batch.
DEFAULT_WORKLOADS: Mapping[str, DefaultWorkload] = {
    "cpu": DefaultWorkload(16, "64..128", "8..24"),
    "cuda": DefaultWorkload(128, "128..512", "32..96"),
}
# A search for the largest load needs more requests than the default: the share of eight that meet a service level says
# little, and no more can be in flight than there are.
SEARCH_PROMPTS: Mapping[str, int] = {"cpu": 24, "cuda": 256}
SEARCH_RUNS = 3
COUNTED_FORMAT: Final = "none"
"""The load format without tensors."""
# A step of 2,048 prompt tokens would make every decoding sequence wait for seconds on a CPU.
DEFAULT_BATCHED_TOKENS: Mapping[str, int] = {"cpu": 512, "cuda": 2048}


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """The options of ``kvplan sweep`` that decide what is measured. None: not given, so the device's default applies.

    slo_seconds: upper bounds of ``ttft``, ``tpot`` and ``e2el`` (in ms in JSON). search: the load
    whose largest value within them is searched. boundary: the axes whose limit is searched. rerun: run outliers again.
    start, end, speed, sample, trace_unit, spread_ticks: which part of the workload's file is used, and how it is read.
    engine: what serves; engine_python, engine_command: where another one is installed, or how it is called; url: where
    it runs already. engine_args: ``KEY=VALUE`` for its command line. shard: which part of the plan, such as ``2/3``.
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
    request_rate: float = ALL_AT_ONCE
    burstiness: float = POISSON
    max_concurrency: int | None = None
    workload: str | None = None
    start: str | None = None
    end: str | None = None
    speed: float | None = None
    sample: int | None = None
    trace_unit: str | None = None
    spread_ticks: bool = False
    num_runs: int | None = None
    seed: int = 0
    load_format: str = "auto"
    gpu: str | None = None
    dummy_layers: str = "full"
    model_impl: str = "auto"
    activation_quantization: str = "none"
    speculative_config: str | None = None
    engine: str = OWN_ENGINE
    engine_python: str | None = None
    engine_command: str | None = None
    engine_args: tuple[str, ...] = ()
    url: str | None = None
    reuse_server: bool = False
    preload: bool | None = None
    trial_timeout: float | None = None
    boundary: tuple[str, ...] = ()
    search: str | None = None
    rerun: bool = True
    shard: str | None = None
    slo_seconds: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self.device in ("auto", "cpu", "cuda"), f"Unknown --device '{self.device}'", "auto, cpu or cuda")
        layers = ("full", "shared")
        check(self.dummy_layers in layers, f"Unknown --dummy-layers '{self.dummy_layers}'", ", ".join(layers))
        check(
            not self.shares_layers or self.load_format == "dummy",
            "--dummy-layers shared is for dummy weights",
            "add --load-format dummy",
        )
        implementations = ("auto", "native", "transformers")
        check(
            self.model_impl in implementations, f"Unknown --model-impl '{self.model_impl}'", ", ".join(implementations)
        )
        check(
            self.model_impl != "transformers" or not (self.is_counted or self.shares_layers),
            "--model-impl transformers computes whole models",
            "leave it out, or --load-format none and --dummy-layers shared",
        )
        self._check_activations()
        check_drafting(self.axes, self.speculative_config)
        formats = ("auto", "dummy", "none", "safetensors", "gguf")
        check(self.load_format in formats, f"Unknown --load-format '{self.load_format}'", ", ".join(formats))
        for name in ("num_prompts", "max_concurrency", "num_runs", "num_prefixes"):
            value = getattr(self, name)
            check(value is None or value >= 1, f"{option_of(name)} must be at least 1, got {value}", "leave it out")
        for name in ("request_rate", "burstiness", "trial_timeout"):
            value = getattr(self, name)
            check(value is None or value > 0, f"{option_of(name)} must be above 0, got {value}", "leave it out")
        check(self.seed >= 0, f"--seed must not be negative, got {self.seed}", "use 0 or more")
        self._check_limits()
        most = FIRST_RERUN - 1
        check((self.num_runs or 1) <= most, f"--num-runs must be at most {most}, got {self.num_runs}", "use fewer")
        self._check_workload()
        self._check_search()
        self._check_counted()
        self._check_shard()
        check_engine(
            self.engine,
            foreign=self._of_other_engines(),
            own=self._of_own_engine(),
            has_url=self.url is not None,
        )

    def _check_limits(self) -> None:
        """Refuse numbers that nothing could be made with."""
        rate, lowest, longest = self.request_rate, LOWEST_RATE, self.trial_timeout or 0
        check(rate >= lowest, f"--request-rate must be at least {lowest:g}, got {rate}", "use more")
        check(self.burstiness < math.inf, "--burstiness must be finite", "for equal gaps a large one, such as 1000")
        check(longest <= LONGEST_SECONDS, f"--trial-timeout {longest} is too long", "leave it out")
        for name, largest in (("seed", LARGEST_SEED), ("num_prompts", MOST_REQUESTS)):
            value = getattr(self, name) or 0
            check(value <= largest, f"{option_of(name)} must be at most {largest:,}, got {value:,}", "use less")

    def _check_workload(self) -> None:
        """Refuse options that would be ignored."""
        given = self.workload is not None and self.input_len is not None
        check(not given, "--input-len cannot be used with --workload", "the file gives the lengths")
        _ = self.part  # UsageError for what cannot be read
        has_rate = not math.isinf(self.request_rate) or (self.search or "").startswith("request")
        check(
            self.burstiness == POISSON or has_rate,
            "--burstiness needs a --request-rate",
            "give one, or leave --burstiness out",
        )
        check(
            self.num_prefixes is None or self.prefix_len is not None,
            "--num-prefixes needs a --prefix-len",
            "for example 128",
        )

    def _check_search(self) -> None:
        if self.search is None:
            return
        variable = self.load_range().variable
        check(bool(self.slo_seconds), "--search needs a --slo", "for example --slo 'ttft:500 tpot:50'")
        check(not self.boundary, "--search cannot be used with --boundary", "leave one out")
        fixed = self.max_concurrency is not None if variable == "max_concurrency" else not math.isinf(self.request_rate)
        check(not fixed, f"{option_of(variable)} is what --search looks for", f"leave {option_of(variable)} out")

    def _check_counted(self) -> None:
        """Refuse what needs a speed where nothing is computed, and a GPU by name where something is."""
        if not self.is_counted:
            check(self.gpu is None, "--gpu names a device that is only counted", "add --load-format none")
            return
        needing = {
            "--search": self.search is not None,
            "--slo": bool(self.slo_seconds),
            "--request-rate": not math.isinf(self.request_rate),
        }
        needing["--boundary max_num_seqs"] = any("max_num_seqs" in axis.split("*") for axis in self.boundary)
        asked = next((name for name, is_given in needing.items() if is_given), None)
        check(
            asked is None,
            f"{asked} cannot be used with --load-format none: nothing is computed, so there are no speeds",
            "leave it out, or use --load-format dummy",
        )
        check(
            self.gpu is None or self.device != "cpu", "--gpu cannot be used with --device cpu", "leave one of them out"
        )

    def _check_shard(self) -> None:
        if self.shard is None:
            return
        Shard.parse(self.shard)
        searching = "--search" if self.search is not None else "--boundary" if self.boundary else None
        check(
            searching is None,
            f"--shard cannot be used with {searching}: a search takes each trial from the results of those before",
            "run the search on one machine, or give each machine a search of its own",
        )

    def _of_other_engines(self) -> dict[str, bool]:
        """Options that only another engine has, and which of them were given."""
        return {
            "--engine-python": self.engine_python is not None,
            "--engine-command": self.engine_command is not None,
            "--engine-arg": bool(self.engine_args),
            "--url": self.url is not None,
            "--reuse-server": self.reuse_server,
            "--preload": self.preload is not None,
            **{axis.option: name in self.axes for name, axis in AXES.items() if axis.of_others},
        }

    def _of_own_engine(self) -> dict[str, bool]:
        """Options that only kvplan's engine has, and which of them were given."""
        return {
            "--load-format none": self.is_counted,
            "--dummy-layers": self.shares_layers,
            "--model-impl": self.model_impl != "auto",
            "--activation-quantization": self.rounds_activations,
            "--speculative-config": self.speculative_config is not None,
        }

    def _check_activations(self) -> None:
        rounded = ("none", "int8")
        check(
            self.activation_quantization in rounded,
            f"Unknown --activation-quantization '{self.activation_quantization}'",
            ", ".join(rounded),
        )
        check(
            not self.rounds_activations or self.model_impl != "transformers",
            "--activation-quantization is for the engine's own decoder",
            "leave out --model-impl transformers",
        )

    @property
    def is_foreign(self) -> bool:
        """Whether an engine other than kvplan's own serves."""
        return self.engine != OWN_ENGINE

    @property
    def rounds_activations(self) -> bool:
        """Whether weights in few bits are multiplied with rounded activations."""
        return self.activation_quantization != "none"

    @property
    def shares_layers(self) -> bool:
        """Whether equal layers use one copy of their dummy weights."""
        return self.dummy_layers == "shared"

    @property
    def is_counted(self) -> bool:
        """Whether blocks and bytes are counted and nothing is computed."""
        return self.load_format == COUNTED_FORMAT

    @property
    def part(self) -> FilePart:
        """Which part of the workload's file is used. UsageError for values that cannot be read."""
        return file_part(
            start=self.start,
            end=self.end,
            speed=self.speed,
            sample=self.sample,
            trace_unit=self.trace_unit,
            spread_ticks=self.spread_ticks,
            output_len=self.output_len,
            has_file=self.workload is not None,
            has_rate=not math.isinf(self.request_rate),
            ignores_times=self.is_counted,
        )

    def file_notes(self) -> tuple[str, ...]:
        """What to tell about the workload's file; nothing without one."""
        if self.workload is None:
            return ()
        return survey_file(Path(self.workload), replace(self.part, most=self.num_prompts)).notes

    def load_range(self) -> LoadRange:
        """What ``--search`` asks for. UsageError if it is malformed."""
        return LoadRange.parse(self.search or "")

    @property
    def repetitions(self) -> int:
        """Runs of every setting, or of every load at the edge of the service level."""
        return self.num_runs or (SEARCH_RUNS if self.search else 1)

    def parsed_axes(self) -> dict[str, tuple[AxisValue, ...]]:
        """The values of every axis that was given. UsageError if one is malformed."""
        return {name: parse_values(axis, self.axes[name]) for name, axis in AXES.items() if name in self.axes}

    def counted_gpus(self) -> GpuCount | None:
        """The GPUs that are only counted, None where none are named. UsageError for an unknown name."""
        if self.gpu is None:
            return None
        check("," not in self.gpu, "--gpu takes one deployment in a sweep", "sweep each of them, with its own --out")
        return parse_gpu_count(self.gpu)

    def device_memory_bytes(self) -> int | None:
        return None if self.device_memory is None else parse_bytes(self.device_memory)

    def workload_spec(self, device_kind: str) -> WorkloadSpec:
        """The requests; device_kind: whose default they are, where the options do not describe any."""
        default = DEFAULT_WORKLOADS[device_kind]
        usual = SEARCH_PROMPTS[device_kind] if self.search else default.num_prompts
        count, part, seconds = self.num_prompts or usual, self.part, None
        if self.workload is not None:
            found = survey_for_run(Path(self.workload), replace(part, most=self.num_prompts))
            count, seconds = found.num_requests, found.seconds
        return WorkloadSpec(
            num_prompts=count,
            input_len=Lengths.parse("--input-len", self.input_len or default.input_len),
            output_len=Lengths.parse("--output-len", self.output_len or default.output_len),
            part=part,
            file_seconds=seconds,
            request_rate=self.request_rate,
            burstiness=self.burstiness,
            max_concurrency=self.max_concurrency,
            seed=self.seed,
            file=self.workload,
            num_prefixes=(self.num_prefixes or 1) if self.prefix_len else 0,
            prefix_len=parse_length("--prefix-len", self.prefix_len) if self.prefix_len else 0,
        )

    def as_json(self) -> dict[str, Any]:
        record = asdict(self)
        record["slo_ms"] = objectives_ms(record.pop("slo_seconds"))
        record["request_rate"] = None if math.isinf(self.request_rate) else self.request_rate
        return record

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> SweepOptions:
        """KvplanError for a record that no sweep wrote."""
        names = {option.name for option in fields(SweepOptions)}
        values = {name: value for name, value in record.items() if name in names}
        bounds = record.get("slo_ms", {})
        for name in ("boundary", "engine_args"):
            listed = values.get(name, ())
            values[name] = tuple(listed) if isinstance(listed, list) else listed
        rate = values.pop("request_rate", None)
        try:
            check_shape(values, SweepOptions, "options")
            check_shape(rate, float | None, "options.request_rate")
            check_shape(bounds, dict[str, float], "options.slo_ms")
        except ShapeError as error:
            raise KvplanError(f"The sweep's options cannot be read: {error}.") from error
        slo_seconds = {name: bound / 1000 for name, bound in bounds.items()}
        return SweepOptions(**values, slo_seconds=slo_seconds, request_rate=math.inf if rate is None else rate)


def with_absolute_paths(given: Mapping[str, Any]) -> dict[str, Any]:
    """Models and workloads that are files or directories get absolute paths, so that a resume finds them again."""
    values = dict(given)
    for name in ("model", "workload"):
        path = Path(str(values.get(name, ""))).expanduser()
        if name in values and path.exists():
            values[name] = str(path.resolve())
    if (text := values.get("speculative_config")) is not None:
        values["speculative_config"] = with_absolute_path(text)
    return values


_WRITTEN: Final = {"slo_seconds": "slo", "start": "from", "end": "to"}
"""Options whose fields have other names."""


def refuse_differences(stored: SweepOptions, given: Mapping[str, Any]) -> None:
    """KvplanError if an option on the command line differs from what the directory was started with.

    given: option name -> value, only those that the user wrote; axes by their own names.
    """
    differences = []
    for name, value in given.items():
        before: Any = stored.axes.get(name) if name in AXES else getattr(stored, name)
        if name == "num_runs":
            before = stored.repetitions
        if name == "slo_seconds":
            before, value = objectives_ms(before), objectives_ms(value)
        if before != value:
            option = option_of(_WRITTEN.get(name, name))
            differences.append(f"{option} was {_written(before)}, now {_written(value)}")
    if differences:
        raise KvplanError(
            f"The directory was started with different options: {'; '.join(differences)}.",
            hint="leave these options out to continue it, or start a new sweep with --out",
        )


def _written(value: object) -> str:
    """An option's value as it is written on the command line."""
    if value is None or value in ((), {}):
        return "not given"
    if isinstance(value, Mapping):
        return " ".join(f"{name}:{bound:g}" for name, bound in value.items())
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
