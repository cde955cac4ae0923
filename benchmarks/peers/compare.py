"""kvplan's engine and its peers on the same requests, in one run, in turn.

    python benchmarks/peers/compare.py MODELS --peer vllm=VENV/bin/python --peer openvino=VENV/bin/python

MODELS is what models.py wrote. Each engine is a process in its own environment, loaded once for each model, type and
prefix setting; then they run each scenario in turn, in an order that rotates with every round, after one run that is
not counted. A run during which other processes took more than 4 % of the machine is repeated; where that stayed so,
the table says how noisy the run was that was kept. Ratios are medians of the rounds' own ratios, since absolute
speeds drift.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from models import DENSE
from protocol import Order
from workload import SCENARIO_NAMES, VOCAB_SIZES, scenario

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
QUIET_SHARE = 0.04
MAX_REPEATS = 2
# Settings that each project recommends for its CPU backend.
ENVIRONMENT = {
    "vllm": {"OMP_NUM_THREADS": "{threads}"},
    "vllm-eager": {"OMP_NUM_THREADS": "{threads}", "VLLM_EAGER": "1"},
}
SCRIPTS = {"vllm-eager": "engine_vllm.py"}


@dataclass(frozen=True, slots=True)
class Run:
    """One timed run. noise: share of the machine's processor time that other processes took meanwhile."""

    seconds: float
    noise: float
    crc: str


