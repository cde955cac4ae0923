"""Has kvplan's own engine judge the times of played fleets. On a quiet machine: python tools/check_fleet_times.py TRACE

    --out DIR   keeps the sweep, the profile and every load's directory (default: a temporary one)
    --only N    these fleets alone (repeatable; numbers as printed)

TRACE is Mooncake's conversation trace. Its lengths are divided by 32 and its times stretched, so that one core can
serve it; what its prompts share is kept. The play is given what ``tools/check_loads.py`` measures first: steps of this
machine's CPU, and the server's own work on a request. Then ``kvplan serve`` serves each fleet, with as many engines
behind its router as the fleet has replicas, and ``kvplan load`` sends the file. Fleets and service level were set
before the first run. The trace's clock ticks every 3 s: what comes at one tick is spread until the next, as the file
does not say in which order it came, and a short prompt is with the engine before a long one.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import check_loads  # noqa: E402
from clients.served import Served as Server  # noqa: E402
from kvplan.catalog.models import resolve_model  # noqa: E402
from kvplan.estimate.speed.device_speed import DeploymentSpeed  # noqa: E402
from kvplan.fleet.replicas.fleet import Fleet  # noqa: E402
from kvplan.fleet.replicas.setup import PoolLayout, ReplicaSetup  # noqa: E402
from kvplan.fleet.requests import requests_of_file  # noqa: E402
from kvplan.fleet.routers.in_turn import RoundRobin  # noqa: E402
from kvplan.fleet.routers.own import OwnRouter  # noqa: E402
from kvplan.fleet.windows import figures_of  # noqa: E402
from kvplan.workload.part import FilePart  # noqa: E402

SHORTER: Final = 32
"""Of the trace's lengths; a block of 512 tokens is one of 16 then."""
SWEEP: Final = (*check_loads.SWEEP, "--input-len", "48..896", "--output-len", "4..32")
"""With the lengths of the shortened trace."""
SLO_MS: Final = {"ttft_p99": 2500.0, "tpot_p50": 60.0}


@dataclass(frozen=True, slots=True)
class AskedFleet:
    """speed: times as fast as the trace. start: of its requests, the first that is sent."""

    replicas: int
    speed: float
    start: int
    requests: int = 80

    @property
    def name(self) -> str:
        return f"{self.replicas} x at {self.speed:g} of the speed, from request {self.start}"


FLEETS: Final = (
    AskedFleet(1, 0.15, 0),
    AskedFleet(1, 0.25, 0),
    AskedFleet(1, 0.25, 2000),
    AskedFleet(1, 0.4, 4000),
    AskedFleet(1, 0.6, 6000),
    AskedFleet(2, 0.25, 0),
    AskedFleet(2, 0.4, 2000),
    AskedFleet(2, 0.4, 4000),
    AskedFleet(2, 0.6, 6000),
    AskedFleet(2, 0.8, 8000),
)


