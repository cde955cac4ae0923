"""A sweep over another server, with ``kvplan serve`` as that: started, loaded, reused, killed, continued."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from serve_adapter import REFUSED_SEATS, ServeAdapter
from sweep_helpers import wait_until
from test_engine_processes import are_gone, keepers
from tiny_configs import llama_config

from kvplan.engines.interface import StartedEngine
from kvplan.engines.registry import AdaptedEngine
from kvplan.engines.serving.keeper import descendants
from kvplan.errors import UsageError
from kvplan.metrics.reading import ServerReading
from kvplan.sweeps.options import SweepOptions
from kvplan.sweeps.plan import make_plan
from kvplan.sweeps.progress import SilentProgress
from kvplan.sweeps.session import SweepOutcome, resume_sweep, run_new_sweep
from kvplan.sweeps.worker.protocol import Event

CONFIG = llama_config(
    intermediate_size=128,
    vocab_size=256,
    max_position_embeddings=2048,
    tie_word_embeddings=True,
    torch_dtype="float32",
)
ENGINE = AdaptedEngine(ServeAdapter())
LONG = {"num_prompts": 16, "input_len": "32", "output_len": "1900"}
"""A load that takes far longer than it takes to notice that it has begun."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small Llama without weights."""
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps(CONFIG), encoding="utf-8")
    return str(path)


def sweep(model: str, directory: Path, progress: SilentProgress | None = None, **given: Any) -> SweepOutcome:
    """A sweep with blocks of 16 tokens and room for 2,048."""
    engine = given.pop("engine", ENGINE)
    axes = {"block_size": "16", "max_model_len": "2048", **given.pop("axes")}
    options = SweepOptions(model=model, axes=axes, engine="vllm", load_format="dummy", rerun=False, **given)
    return run_new_sweep(make_plan(options, engine), directory, progress or SilentProgress(), command="test")


def test_trials_are_served_by_one_server_where_it_can(model: str, tmp_path: Path) -> None:
    lowering = AdaptedEngine(ServeAdapter(lowered=frozenset({"max_num_seqs"})))
    load = {"num_prompts": 6, "input_len": "20..40", "output_len": "8..12"}
    out = tmp_path / "run"
    done = sweep(model, out, engine=lowering, axes={"max_num_seqs": "2,4"}, num_runs=2, **load)
    requests = make_plan(SweepOptions(model=model, engine="vllm", **load), lowering).predictor.requests
    order = [(row["max_num_seqs"], row["run_number"], row["reused_server"]) for row in done.rows]
    assert order == [(4, 1, False), (4, 2, True), (2, 1, True), (2, 2, True)]
    for row in done.rows:
        assert (row["status"], row["completed"], row["failed"]) == ("ok", 6, 0), row["error"]
        assert row["total_input_tokens"] == sum(each.num_prompt_tokens for each in requests), "prompts of token ids"
        assert row["total_output_tokens"] == sum(each.num_output_tokens for each in requests)
        assert (row["engine"], row["engine_version"]) == ("kvplan", "0.1")
        assert row["kv_cache_tokens"] == row["num_blocks_total"] * 16  # type: ignore[operator]
        assert row["kv_cache_tokens_predicted"] and row["token_source"] == "continuous_usage"
        assert row["num_cached_tokens"] == 0, "a server that stays has not seen these prompts"
        assert (row["start_seconds"] is None) == row["reused_server"]
        assert (row["max_running"] or 0) <= row["max_num_seqs"]
    assert keepers(os.getpid()) == []
    again = resume_sweep(out, SilentProgress(), engine_of=lambda options: lowering)
    assert [row["trial_id"] for row in again.rows] == [row["trial_id"] for row in done.rows]


def test_a_server_that_does_not_come_up_is_a_row(model: str, tmp_path: Path) -> None:
    (row,) = sweep(model, tmp_path / "run", axes={"max_num_seqs": str(REFUSED_SEATS)}, num_prompts=1).rows
    assert row["status"] == "crash" and "exit code 1 while starting" in str(row["error"])
    assert row["output_throughput"] is None and row["kv_cache_tokens"] is None
    assert keepers(os.getpid()) == []