@dataclass(slots=True)
class Cell:
    """All runs of one model, type and scenario: engine -> its runs, one for each round."""

    model: str
    dtype: str
    scenario: str
    runs: dict[str, list[Run]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


class EngineFailed(Exception):
    """An engine ended or answered something else than a run."""


class EngineProcess:
    """An engine in its own Python, spoken to in JSON lines."""

    def __init__(self, name: str, python: str, order: Order, preload: str | None, log: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'engine'}" if name == "kvplan" else ""}
        for key, value in ENVIRONMENT.get(name, {}).items():
            environment[key] = value.format(threads=order.num_threads)
        if preload:
            environment["LD_PRELOAD"] = preload
        script = HERE / SCRIPTS.get(name, f"engine_{name}.py")
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [python, str(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
            )
        self.loaded = self._ask(asdict(order))

    def run(self, name: str) -> Run:
        busy, own, started = _busy_seconds(), self._cpu_seconds(), time.perf_counter()
        answer = self._ask({"scenario": name})
        elapsed = time.perf_counter() - started
        others = _busy_seconds() - busy - (self._cpu_seconds() - own)
        if not answer["lengths_ok"]:
            raise EngineFailed("gave answers of another length than asked for")
        return Run(answer["seconds"], max(0.0, others / (elapsed * (os.cpu_count() or 1))), answer["crc"])

    def close(self) -> None:
        self._process.stdin.close()  # type: ignore[union-attr]
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()  # type: ignore[union-attr]

    def _ask(self, document: dict[str, Any]) -> dict[str, Any]:
        try:
            self._process.stdin.write(json.dumps(document) + "\n")  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]
            line = self._process.stdout.readline()  # type: ignore[union-attr]
        except BrokenPipeError:
            line = ""
        if not line:
            last = self._log.read_text(errors="replace").strip().splitlines()[-1:] or ["no message"]
            raise EngineFailed(f"ended: {last[0][:160]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _cpu_seconds(self) -> float:
        """User and system time of the process with its threads and ended children."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(int(value) for value in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def _busy_seconds() -> float:
    fields = [int(value) for value in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, _idle, _waiting, interrupts, soft_interrupts, stolen = fields
    return (user + nice + system + interrupts + soft_interrupts + stolen) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _engines(peers: dict[str, str], order: Order, options: argparse.Namespace, cell: Cell) -> Iterator[dict[str, Any]]:
    """All engines loaded for one order; one that cannot load is named in the cell's failures."""
    with ExitStack() as stack:
        engines: dict[str, EngineProcess] = {}
        for name, python in peers.items():
            log = options.logs / f"{name}-{order.model}-{order.dtype}.log"
            preload = options.preload.get(name)
            try:
                engine = EngineProcess(name, python, order, preload, log)
            except EngineFailed as failure:
                cell.failures[name] = str(failure)
                continue
            stack.callback(engine.close)
            engines[name] = engine
        yield engines


def measure(model: str, dtype: str, name: str, peers: dict[str, str], options: argparse.Namespace) -> Cell:
    """One cell of the table: every engine loaded, warmed up, and run in turn."""
    cell = Cell(model, dtype, name)
    shares = scenario(name, model).shares_prefixes
    directory = str((options.models / f"{model}-{dtype}").resolve())
    order = Order(model, directory, dtype, options.threads, shares)
    with _engines(peers, order, options, cell) as engines:
        for engine_name in list(engines):
            try:
                engines[engine_name].run(name)
            except EngineFailed as failure:
                cell.failures[engine_name] = str(failure)
                del engines[engine_name]
        for round_index in range(options.rounds):
            names = list(engines)
            turn = round_index % max(1, len(names))
            for engine_name in names[turn:] + names[:turn]:
                run = _quietest_run(engines[engine_name], name)
                cell.runs.setdefault(engine_name, []).append(run)
                print(f"  {engine_name}: {run.seconds:.2f} s, others {run.noise:.0%}", file=sys.stderr)
    return cell


def _quietest_run(engine: EngineProcess, name: str) -> Run:
    best = engine.run(name)
    for _ in range(MAX_REPEATS):
        if best.noise <= QUIET_SHARE:
            break
        best = min(best, engine.run(name), key=lambda run: run.noise)
    return best


def _lines(cell: Cell) -> Iterator[str]:
    tokens = scenario(cell.scenario, cell.model).output_tokens
    ours = cell.runs.get("kvplan", [])
    for name, runs in cell.runs.items():
        speed = tokens / statistics.median(run.seconds for run in runs)
        ratios = [other.seconds / own.seconds for own, other in zip(ours, runs, strict=False)]
        ratio = f"{statistics.median(ratios):6.2f} x" if ratios and name != "kvplan" else "        "
        noise = max(run.noise for run in runs)
        yield (
            f"{cell.model:<14} {cell.dtype:<9} {cell.scenario:<8} {name:<12} {speed:>9.1f}  {ratio}  "
            f"{noise:>6.1%}  {runs[0].crc}"
        )
    for name, failure in cell.failures.items():
        yield f"{cell.model:<14} {cell.dtype:<9} {cell.scenario:<8} {name:<12} failed: {failure}"


def _pairs(values: list[str]) -> dict[str, str]:
    return dict(value.split("=", 1) for value in values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path)
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME=PYTHON", help="vllm, vllm-eager, openvino, transformers"
    )
    parser.add_argument("--preload", action="append", default=[], metavar="NAME=LIBRARIES", help="LD_PRELOAD of a peer")
    parser.add_argument("--model", action="append", choices=list(VOCAB_SIZES))
    parser.add_argument("--dtype", action="append", choices=["float32", "bfloat16"])
    parser.add_argument("--scenario", action="append", choices=SCENARIO_NAMES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=Path("peers.json"), help="every run, as JSON")
    options = parser.parse_args()
    options.preload = _pairs(options.preload)
    options.logs = options.out.with_suffix(".logs")
    options.logs.mkdir(parents=True, exist_ok=True)
    peers = {"kvplan": sys.executable, **_pairs(options.peer)}
    cells: list[Cell] = []
    print(
        f"{'model':<14} {'dtype':<9} {'scenario':<8} {'engine':<12} {'tokens/s':>9} {'kvplan is':>9}   noise  "
        "tokens' CRC"
    )
    for model in options.model or list(DENSE):
        for dtype in options.dtype or ["float32", "bfloat16"]:
            for name in options.scenario or ["batch"]:
                cell = measure(model, dtype, name, peers, options)
                cells.append(cell)
                print("\n".join(_lines(cell)), flush=True)
                options.out.write_text(json.dumps([asdict(done) for done in cells], indent=1) + "\n")


if __name__ == "__main__":
    main()