class Times(NamedTuple):
    """Of one fleet: tokens per second, milliseconds, and the share of prompt tokens that were found."""

    throughput: float
    tpot_p50: float
    ttft_p50: float
    ttft_p90: float
    ttft_p99: float
    hit_rate: float

    @property
    def keeps(self) -> bool:
        return all(getattr(self, name) <= most for name, most in SLO_MS.items())

    def errors(self, other: Times) -> list[float]:
        """Of these as predictions of ``other``, hits apart."""
        return [one / two - 1 for one, two in zip(self[:5], other[:5], strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", type=int, nargs="*", default=range(1, len(FLEETS) + 1))
    given = parser.parse_args()
    if not given.trace.is_file():
        parser.error(f"{given.trace} is not a file")
    check_loads.leave_a_core()
    with ExitStack() as stack:
        out = given.out or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        out.mkdir(parents=True, exist_ok=True)
        profile = check_loads.calibrate(out, SWEEP)
        speed = check_loads.behind(check_loads.measured_front_end(out), check_loads.deployed(profile))
        print(f"steps: {speed.note}; server: {1000 * speed.rules.front_end.request_seconds:.1f} ms a request")
        print("\nplayed / measured, error\n")
        print("| fleet | tokens/s | TPOT p50, ms | TTFT p50, ms | TTFT p90, ms | TTFT p99, ms | hits, % | SLO |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        pairs = []
        for number in given.only:
            asked = FLEETS[number - 1]
            path = shortened(given.trace, asked, out / f"trace-{number}.jsonl")
            pairs.append((played(asked, path, speed), served(asked, path, out / f"fleet-{number}")))
            _print_pair(number, *pairs[-1])
    _print_summary(pairs)


def shortened(trace: Path, asked: AskedFleet, path: Path) -> Path:
    """Write the fleet's part of the trace with shorter prompts and answers. A whole block stays a whole one."""
    with trace.open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file][asked.start : asked.start + asked.requests]
    longest = check_loads.CONTEXT * SHORTER * 7 // 8
    for row in rows:
        row["input_length"] = max(min(row["input_length"], longest) // SHORTER, 1)
        row["output_length"] = min(max(row["output_length"] // SHORTER, 2), check_loads.CONTEXT // 8)
        row["hash_ids"] = row["hash_ids"][: -(-row["input_length"] // (512 // SHORTER))]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def played(asked: AskedFleet, path: Path, speed: DeploymentSpeed) -> Times:
    """What the play says."""
    rules, size = speed.rules, check_loads.BLOCK
    num_blocks = int(rules.pool_tokens) // size
    setup = ReplicaSetup(rules, speed.model.steps, PoolLayout.full_attention(size, num_blocks))
    router = OwnRouter(size, num_blocks, rules.max_num_seqs) if asked.replicas > 1 else RoundRobin()
    play = Fleet(setup, asked.replicas, router).play(
        requests_of_file(path, FilePart(speed=asked.speed, spreads_ticks=True))
    )
    figures = figures_of(play)
    assert figures.tpot is not None, "answers have several tokens"
    hits = sum(each.num_hit_tokens for each in play.seen) / sum(each.request.num_prompt_tokens for each in play.seen)
    times = (figures.tpot.median, figures.ttft.median, figures.ttft.p90, figures.ttft.p99)
    return Times(figures.output_throughput, *(1000 * each for each in times), hits)


def served(asked: AskedFleet, path: Path, out: Path) -> Times:
    """The same, served and sent."""
    out.mkdir(exist_ok=True)
    model = check_loads._model(resolve_model(check_loads.MODEL), out)
    replicas = ["--data-parallel-size", str(asked.replicas)] if asked.replicas > 1 else []
    with Server(model, [*check_loads.SERVED, *replicas]) as server:
        check_loads.give_engines_a_core(server)
        command = [
            "load",
            server.url,
            "--workload",
            str(path),
            "--speed",
            str(asked.speed),
            "--spread-ticks",
            "--out",
            str(out / "load"),
        ]
        check_loads._run(*command)
    row = pd.read_csv(out / "load" / "results.csv").iloc[0]
    names = ("output_throughput", "median_tpot_ms", "median_ttft_ms", "p90_ttft_ms", "p99_ttft_ms")
    return Times(*(float(row[name]) for name in names), float(row["prefix_hit_rate"]))


def _print_pair(number: int, told: Times, seen: Times) -> None:
    cells = (
        f"{one:,.0f} / {two:,.0f}, {100 * error:+.0f} %"
        for one, two, error in zip(told, seen, told.errors(seen), strict=False)
    )
    hits = f"{100 * told.hit_rate:.1f} / {100 * seen.hit_rate:.1f}"
    words = {True: "kept", False: "missed"}
    row = f"{number}. {FLEETS[number - 1].name} | {' | '.join(cells)} | {hits}"
    print(f"| {row} | {words[told.keeps]} / {words[seen.keeps]} |", flush=True)


def _print_summary(pairs: list[tuple[Times, Times]]) -> None:
    errors = zip(*(told.errors(seen) for told, seen in pairs), strict=True)
    sizes = [[100 * abs(error) for error in column] for column in errors]
    cells = " | ".join(f"{median(column):.1f} %, at most {max(column):.1f} %" for column in sizes)
    apart = max(100 * abs(told.hit_rate - seen.hit_rate) for told, seen in pairs)
    agree = sum(told.keeps == seen.keeps for told, seen in pairs)
    print(f"| median error | {cells} | at most {apart:.1f} apart | {agree} of {len(pairs)} |")


if __name__ == "__main__":
    main()
