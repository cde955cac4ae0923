"""kvplan's engine and its peers on the same requests, in one run, in turn.

    python benchmarks/peers/compare.py MODELS --peer vllm=VENV/bin/python --peer openvino=VENV/bin/python

MODELS is what models.py and quantise.py wrote. Each engine is a process in its own environment, loaded once for each
model, type and prefix setting; then they run each scenario in turn, in an order that rotates with every round, after
one run that is not counted. kvplan-bfloat16 is kvplan on the weights as they were before they were quantised,
kvplan-int8 with activations rounded to 8 bits. A run during which other processes took more than 4 % of the machine is
repeated; where that stayed so, the table says how noisy the run was that was kept. Ratios are medians of the rounds'
own ratios, since absolute speeds drift.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path

from engine_process import PEERS, EngineFailed, EngineProcess, Run
from formats import DTYPES, QUANTISED
from models import DENSE
from protocol import Order
from workload import SCENARIO_NAMES, VOCAB_SIZES, scenario

_OURS = ("kvplan", "kvplan-int8")
QUIET_SHARE = 0.04
MAX_REPEATS = 2


@dataclass(slots=True)
class Cell:
    """All runs of one model, type and scenario: engine -> its runs, one for each round."""

    model: str
    dtype: str
    scenario: str
    runs: dict[str, list[Run]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Loaded:
    """Engines by name, and what those said that could not load."""

    engines: dict[str, EngineProcess] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def _order_of(engine: str, order: Order) -> Order:
    if engine == "kvplan-int8":
        return replace(order, rounds_activations=True)
    if engine != "kvplan-bfloat16":
        return order
    return replace(order, directory=order.directory.removesuffix(order.dtype) + "bfloat16", dtype="bfloat16")


@contextmanager
def _engines(peers: dict[str, str], order: Order, options: argparse.Namespace) -> Iterator[_Loaded]:
    """All engines loaded for one order."""
    with ExitStack() as stack:
        loaded = _Loaded()
        for name, python in peers.items():
            log = options.logs / f"{name}-{order.model}-{order.dtype}.log"
            preload = options.preload.get(name)
            try:
                engine = EngineProcess(name, python, _order_of(name, order), preload, log)
            except EngineFailed as failure:
                loaded.failures[name] = str(failure)
                continue
            stack.callback(engine.close)
            loaded.engines[name] = engine
        yield loaded


def measure(model: str, dtype: str, shares: bool, peers: dict[str, str], options: argparse.Namespace) -> Iterator[Cell]:
    """The cells of one model and type, of the scenarios that share prefixes or of those that do not."""
    names = [name for name in options.scenario or ["batch"] if scenario(name, model).shares_prefixes == shares]
    if not names:
        return
    directory = str((options.models / f"{model}-{dtype}").resolve())
    with _engines(peers, Order(model, directory, dtype, options.threads, shares), options) as loaded:
        for name in names:
            cell = Cell(model, dtype, name, failures=dict(loaded.failures))
            _run_in_turn(cell, loaded.engines, options)
            yield cell


def _run_in_turn(cell: Cell, engines: dict[str, EngineProcess], options: argparse.Namespace) -> None:
    """Every engine warmed up, then in turn; one that fails is named in the cell, and not asked again."""
    for name in list(engines):
        try:
            engines[name].run(options.warm_up or cell.scenario)
        except EngineFailed as failure:
            cell.failures[name] = str(failure)
            engines.pop(name).close()
    for round_index in range(options.rounds):
        names = list(engines)
        turn = round_index % max(1, len(names))
        for name in names[turn:] + names[:turn]:
            run = _quietest_run(engines[name], cell.scenario)
            cell.runs.setdefault(name, []).append(run)
            print(f"  {name}: {run.seconds:.2f} s, others {run.noise:.0%}", file=sys.stderr)


def _quietest_run(engine: EngineProcess, name: str) -> Run:
    best = engine.run(name)
    for _ in range(MAX_REPEATS):
        if best.noise <= QUIET_SHARE:
            break
        best = min(best, engine.run(name), key=lambda run: run.noise)
    return best


def _ratio(cell: Cell, ours: str, name: str) -> str:
    """How many times as fast ``ours`` is, empty where it did not run."""
    pairs = zip(cell.runs.get(ours, []), cell.runs[name], strict=False)
    ratios = [other.seconds / own.seconds for own, other in pairs]
    return f"{statistics.median(ratios):6.2f} x" if ratios and name != ours else " " * 8


def _lines(cell: Cell) -> Iterator[str]:
    tokens = scenario(cell.scenario, cell.model).output_tokens
    for name, runs in cell.runs.items():
        speed = tokens / statistics.median(run.seconds for run in runs)
        ratios = "  ".join(_ratio(cell, ours, name) for ours in _OURS)
        noise = max(run.noise for run in runs)
        yield (
            f"{cell.model:<14} {cell.dtype:<9} {cell.scenario:<8} {name:<15} {speed:>9.1f}  {ratios}  "
            f"{noise:>6.1%}  {runs[0].crc}"
        )
    for name, failure in cell.failures.items():
        yield f"{cell.model:<14} {cell.dtype:<9} {cell.scenario:<8} {name:<15} failed: {failure}"


def _pairs(values: list[str]) -> dict[str, str]:
    return dict(value.split("=", 1) for value in values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON", help=", ".join(PEERS))
    parser.add_argument("--preload", action="append", default=[], metavar="NAME=LIBRARIES", help="LD_PRELOAD of a peer")
    parser.add_argument("--model", action="append", choices=list(VOCAB_SIZES))
    parser.add_argument("--dtype", action="append", choices=[*DTYPES, *QUANTISED])
    parser.add_argument("--scenario", action="append", choices=SCENARIO_NAMES)
    parser.add_argument("--warm-up", choices=SCENARIO_NAMES, help="what runs first, uncounted (default: the scenario)")
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
        f"{'model':<14} {'dtype':<9} {'scenario':<8} {'engine':<15} {'tokens/s':>9} {'kvplan is':>9} {'int8 is':>9}"
        "   noise  tokens' CRC"
    )
    for model in options.model or list(DENSE):
        for dtype in options.dtype or ["float32", "bfloat16"]:
            for cell in chain.from_iterable(measure(model, dtype, shares, peers, options) for shares in (False, True)):
                cells.append(cell)
                print("\n".join(_lines(cell)), flush=True)
                options.out.write_text(json.dumps([asdict(done) for done in cells], indent=1) + "\n")


if __name__ == "__main__":
    main()
