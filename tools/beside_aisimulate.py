"""What NVIDIA's aisimulate and a played fleet say of one trace, and which of them vLLM's own scheduler agrees with.

    python tools/beside_aisimulate.py TRACE --aisimulate BIN [--vllm-python PYTHON] [--requests 300] [--played 2000]

TRACE is Mooncake's conversation trace. First its requests one after the other, so that times decide nothing: the tokens
that each program finds in the prefix cache of one replica. vLLM's scheduler (0.32 or later, without a model) is the
judge, with the blocks that vLLM gives the model. Then the trace as it is, over eight replicas in turn, with times.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from fleet_checks.beside import Case, vllm_records  # noqa: E402
from fleet_checks.playing import played  # noqa: E402
from kvplan.catalog.engines import EngineChoice  # noqa: E402
from kvplan.catalog.models import resolve_model  # noqa: E402
from kvplan.estimate.parallel import ParallelLayout  # noqa: E402
from kvplan.fleet.replicas.fleet import Fleet  # noqa: E402
from kvplan.fleet.requests import requests_of_file  # noqa: E402
from kvplan.fleet.routers.in_turn import RoundRobin  # noqa: E402
from kvplan.fleet.windows import figures_of  # noqa: E402
from kvplan.planner.choices.basis import PlanBasis  # noqa: E402
from kvplan.planner.choices.deployment import DeploymentChoice  # noqa: E402
from kvplan.planner.fleets.setups import FleetChoice, fleet_choice  # noqa: E402
from kvplan.planner.question.asking import plan_request  # noqa: E402
from kvplan.planner.question.request import complete  # noqa: E402
from kvplan.planner.search.plan import formats_asked  # noqa: E402
from kvplan.settings import ServingSettings  # noqa: E402
from kvplan.workload.part import FilePart  # noqa: E402

SEATS, STEP_TOKENS, APART_SECONDS = 256, 8192, 600
REPLICAS: Final = 8


class Asked(NamedTuple):
    """A model by both programs' names. num_blocks: of 16 tokens; 0 for a pool of its own blocks that never evicts."""

    name: str
    their_name: str
    ranks: int
    num_blocks: int


MODELS: Final = (
    Asked("llama-3.1-8b", "meta-llama/Meta-Llama-3.1-8B", 1, 25_000),
    Asked("qwen3.5-27b", "Qwen/Qwen3.5-27B", 2, 0),
)
_NEVER_FULL: Final = 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--aisimulate", required=True, help="the program, in an environment of its own")
    parser.add_argument("--vllm-python", help="the Python that has vLLM")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--played", type=int, default=2000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        _compare_hits(given, Path(folder))
        _compare_times(given, Path(folder))


# ---- hits, one request after the other


def _compare_hits(given: argparse.Namespace, folder: Path) -> None:
    print("| model | prompt tokens | kvplan finds | aisimulate finds | vLLM finds | requests unlike vLLM's |")
    print("| --- | ---: | ---: | ---: | ---: | --- |")
    path = _one_by_one(given.trace, given.requests, folder / "one-by-one.jsonl")
    requests = [replace(each, num_output_tokens=1) for each in requests_of_file(path)]
    total = sum(each.num_prompt_tokens for each in requests)
    for asked in MODELS:
        choice = _choice(asked, given.trace)
        layout = replace(choice.setup.pool, num_blocks=asked.num_blocks or _NEVER_FULL)
        mine = {number: one.hit for number, one in played(requests, layout, SEATS, STEP_TOKENS).outcomes.items()}
        theirs = _their_hits(given.aisimulate, asked, path, folder)
        judge: dict[int, int] = {}
        if given.vllm_python:
            (record,) = vllm_records(requests, [Case(asked.name, layout, SEATS, STEP_TOKENS)], given.vllm_python)
            judge = {number: one.hit for number, one in record.outcomes.items()}
        unlike = [sum(found[number] != hit for number, hit in judge.items()) for found in (mine, theirs)]
        said = f"kvplan {unlike[0]}, aisimulate {unlike[1]} of {len(judge)}" if judge else "not asked"
        cells = (f"{sum(found.values()):,}" if found else "-" for found in (mine, theirs, judge))
        print(f"| {asked.name} | {total:,} | {' | '.join(cells)} | {said} |", flush=True)


