"""Has kvplan's own engine judge what a plan says of a load. Run on a quiet machine: python tools/check_loads.py

    --out DIR   keeps the sweep, the profile and every load's directory, and measures what is not there (default: a
                temporary one)
    --only N    these loads alone (repeatable; numbers as printed)

A sweep of this machine's CPU is calibrated, and the server's own work on a request measured before a model of one small
layer, whose steps take next to no time. Ten loads are then planned with that profile: the evaluator that
``kvplan plan`` decides by plays them, and says whether a service level is met. Then ``kvplan serve`` serves them and
``kvplan load`` sends them. The levels were set before the first run and are the same for all loads.

What comes at random is sent as it was played, request by request. p99 of TTFT is that of the few requests that came
while others were read: of 80 requests at 0.8 a second it has a standard deviation of 25 % from draw to draw, of 150 at
1.8 a second 18 % (30 draws, played), so that another draw says next to nothing of a prediction. Users have requests
drawn anew.

An engine has one thread and a core of its own; its server and the client share the others. Without that they take the
engine's time, of which a planner has no word, as on a GPU they do not. Two replicas have half of the users each, as
plans take it, and are measured one after the other, as machines of their own would be.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final, NamedTuple

import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from clients.served import Served as Server  # noqa: E402
from kvplan.catalog.devices.gpus import find_gpu  # noqa: E402
from kvplan.catalog.devices.measured import MeasuredProfiles, read_measured  # noqa: E402
from kvplan.catalog.engines import EngineChoice  # noqa: E402
from kvplan.catalog.models import resolve_model  # noqa: E402
from kvplan.catalog.spec import ModelSpec  # noqa: E402
from kvplan.engines.host import write_dummy_model  # noqa: E402
from kvplan.estimate.answer import EstimateRequest, make_estimate  # noqa: E402
from kvplan.estimate.speed.device_speed import DeploymentSpeed  # noqa: E402
from kvplan.estimate.speed.latency import SpeedModel  # noqa: E402
from kvplan.estimate.speed.queueing.front_end import FrontEnd  # noqa: E402
from kvplan.estimate.speed.queueing.loads import PlayedLoad, steady_rate, steady_users, thinking_users  # noqa: E402
from kvplan.estimate.speed.queueing.sharing import ExpectedHits, PromptSharing  # noqa: E402
from kvplan.estimate.speed.queues import Queues, play_queues  # noqa: E402
from kvplan.estimate.speed.steps.clocks import DeviceSpeed  # noqa: E402
from kvplan.load.traffic.prompts import WORDS  # noqa: E402
from kvplan.planner.choices.load import LoadedReplica, serve_rate, serve_thinking, serve_users  # noqa: E402
from kvplan.planner.choices.verdict import Expected, Verdict  # noqa: E402
from kvplan.planner.question.slo import DEFAULT_CONFIDENCE, Goal, parse_slo  # noqa: E402
from kvplan.settings import ServingSettings  # noqa: E402

MODEL: Final = "smollm2-135m"
SLO: Final = ("p99_ttft:500", "p99_tpot:50")
CONTEXT: Final = 1024
SEATS: Final = 32
STEP_TOKENS: Final = 256
BLOCK: Final = 16
MEMORY: Final = "2GiB"
SERVED: Final = (
    *("--dtype", "bfloat16", "--load-format", "dummy", "--max-model-len", str(CONTEXT), "--block-size", str(BLOCK)),
    *("--max-num-seqs", str(SEATS), "--max-num-batched-tokens", str(STEP_TOKENS), "--device-memory", MEMORY),
)
SWEEP: Final = (
    *("--model", MODEL, "--dtype", "bfloat16", "--load-format", "dummy", "--max-model-len", str(CONTEXT)),
    *("--block-size", str(BLOCK), "--max-num-seqs", "1,3,6,12,20", "--max-num-batched-tokens", f"64,{STEP_TOKENS}"),
    *("--device-memory", MEMORY, "--gpu-memory-utilization", "0.9", "--num-prompts", "40", "--no-rerun"),
    *("--input-len", "48..256", "--output-len", "16..48"),
)


@dataclass(frozen=True, slots=True)
class Asked:
    """One load. Lengths are means, spread evenly from two thirds of them to four thirds."""

    name: str
    users: int | None = None
    rate: float | None = None
    prompt: int = 96
    answer: int = 24
    think: float = 0.0
    burstiness: float = 1.0
    sharing: PromptSharing = PromptSharing()  # noqa: RUF009 - frozen
    replicas: int = 1
    requests: int = 200

    def arguments(self, seed: int) -> Iterator[str]:
        """What ``kvplan load`` is given for one replica's share of users."""
        share = self.requests // self.replicas
        yield from ("--num-prompts", str(share), "--num-warmups", str(share // 5), "--seed", str(seed))
        yield from ("--input-len", _spread(self.prompt), "--output-len", _spread(self.answer))
        if self.users is not None:
            yield from ("--users", str(self.users // self.replicas))
            yield from ("--think-time", str(self.think)) if self.think else ()
        yield from self.prefixes()

    def prefixes(self) -> Iterator[str]:
        """Yield what it is given for prompts that begin alike."""
        if self.sharing.prefix_tokens:
            prefix, number = self.sharing.prefix_tokens, self.sharing.num_prefixes
            yield from ("--prefix-len", str(prefix), "--num-prefixes", str(number))


LOADS: Final = (
    Asked("3 users", users=3),
    Asked("8 users", users=8),
    Asked("16 users, long answers", users=16, prompt=48, answer=96, requests=120),
    Asked("0.8 requests/s, Poisson", rate=0.8),
    Asked("1.8 requests/s, Poisson", rate=1.8),
    Asked("1.5 requests/s in bursts", rate=1.5, burstiness=0.3),
    Asked("6 users, 4 prefixes", users=6, sharing=PromptSharing(256, 4)),
    Asked("2 requests/s, 2 prefixes", rate=2.0, sharing=PromptSharing(384, 2)),
    Asked("20 users who think", users=20, think=8.0),
    Asked("8 users, two replicas", users=8, replicas=2),
)


_EARLY_REQUESTS: Final = 10
"""Sent one a second before a load whose prompts begin alike, and not counted."""


def _spread(mean: int) -> str:
    return f"{mean * 2 // 3}..{mean * 4 // 3}"


_SMALL: Final = {
    "num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 1,
    "num_key_value_heads": 1, "head_dim": 64,
}  # fmt: skip
"""Of the model before which the server's work is measured."""


class Figures(NamedTuple):
    """Of one load: tokens per second of all replicas, and milliseconds."""

    throughput: float
    tpot_p50: float
    ttft_p50: float
    ttft_p99: float
    meets: bool

    def errors(self, other: Figures) -> tuple[float, ...]:
        """Of these as predictions of ``other``."""
        return tuple(one / two - 1 for one, two in zip(self[:4], other[:4], strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", type=int, nargs="*", default=range(1, len(LOADS) + 1))
    given = parser.parse_args()
    leave_a_core()
    with ExitStack() as stack:
        out = given.out or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        out.mkdir(parents=True, exist_ok=True)
        profile = calibrate(out)
        speed = behind(measured_front_end(out), deployed(profile))
        print(f"goal: {', '.join(SLO)} with a confidence of {DEFAULT_CONFIDENCE}")
        print(f"steps: {speed.note}; server: {1000 * speed.rules.front_end.request_seconds:.1f} ms a request")
        told = {number: plan(LOADS[number - 1], speed) for number in given.only}
        _print_head()
        pairs = []
        for number in given.only:
            pairs.append((told[number], judged(number, out, speed)))
            _print_load(number, *pairs[-1])
    _print_summary(pairs)


_CORES: Final = sorted(os.sched_getaffinity(0))


def leave_a_core() -> None:
    """One thread for every engine, and the first core for engines alone, where there are several."""
    os.environ["OMP_NUM_THREADS"] = "1"
    os.sched_setaffinity(0, set(_CORES[1:] or _CORES))


def give_engines_a_core(server: Server) -> None:
    """The engines of a server run on the first core; of several, which is more than this is for, on the first few."""
    for place, task in enumerate(server.engine_processes()):
        for thread in Path(f"/proc/{task}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {_CORES[place % len(_CORES)]})


def calibrate(out: Path, sweep: Sequence[str] = SWEEP) -> Path:
    """A profile of one core, by the ``sweep`` of these options."""
    profile = out / "profile.json"
    if not profile.exists():
        _wait(_start("sweep", *sweep, "--out", str(out / "sweep"), core=_CORES[0]))
        _run("calibrate", str(out / "sweep"), "--out", str(profile))
    return profile


def measured_front_end(out: Path) -> FrontEnd:
    """Of ``kvplan serve`` and its client: a request's time to its first token where the engine needs none."""
    spec, folder = resolve_model(MODEL), out / "front-end"
    folder.mkdir(exist_ok=True)
    model = _model(replace(spec, raw_config={**spec.raw_config, **_SMALL}), folder)
    with Server(model, list(SERVED)) as server:
        give_engines_a_core(server)
        asked = Asked("front end", users=1, requests=100)
        _run("load", server.url, *asked.arguments(seed=0), "--out", str(folder / "load"))
    row = pd.read_csv(folder / "load" / "results.csv").iloc[0]
    return FrontEnd(request_seconds=float(row["median_ttft_ms"]) / 1000)


def behind(front_end: FrontEnd, speed: DeploymentSpeed) -> DeploymentSpeed:
    """The same replica behind its server."""
    rules, model = replace(speed.rules, front_end=front_end), replace(speed.model, engine_front_end=front_end)
    return replace(speed, rules=rules, model=model)


def deployed(path: Path) -> DeploymentSpeed:
    """One replica, as ``kvplan estimate --engine kvplan`` has it."""
    profile = read_measured(path)
    settings = ServingSettings(
        dtype="bfloat16",
        max_model_len=CONTEXT,
        block_size=BLOCK,
        max_num_seqs=SEATS,
        max_num_batched_tokens=STEP_TOKENS,
        device_memory_bytes=2 << 30,
    )
    request = EstimateRequest(CONTEXT, (find_gpu("cpu"),), EngineChoice("kvplan"), settings)
    spec = resolve_model(MODEL)
    found = make_estimate(spec, request, MeasuredProfiles((profile,))).speeds[0]
    assert found is not None, "the model fits"
    known = DeviceSpeed.of(profile, spec.id, "bfloat16")
    return replace(found, model=replace(found.model, device_speed=known), note=known.note)


def plan(asked: Asked, speed: DeploymentSpeed) -> Figures:
    """What the planner's evaluator says of it."""
    queues, served = _played(asked, speed)
    if queues is None:
        return Figures(float("nan"), float("inf"), float("inf"), float("inf"), meets=False)
    verdict = Verdict.of(Goal(parse_slo(SLO), DEFAULT_CONFIDENCE, True), Expected(served, queues), (served.share,))
    figures = queues.figures
    assert figures.tpot is not None, "answers have several tokens"
    return Figures(
        asked.replicas * queues.output_throughput,
        *(1000 * each for each in (figures.tpot.median, figures.ttft.median, figures.ttft.p99)),
        meets=verdict.meets,
    )


def _played(asked: Asked, speed: DeploymentSpeed) -> tuple[Queues | None, LoadedReplica]:
    model = _with_lengths(speed, asked)
    rules = replace(speed.rules, hit_tokens=BLOCK)
    load, served = _of_users(asked, model) if asked.rate is None else _at_rate(asked, asked.rate, model)
    if load is None or served.middle is None:
        return None, served
    rate = served.middle.requests_per_second if asked.rate is None else asked.rate / asked.replicas
    return play_queues(model, load.shared_as(asked.sharing, asked.think), rules, rate), served


def _at_rate(asked: Asked, rate: float, model: SpeedModel) -> tuple[PlayedLoad | None, LoadedReplica]:
    share = rate / asked.replicas
    served = serve_rate(model, share, SEATS)
    if served.middle is None:
        return None, served
    load = steady_rate(share, served.num_users, asked.prompt, asked.answer, served.middle.reading_share)
    return replace(load, burstiness=asked.burstiness), served


def _of_users(asked: Asked, model: SpeedModel) -> tuple[PlayedLoad, LoadedReplica]:
    users = (asked.users or 1) // asked.replicas
    if not asked.think:
        served = serve_users(model, users)
        assert served.middle is not None, "users wait for their answers"
        return steady_users(users, asked.prompt, asked.answer, served.middle.reading_share), served
    served = serve_thinking(model, users, asked.think)
    assert served.middle is not None, "users wait for their answers"
    reading = served.middle.reading_share
    return thinking_users(users, asked.think, served.num_users, asked.prompt, asked.answer, reading), served


def _with_lengths(speed: DeploymentSpeed, asked: Asked) -> SpeedModel:
    """A dense model's cache is read in proportion to what it holds."""
    model, sharing = speed.model, asked.sharing
    prompt = round(sharing.prompt_tokens(asked.prompt, asked.answer))
    context = prompt + asked.answer / 2
    hits = ExpectedHits(sharing, speed.rules.pool_tokens, BLOCK, asked.prompt, asked.answer, asked.think)
    return replace(
        model,
        input_tokens=prompt,
        output_tokens=asked.answer,
        kv_bytes=model.kv_bytes * context / speed.lengths.average_context,
        hits=hits if sharing.finds_anything else None,
    )


def judged(number: int, out: Path, speed: DeploymentSpeed) -> Figures:
    """The same load, served and sent."""
    asked, rows = LOADS[number - 1], []
    model = _model(resolve_model(MODEL), out)
    for index in range(asked.replicas):
        folder = out / f"load-{number}-{index}"
        if not folder.exists():
            with Server(model, list(SERVED)) as server:
                give_engines_a_core(server)
                sent = _as_played(asked, speed, out / f"load-{number}.csv")
                sent = sent or [*asked.arguments(seed=number + 100 * index)]
                _run("load", server.url, *sent, "--out", str(folder))
        rows.append(pd.read_csv(folder / "results.csv").iloc[0])
    return _measured(rows)


def _as_played(asked: Asked, speed: DeploymentSpeed, path: Path) -> list[str]:
    """Write the requests of a play to a file, and say what ``kvplan load`` is given for them; nothing of users."""
    if asked.rate is None:
        return []
    load, _ = _at_rate(asked, asked.rate, _with_lengths(speed, asked))
    assert load is not None, "it keeps up"
    # A server that has just started has no prefix in its cache, and the play is of one that has been up for long.
    early = range(_EARLY_REQUESTS if asked.sharing.prefix_tokens else 0)
    rows = [(float(second), asked.prompt, asked.answer) for second in early]
    rows += [(len(early) + time, *lengths) for time, lengths in zip(load.arrivals, load.lengths, strict=True)]
    lines = (f"{time:.6f},{prompt},{answer}\n" for time, prompt, answer in rows)
    path.write_text("arrival_seconds,input_len,output_len\n" + "".join(lines), encoding="utf-8")
    num_warmups = len(early) + load.num_warmups
    return ["--workload", str(path), "--num-warmups", str(num_warmups), *asked.prefixes()]


def _model(spec: ModelSpec, out: Path) -> Path:
    """Its config, and a tokenizer of its size with a token for each word that the client writes."""
    folder = write_dummy_model(spec, out)
    path = folder / "tokenizer.json"
    document = json.loads(path.read_text())
    named = dict(enumerate(WORDS, start=1))
    document["model"]["vocab"] = {
        named.get(number, word): number for word, number in document["model"]["vocab"].items()
    }
    path.write_text(json.dumps(document))
    return folder


def _measured(rows: Sequence[Any]) -> Figures:
    """Of replicas that are alike: throughputs add up, and the times of both are of one distribution."""
    bounds = [(f"{each.word}_ms", 1000 * each.seconds) for each in parse_slo(SLO).bounds()]
    return Figures(
        sum(float(row["output_throughput"]) for row in rows),
        median(float(row["median_tpot_ms"]) for row in rows),
        median(float(row["median_ttft_ms"]) for row in rows),
        fmean(float(row["p99_ttft_ms"]) for row in rows),
        meets=all(float(row[name]) <= bound for row in rows for name, bound in bounds),
    )


def _start(*arguments: str, core: int | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "kvplan", *arguments]
    pinned = [] if core is None else ["taskset", "--cpu-list", str(core)]
    return subprocess.Popen([*pinned, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _wait(process: subprocess.Popen[str]) -> None:
    said, _ = process.communicate()
    if process.returncode:
        raise SystemExit(said)


def _run(*arguments: str) -> None:
    _wait(_start(*arguments))


def _print_head() -> None:
    print("\npredicted / measured, error\n")
    print("| load | tokens/s | TPOT p50, ms | TTFT p50, ms | TTFT p99, ms | SLO |")
    print("| --- | --- | --- | --- | --- | --- |")


def _print_load(number: int, told: Figures, seen: Figures) -> None:
    cells = (
        f"{one:,.1f} / {two:,.1f}, {100 * error:+.0f} %"
        for one, two, error in zip(told, seen, told.errors(seen), strict=False)
    )
    words = {True: "met", False: "missed"}
    print(
        f"| {number}. {LOADS[number - 1].name} | {' | '.join(cells)} | {words[told.meets]} / {words[seen.meets]} |",
        flush=True,
    )


def _print_summary(pairs: Sequence[tuple[Figures, Figures]]) -> None:
    errors = list(zip(*(told.errors(seen) for told, seen in pairs), strict=True))
    sizes = [[100 * abs(error) for error in column] for column in errors]
    cells = (f"{median(column):.1f} %, at most {max(column):.1f} %" for column in sizes)
    print(f"| median error | {' | '.join(cells)} | {sum(a.meets == b.meets for a, b in pairs)} of {len(pairs)} |")


if __name__ == "__main__":
    main()
