"""A sweep killed by SIGKILL under load and continued, beside the same sweep undisturbed."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from engines.runs import Part, run_part, vllm_options
from kvplan.engines.serving.keeper import descendants
from sweeping import KVPLAN, options, rows_of

NAME: Final = "killed sweep"
_PART: Final = Part("killed sweep undisturbed", "gpt2", {"max_num_seqs": "2,8", "max_model_len": "512"})
_LOAD: Final = {"num_prompts": "8", "input_len": "64", "output_len": "200"}
_EQUAL: Final = (
    *("trial_id", "run_number", "status", "predicted_status", "max_num_seqs", "block_size", "max_model_len"),
    *("kv_cache_memory_bytes", "max_num_batched_tokens", "kv_cache_tokens", "num_blocks_total", "completed"),
    *("total_input_tokens", "total_output_tokens", "reused_server"),
)
"""What a row says that no clock decides."""
_GONE_SECONDS: Final = 60.0
_SERVED: Final = "POST /v1/completions"


@dataclass(frozen=True, slots=True)
class Killed:
    """What came of it. processes: below the sweep when it was killed; left: of them, those that outlived it.

    kept: rows that it had finished; run_again: of them, those that are not what they were; different: rows of the
    continued sweep that differ from the undisturbed one's in what no clock decides.
    """

    processes: int
    left: int
    seconds_until_gone: float
    kept: int
    run_again: int
    rows: int
    different: int

    @property
    def is_good(self) -> bool:
        return self.kept > 0 and not (self.left or self.run_again or self.different)

    def sentence(self) -> str:
        return (
            f"Killed by SIGKILL under the load of its second server, with {self.processes} processes below it: "
            f"{self.left or 'none'} of them left after {self.seconds_until_gone:.1f} s. Continued with `--resume`: "
            f"{self.kept} finished row kept, {self.run_again or 'none'} run again, {self.different or 'none'} of "
            f"{self.rows} rows unlike those of the same sweep undisturbed."
        )


def kill_and_continue(python: str, work: Path) -> None:
    """Do it, unless it was done before."""
    if killed(work) is not None:
        return
    run_part(_PART, _LOAD, python, work)
    directory = work / NAME.replace(" ", "-")
    shutil.rmtree(directory, ignore_errors=True)  # of a check that was itself interrupted
    words = [*vllm_options(python, _PART.model, directory), *options(_PART.axes), *options(_LOAD)]
    print(f"{NAME}: kvplan sweep {' '.join(words)}", flush=True)
    sweep = subprocess.Popen([*KVPLAN, "sweep", *words, "--json"], stdout=subprocess.DEVNULL)
    _wait_for_second_load(sweep, directory)
    below = descendants(sweep.pid)
    sweep.send_signal(signal.SIGKILL)
    sweep.wait()
    left, seconds = _wait_until_gone(below)
    before = rows_of(directory)
    subprocess.run([*KVPLAN, "sweep", "--resume", str(directory), "--json"], stdout=subprocess.DEVNULL, check=True)
    after, undisturbed = rows_of(directory), rows_of(work / _PART.folder)
    found = Killed(
        processes=len(below),
        left=len(left),
        seconds_until_gone=seconds,
        kept=len(before),
        run_again=sum(row not in after for row in before),
        rows=len(after),
        different=num_different(after, undisturbed),
    )
    _file(work).write_text(json.dumps(asdict(found)) + "\n", encoding="utf-8")


def num_different(rows: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> int:
    """Rows without an equal among the others, in their order, and those that are too many or too few."""
    pairs = zip(rows, others, strict=False)
    unlike = sum(any(row[name] != other[name] for name in _EQUAL) for row, other in pairs)
    return unlike + abs(len(rows) - len(others))


def killed(work: Path) -> Killed | None:
    """What came of it; None where it was not done yet."""
    file = _file(work)
    return Killed(**json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None


def _file(work: Path) -> Path:
    return work / "killed-sweep.json"


def _wait_for_second_load(sweep: subprocess.Popen[bytes], directory: Path) -> None:
    """Until the first trial has its row and the second server answers requests."""
    while sweep.poll() is None:
        logs = [path.read_text(errors="replace") for path in directory.glob("engine-logs/*.log")]
        if rows_of(directory) and sum(_SERVED in log for log in logs) == len(rows_of(directory)) + 1:
            return
        time.sleep(0.2)
    raise SystemExit("the sweep ended before it could be killed")


def _wait_until_gone(pids: Sequence[int]) -> tuple[list[int], float]:
    started = time.monotonic()
    while (left := [pid for pid in pids if _runs(pid)]) and time.monotonic() - started < _GONE_SECONDS:
        time.sleep(0.1)
    return left, time.monotonic() - started


def _runs(pid: int) -> bool:
    """A process that has ended, but was not yet read by its parent, does not."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return False
    return re.search(r"^State:\s+Z", status, re.MULTILINE) is None