def _one_by_one(trace: Path, count: int, path: Path) -> Path:
    """Write the first requests, each sent long after the one before it, with answers of one token."""
    with trace.open(encoding="utf-8") as file:
        rows = [json.loads(line) for _, line in zip(range(count), file, strict=False)]
    for number, row in enumerate(rows):
        row |= {"timestamp": number * APART_SECONDS * 1000, "output_length": 1}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def _their_hits(program: str, asked: Asked, path: Path, folder: Path) -> dict[int, int]:
    cache: dict[str, Any] = {"capacity": {"type": "fixed", "blocks": asked.num_blocks or _NEVER_FULL}}
    if asked.num_blocks:
        cache["block_size"] = 16
    _, out = _predict(program, asked, path, folder, {"kv_cache": cache})
    with (out / "requests.jsonl").open(encoding="utf-8") as file:
        rows = sorted(map(json.loads, file), key=lambda row: row["arrival_time_ms"])
    return {number: row["admission_history"][0]["reused_input_tokens"] for number, row in enumerate(rows)}


# ---- times


def _compare_times(given: argparse.Namespace, folder: Path) -> None:
    print(f"\n{given.played:,} requests over {REPLICAS} replicas in turn, on H100\n")
    print("| model | program | reused, % | TTFT mean, ms | TTFT p99, ms | TPOT mean, ms | seconds |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    path = folder / "first.jsonl"
    with given.trace.open(encoding="utf-8") as file:
        path.write_text("".join(line for _, line in zip(range(given.played), file, strict=False)), encoding="utf-8")
    for asked in MODELS:
        for row in (_our_times(asked, path, given.trace), _their_times(given.aisimulate, asked, path, folder)):
            print(f"| {asked.name} | {row} |", flush=True)


def _our_times(asked: Asked, path: Path, trace: Path) -> str:
    choice, began = _choice(asked, trace), time.monotonic()
    requests = requests_of_file(path, FilePart())
    play = Fleet(choice.setup, REPLICAS, RoundRobin()).play(requests)
    seconds, figures = time.monotonic() - began, figures_of(play)
    assert figures.tpot is not None, "answers have several tokens"
    hits = sum(each.num_hit_tokens for each in play.seen) / sum(each.num_prompt_tokens for each in requests)
    times = (1000 * figures.ttft.mean, 1000 * figures.ttft.p99, 1000 * figures.tpot.mean)
    return f"kvplan | {100 * hits:.1f} | {times[0]:,.0f} | {times[1]:,.0f} | {times[2]:.1f} | {seconds:.1f}"


def _their_times(program: str, asked: Asked, path: Path, folder: Path) -> str:
    found, _ = _predict(program, asked, path, folder, {}, REPLICAS)
    times = (found["mean_ttft_ms"], found["p99_ttft_ms"], found["mean_tpot_ms"])
    reused, seconds = 100 * found["prefix_cache_reused_ratio"], found["wall_time_ms"] / 1000
    return f"aisimulate | {reused:.1f} | {times[0]:,.0f} | {times[1]:,.0f} | {times[2]:.1f} | {seconds:.1f}"


# ---- both programs


def _choice(asked: Asked, trace: Path) -> FleetChoice:
    """A replica of the model on H100, as a plan has it."""
    spec = resolve_model(asked.name)
    longest = max(each.num_prompt_tokens + each.num_output_tokens for each in requests_of_file(trace))
    request = plan_request(
        EngineChoice.parse("vllm", known=("vllm",)),
        ServingSettings(),
        request_rate=1.0,
        input_len="12k",
        output_len="350",
        ctx_max=str(longest),
        gpu=["h100-sxm"],
        max_gpus=REPLICAS * asked.ranks,
    )
    basis = PlanBasis(request, complete(request, spec))
    pair = formats_asked(spec, request)[0][0]
    found = fleet_choice(
        basis, DeploymentChoice(basis.gpus[0], ParallelLayout(asked.ranks), pair.weights, pair.kv_cache_dtype)
    )
    assert found is not None, "the model fits"
    return found


def _predict(
    program: str, asked: Asked, path: Path, folder: Path, worker: dict[str, Any], replicas: int = 1
) -> tuple[dict[str, Any], Path]:
    config, out = folder / "predict.json", folder / f"{asked.name}-{path.stem}"
    shape = {"parallelism": {"replicas": replicas, "tensor": asked.ranks}}
    document = {
        "traffic": {
            "source": {"type": "trace", "paths": [str(path)], "format": "mooncake", "block_size": 512},
            "load": {"type": "trace_timestamps"},
        },
        "engine": {
            "mode": "aggregated",
            "model": asked.their_name,
            "hardware": "h100_sxm",
            "backend": "vllm",
            "workers": {"aggregated": shape | worker},
        },
    }
    config.write_text(json.dumps(document), encoding="utf-8")
    words = [program, "predict", "--config", str(config), "--output-dir", str(out), "--overwrite"]
    done = subprocess.run([*words, "--capture-per-request"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"error: aisimulate stopped: {done.stderr[-800:]}")
    return json.loads((out / "prediction.json").read_text(encoding="utf-8")), out


if __name__ == "__main__":
    main()
