"""A sweep over several ranks, one of which is killed in the middle of its first trial: how soon that is a row."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from kvplan.engines.serving.keeper import descendants
from sweeping import KVPLAN, TINY_GPT2, rows_of

T = TypeVar("T")
MOST_SECONDS: Final = 10.0
_PATIENCE: Final = 300.0
_OPTIONS: Final = (
    "--load-format", "dummy", "--device", "cpu", "--device-memory", "256MiB", "--no-rerun", "--max-num-seqs", "4,8",
    "--num-prompts", "300", "--input-len", "8", "--output-len", "60", "--max-model-len", "128",
)  # fmt: skip
_SECONDS_OF_WORK: Final = 5.0
"""Processor time of a rank that has imported torch, loaded its part and serves: the kill comes then."""


@dataclass(frozen=True, slots=True)
class Death:
    """seconds: from the kill until the row was in trials.jsonl. after: the status of the trial that followed."""

    num_ranks: int
    status: str
    error: str
    seconds: float
    after: str

    @property
    def problem(self) -> str:
        """What was not as it should be, "" for nothing."""
        if self.status != "rank_died" or self.after != "ok":
            return f"the rows were {self.status} and {self.after}"
        return "" if self.seconds < MOST_SECONDS else f"the row took {self.seconds:.1f} s"


def kill_a_rank(num_ranks: int, folder: Path) -> Death:
    """Let ``kvplan sweep`` run two trials over ``num_ranks``, and kill the last rank of the first one."""
    config, out = folder / f"tiny-{num_ranks}.json", folder / f"run-{num_ranks}"
    config.write_text(json.dumps(TINY_GPT2))
    command = [*KVPLAN, "sweep", "--model", str(config), "--out", str(out), *_OPTIONS]
    command += ["--tensor-parallel-size", str(num_ranks)]
    with (folder / f"sweep-{num_ranks}.log").open("wb") as log:
        sweep = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        rank = _until(lambda: _serving_rank(sweep.pid, num_ranks))
        os.kill(rank, signal.SIGKILL)
        killed_at = time.monotonic()
        first = _until(lambda: rows_of(out)[:1])[0]
        seconds = time.monotonic() - killed_at
        second = _until(lambda: rows_of(out)[1:2])[0]
        sweep.wait(_PATIENCE)
    finally:
        if sweep.poll() is None:
            os.killpg(sweep.pid, signal.SIGKILL)
            sweep.wait()
    return Death(num_ranks, first["status"], first["error"], seconds, second["status"])


def _until(find: Callable[[], T]) -> T:
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        if found := find():
            return found
        time.sleep(0.02)
    raise SystemExit(f"error: the sweep did not get on within {_PATIENCE:.0f} s")


def _serving_rank(sweep: int, num_ranks: int) -> int | None:
    """The youngest of ``sweep``'s other ranks, once all of them have worked for a while."""
    ranks = [pid for pid in descendants(sweep) if b"kvplan_engine.execution.ranks" in _read(pid, "cmdline")]
    if len(ranks) < num_ranks - 1 or any(_processor_seconds(pid) < _SECONDS_OF_WORK for pid in ranks):
        return None
    return max(ranks)


def _processor_seconds(pid: int) -> float:
    # Fields from the third on: the second is a name, in which there may be anything.
    stat = _read(pid, "stat").rpartition(b")")[2].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK") if stat else 0.0


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""  # it has ended meanwhile
