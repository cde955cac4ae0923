"""What an engine's adapter is. Its parts that read are pure functions of text, so recorded outputs test them.

Life of a server: ``identify`` once before any trial; for each start ``command``, then readings of the log and of
``health_path`` until it is up; ``started`` once it is; ``failure`` when it is not, or ends under load. While it is
loaded, ``kvplan.metrics`` samples its metrics page, which knows every engine's names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from kvplan.catalog.spec import ModelSpec
from kvplan.engines.steps import StepLog
from kvplan.machine.device import Device
from kvplan.metrics.reading import EngineName, ServerReading
from kvplan.runs.statuses import ContextLimit, Status
from kvplan.runs.trials import TrialSettings
from kvplan.sweeps.forecast.pool import EngineModel

Stage = Literal["starting", "serving"]
"""starting: from the command to the first answer of ``health_path``; serving: under load."""


@dataclass(frozen=True, slots=True)
class Installation:
    """An engine as it is installed. version: None where it cannot be told before a start.

    device: what it computes on: an installation is built for one kind. notices: lines for the user.
    """

    version: str | None
    device: Literal["cpu", "cuda"]
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StartOrder:
    """What to start. model: the path or name that is given to the engine. load_format: auto, dummy, safetensors, gguf.

    port: free a moment ago, on the loopback. served_model_name: what requests will ask for. directory: of this trial,
    for what the engine writes.
    """

    model: str
    settings: TrialSettings
    port: int
    directory: Path
    load_format: str = "auto"
    served_model_name: str = "model"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Command:
    """A server to run. environment: set on top of this process's; a value of None takes the variable away."""

    argv: tuple[str, ...]
    environment: Mapping[str, str | None] = field(default_factory=dict)


def option_words(options: Mapping[str, str]) -> tuple[str, ...]:
    """Options as words of a command line; those without a value are flags."""
    return tuple(
        word for name, value in options.items() for word in ((f"--{name}", value) if value else (f"--{name}",))
    )


@dataclass(frozen=True, slots=True)
class StartedEngine:
    """What a server that is up says of itself, in bytes and tokens. None: it does not say.

    kv_cache_tokens: its own count, as printed. resolved: settings that it runs with where it tells them, under the
    names of TrialSettings; a difference from what was asked is an error of the command line.
    """

    version: str | None = None
    kv_cache_tokens: int | None = None
    num_blocks: int | None = None
    block_size: int | None = None
    kv_pool_bytes: int | None = None
    weights_bytes: int | None = None
    activation_bytes: int | None = None
    graph_bytes: int | None = None
    overhead_bytes: int | None = None
    budget_bytes: int | None = None
    max_concurrency: float | None = None
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    resolved: Mapping[str, int | float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a server ended, or failed to come up, without having been asked to.

    exit_code: as of subprocess (negative: the signal), None while it still runs. log: all that it printed.
    out_of_host_memory: the kernel killed a process of its group for memory meanwhile.
    """

    stage: Stage
    exit_code: int | None
    log: str
    out_of_host_memory: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed start or run as the sweep's columns have it. error: one sentence with the cause and the way out.

    stops_sweep: every trial would end so, as with a command line that the engine refuses. oom_phase: see the column.
    largest_max_model_len, context_limited_by: where the engine says what it would accept, and why no more.
    """

    status: Status
    error: str
    oom_phase: str | None = None
    largest_max_model_len: int | None = None
    context_limited_by: ContextLimit | None = None
    oom_requested_bytes: int | None = None
    oom_free_bytes: int | None = None
    stops_sweep: bool = False


class EngineAdapter(Protocol):
    """One engine of one installation, made from the options of a sweep."""

    @property
    def name(self) -> EngineName: ...

    @property
    def axes(self) -> frozenset[str]:
        """The settings (names of TrialSettings) that this engine has; an axis beyond them is refused by name."""

    @property
    def health_path(self) -> str:
        """Answers 200 once requests are served: ``/health``."""

    def identify(self) -> Installation:
        """Look at the installation, without starting it. KvplanError where there is none."""

    def command(self, order: StartOrder) -> Command:
        """The server's command line."""

    def started(self, log: str, reading: ServerReading | None) -> StartedEngine:
        """What log and metrics page say once it is up. reading: None where it has no metrics page."""

    def failure(self, ending: Ending) -> Failure:
        """Which of the sweep's statuses an ending is; ``crash`` with the last line where nothing is recognised."""

    def model(self, spec: ModelSpec, device: Device) -> EngineModel:
        """What a start should hold, or how it should fail, and the settings of a sweep that names none."""


@runtime_checkable
class LowersSettings(Protocol):
    """An adapter whose running server can be told smaller values of some settings, between two loads."""

    @property
    def lowered(self) -> frozenset[str]:
        """The names of these settings; none where it was not asked to."""

    def lower(self, directory: Path, settings: TrialSettings) -> None:
        """Tell the server that was started with this directory. The values are at most those of its start."""


@runtime_checkable
class TellsSteps(Protocol):
    """An adapter whose server writes down each of its steps."""

    def step_log(self, directory: Path) -> StepLog | None:
        """Log of steps of the server that was started with this directory; None where it was not asked to."""


@dataclass(frozen=True, slots=True)
class Preload:
    """What servers can be forked from: this Python with these modules imported, in this environment (as Command's).

    Its adapter's commands are then ``python -m MODULE ...``.
    """

    python: str
    modules: tuple[str, ...]
    environment: Mapping[str, str | None] = field(default_factory=dict)


@runtime_checkable
class Preloads(Protocol):
    """An adapter whose servers may be forked from a process that has imported the engine."""

    @property
    def preload(self) -> Preload | None:
        """None where each is to be started."""


def argument_pairs(texts: Sequence[str]) -> dict[str, str]:
    """``--engine-arg`` as given: ``["enforce-eager", "swap-space=2"]`` -> options by name; "" for a flag."""
    pairs = (text.strip().removeprefix("--").partition("=") for text in texts)
    return {name.replace("_", "-"): value for name, _, value in pairs}
