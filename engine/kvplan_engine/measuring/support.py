"""What every measurement shares: rows with their provenance, a clock, and the device or its stand-in for a dry run."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import torch

from kvplan_engine.attention.cuda import CudaBackend
from kvplan_engine.kernels.cuda.launching.emulation import EmulatedRuntime
from kvplan_engine.kernels.cuda.launching.runtime import CudaRuntime
from kvplan_engine.kernels.cuda.ops import CudaOps

ROOT = Path(__file__).resolve().parents[3]
WARM_UPS, REPEATS = 3, 15
_CLOCK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Row:
    """One measured figure; ``share`` is value over ``reference``, a figure of the same run."""

    section: str
    name: str
    value: float
    unit: str
    shape: dict[str, Any] = field(default_factory=dict)
    share: float | None = None
    reference: str = ""
    goal: float | None = None
    """The least share that the project wants; None where there is none."""
    median_seconds: float | None = None
    samples_seconds: list[float] = field(default_factory=list)
    excluded: str = ""
    """What the time does not contain."""


COMMIT_VARIABLE = "KVPLAN_MEASURED_COMMIT"
"""The commit of these sources, for a machine that has them without their history."""


def provenance(runtime: CudaRuntime, dry: bool) -> dict[str, Any]:
    """What is needed to repeat a row, and whether it means anything."""
    changed = _git("status", "--porcelain")
    return {
        "device": runtime.properties.name,
        "compute_capability": "{}.{}".format(*runtime.properties.capability),
        "driver": runtime.properties.driver_version,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "commit": _git("rev-parse", "HEAD") or os.environ.get(COMMIT_VARIABLE),
        "uncommitted_changes": None if changed is None else bool(changed),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join(["python", *sys.argv]).replace(str(Path.home()), "~"),
        "dry_run": dry,
    }


def _git(*words: str) -> str | None:
    """What git says, or None on a machine without git or without the history."""
    if not (ROOT / "csrc").is_dir():  # an installed wheel, perhaps in somebody's repository
        return None
    try:
        result = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return result.stdout.strip() if result.returncode == 0 else None


class Bench:
    """A device to measure on. A dry run takes the emulation, so that every line runs and no figure means anything.

    The device is opened when it is first used: a section whose work is another process's must not hold memory of it.
    """

    def __init__(self, dry: bool, out: Path | None = None, seconds: float = 600.0) -> None:
        self.dry = dry
        self.out = out
        self._ends_at = time.monotonic() + seconds
        self.device = torch.device("cpu" if dry else "cuda")
        self.rows: list[Row] = []
        self._provenance: dict[str, Any] | None = None
        self._has_high_clocks = False

    @cached_property
    def runtime(self) -> CudaRuntime:
        if self.dry:
            return EmulatedRuntime()
        from kvplan_engine.kernels.cuda.launching.driver import current_runtime

        return current_runtime()

    @cached_property
    def backend(self) -> CudaBackend:
        return CudaBackend(self.runtime)

    @cached_property
    def cascade_backend(self) -> CudaBackend:
        """One whose decoding sequences attend together to what they share."""
        return CudaBackend(self.runtime, shares=True)

    @cached_property
    def wgmma_backend(self) -> CudaBackend | None:
        """One whose prompts are for products of warp groups; None on a device without."""
        return CudaBackend(self.runtime, wgmma=True) if self.runtime.properties.capability == (9, 0) else None

    @cached_property
    def ops(self) -> CudaOps:
        return CudaOps(self.runtime)

    def backend_with(self, warps: int, stages: int) -> CudaBackend:
        """A backend whose decode kernel has another shape."""
        return CudaBackend(self.runtime, decode_warps=warps, decode_stages=stages)

    def add(self, *fields: Any, **named: Any) -> None:
        """Keep a ``Row`` of these fields, write it and say it at once: what comes later may fail."""
        row = Row(*fields, **named)
        self.rows.append(row)
        if self.out is not None:
            with self.out.open("a") as file:
                file.write(json.dumps({**asdict(row), **self._origin()}) + "\n")
        share = "" if row.share is None else f"  {100 * row.share:5.1f} % of {row.reference}"
        print(
            f"  {row.name:34s} {json.dumps(row.shape):60s} {row.value:10.1f} {row.unit}{share}",
            file=sys.stderr,
            flush=True,
        )

    def add_bandwidth(
        self,
        section: str,
        name: str,
        shape: dict[str, Any],
        work: Callable[[], object],
        moved: int,
        rate: float,
        *,
        count: int = 1,
        **others: Any,
    ) -> None:
        """Time ``work``, which moves so many bytes ``count`` times; a row of bytes a second, beside the ``rate``."""
        samples = self.time(work)
        seconds = statistics.median(samples) / count
        timed = {"median_seconds": seconds, "samples_seconds": samples}
        speed = moved / seconds
        self.add(section, name, speed / 1e9, "GB/s", shape, share=speed / rate, **timed, **others)

    def add_step(self, name: str, shape: dict[str, Any], samples: list[float], wanted: float, **others: Any) -> None:
        """Add a row of a step of the engine, in milliseconds, beside the ``wanted`` seconds of ``reference``."""
        median = statistics.median(samples)
        timed = {"median_seconds": median, "samples_seconds": samples}
        self.add("engine", name, median * 1e3, "ms", shape, share=wanted / median, **timed, **others)

    def seconds_left(self) -> float:
        """Until this section is stopped."""
        return self._ends_at - time.monotonic()

    def _origin(self) -> dict[str, Any]:
        if self._provenance is None:
            self._provenance = provenance(self.runtime, self.dry)
        return self._provenance

    def release_memory(self) -> None:
        """Give what freed tensors left behind back, for whoever is measured next."""
        if not self.dry:
            torch.cuda.empty_cache()

    def synchronize(self) -> None:
        if not self.dry:
            torch.cuda.synchronize()

    def time(self, work: Callable[[], object], graph: bool = True) -> list[float]:
        """Seconds of each of several runs of ``work``, after warm-ups; on a device as a captured graph, by events."""
        if self.dry:
            started = time.perf_counter()
            work()
            return [time.perf_counter() - started]
        self._raise_clocks()
        for _ in range(WARM_UPS):
            work()
        torch.cuda.synchronize()
        run = self._captured(work) if graph else work
        run()
        pairs = []
        for _ in range(REPEATS):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            run()
            end.record()
            pairs.append((begin, end))
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) / 1e3 for begin, end in pairs]

    def _raise_clocks(self) -> None:
        """Work for a while, once: an idle device runs slowly, and what is measured first is what others are held to."""
        if self._has_high_clocks:
            return
        matrix = torch.ones(4096, 4096, dtype=torch.float16, device=self.device)
        ends_at = time.monotonic() + _CLOCK_SECONDS
        while time.monotonic() < ends_at:
            for _ in range(20):
                torch.mm(matrix, matrix)
            torch.cuda.synchronize()
        self._has_high_clocks = True

    def _captured(self, work: Callable[[], object]) -> Callable[[], object]:
        graph = torch.cuda.CUDAGraph()
        gc.disable()  # collecting another graph would void this one
        try:
            with torch.cuda.graph(graph):
                work()
        finally:
            gc.enable()
        return graph.replay

    def copy_bytes_per_second(self) -> float:
        """The device's own copy: bytes read plus bytes written, over time, of buffers far beyond any cache.

        The better of two ways, launched and captured: CUDA may copy otherwise in a graph.
        """
        source, target = (self._bytes_beyond_caches() for _ in range(2))
        ways = {"copy bandwidth, launched": False, "copy bandwidth, captured": True}
        return max(
            self._rate(name, 2 * source.nbytes, lambda: target.copy_(source), graph) for name, graph in ways.items()
        )

    def read_bytes_per_second(self) -> float:
        """Reading alone, as a sum does: what a decode step, which writes next to nothing, is measured against."""
        source = self._bytes_beyond_caches().view(torch.float32).zero_()
        total = torch.empty((), device=self.device)
        return self._rate("read bandwidth", source.nbytes, lambda: torch.sum(source, dim=0, out=total))

    def _bytes_beyond_caches(self) -> torch.Tensor:
        return torch.empty(1 << (16 if self.dry else 30), dtype=torch.uint8, device=self.device)

    def _rate(self, name: str, moved: int, work: Callable[[], object], graph: bool = True) -> float:
        seconds = statistics.median(self.time(work, graph))
        self.add("device", name, moved / seconds / 1e9, "GB/s", {"bytes": moved}, median_seconds=seconds)
        return moved / seconds


# Other programs, with a limit on their time: they end, with all they started, or are left behind. No torch.


SECONDS_TO_DIE = 10.0


def outcome_of(command: list[str], seconds: float, output: IO[Any], **options: Any) -> str:
    """How ``command`` ended, such as "exit code 0"; "stopped after ..." where it took more than ``seconds``.

    output: where it and what it started write. One that a hung device keeps from dying is left behind, and said.
    """
    process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, **options)
    try:
        outcome = f"exit code {process.wait(seconds)}"
    except subprocess.TimeoutExpired:
        outcome = f"stopped after {seconds:.0f} s"
    finally:
        is_dead = end(process)
    return outcome if is_dead else f"{outcome}, and did not die"


def end(process: subprocess.Popen[Any]) -> bool:
    """Kill ``process`` and all it started; False where it is still there ten seconds later."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(SECONDS_TO_DIE)
    except subprocess.TimeoutExpired:
        return False
    return True