@dataclass
class Assassin(SilentProgress):
    """Kills the first server once it answers requests."""

    killed: list[int] = field(default_factory=list)

    def event(self, message: Event) -> None:
        if message["type"] == "progress" and message["share"] > 0 and not self.killed:
            (keeper,) = keepers(os.getpid())
            self.killed = descendants(keeper)
            for pid in self.killed:
                os.kill(pid, signal.SIGKILL)


def test_a_server_that_dies_under_load_costs_its_trial(model: str, tmp_path: Path) -> None:
    assassin = Assassin()
    done = sweep(model, tmp_path / "run", assassin, axes={"max_num_seqs": "4"}, **LONG)
    (row,) = done.rows
    assert row["status"] == "crash" and "exit code -9 while serving" in str(row["error"])
    assert assassin.killed and are_gone(assassin.killed)
    assert keepers(os.getpid()) == []


SWEEPING = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
from test_engine_sweep import LONG, Telling, sweep
sweep({model!r}, Path({out!r}), Telling(), axes={{"max_num_seqs": "4"}}, **LONG)
"""


class Telling(SilentProgress):
    """Says on stdout that requests are being served."""

    def event(self, message: Event) -> None:
        if message["type"] == "progress" and message["share"] > 0:
            print("serving", flush=True)


class Stopping(SilentProgress):
    """Ends a sweep as Ctrl-C does, once requests are being served."""

    def event(self, message: Event) -> None:
        if message["type"] == "progress" and message["share"] > 0:
            os.kill(os.getpid(), signal.SIGINT)


def test_a_killed_sweep_leaves_nothing_and_continues(model: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    script = SWEEPING.format(path=[str(Path(__file__).parent), *sys.path], model=model, out=str(out))
    killed = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert killed.stdout is not None
    assert killed.stdout.readline() == b"serving\n"
    pids = descendants(killed.pid)
    killed.kill()
    killed.wait()
    killed.stdout.close()
    assert len(pids) >= 2
    wait_until(lambda: are_gone(pids))
    continued = resume_sweep(out, Stopping(), engine_of=lambda options: ENGINE)
    assert continued.interrupted and continued.rows == [], "it began the trial anew, and ended it at Ctrl-C"
    assert keepers(os.getpid()) == []


def test_what_belongs_to_another_engine_is_refused(model: str) -> None:
    with pytest.raises(UsageError, match="kvplan has no max_num_batched_tokens to sweep"):
        make_plan(SweepOptions(model=model, engine="vllm", axes={"max_num_batched_tokens": "64"}), ENGINE)
    with pytest.raises(UsageError, match="--kv-cache-memory-bytes is for an engine other than kvplan's"):
        SweepOptions(model=model, axes={"kv_cache_memory_bytes": "1GiB"})
    with pytest.raises(UsageError, match="--dummy-layers is of kvplan's own engine"):
        SweepOptions(model=model, engine="vllm", load_format="dummy", dummy_layers="shared")
    with pytest.raises(UsageError, match="--url and --engine openai belong together"):
        SweepOptions(model=model, engine="vllm", url="localhost:8000")
    with pytest.raises(UsageError, match="Unknown --engine 'vlm'"):
        SweepOptions(model=model, engine="vlm")


class ShortServe(ServeAdapter):
    """As llama.cpp does where its cache is small: up, with shorter sequences than it was asked for."""

    def started(self, log: str, reading: ServerReading | None) -> StartedEngine:
        return replace(super().started(log, reading), resolved={"max_model_len": 1024})


def test_a_server_that_takes_less_than_it_was_asked_to_is_not_loaded(model: str, tmp_path: Path) -> None:
    axes = {"block_size": "16", "max_model_len": "2048", "max_num_seqs": "2"}
    engine = AdaptedEngine(ShortServe())
    options = SweepOptions(model=model, axes=axes, engine="vllm", load_format="dummy", rerun=False, num_prompts=2)
    done = run_new_sweep(make_plan(options, engine), tmp_path / "run", SilentProgress(), command="test")
    (row,) = done.rows
    assert (row["status"], row["largest_max_model_len"], row["completed"]) == ("rejected_ctx", 1024, None)
    assert row["error"] == "kvplan takes sequences of 1,024 tokens at most, not 2,048."
    assert keepers(os.getpid()) == []
