"""The worker that starts before its sweep, what it imports, and the memory it warms."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sweep_helpers import FAKE_WORKER, tiny_plan, wait_until

from kvplan.errors import KvplanError
from kvplan.machine.device import NoGpu
from kvplan.sweeps.progress import SilentProgress
from kvplan.sweeps.session import run_new_sweep
from kvplan.sweeps.worker import early as early_module
from kvplan.sweeps.worker.client import TimeLimits
from kvplan.sweeps.worker.early import EarlyWorker, WarmMemory
from kvplan.workers.process import WorkerDied

SAYS_HELLO = """
import sys
from kvplan.workers.channel import WorkerChannel
print("before the path was known", file=sys.stderr, flush=True)  # and before a thread reads it
channel = WorkerChannel.open()
channel.send({"type": "hello", "engine_version": "1", "torch_version": "2", "architectures": []})
channel.receive()
print("after", file=sys.stderr, flush=True)
raise RuntimeError("no more")
"""


def own_worker(text: str) -> Sequence[str]:
    return (sys.executable, "-c", text)


def test_what_it_wrote_before_stands_in_the_log_too(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    log.write_text("of a worker before it\n")
    with EarlyWorker(own_worker(SAYS_HELLO)) as early:
        worker = early.take(log)
        assert worker is not None
        assert worker.wait_until_ready(TimeLimits())["engine_version"] == "1"
        wait_until(lambda: "before" in log.read_text().partition("\n")[2])
        worker._process.send({"type": "trial"})
        with pytest.raises(WorkerDied, match=r"exit code 1: RuntimeError: no more\."):
            worker._process.receive()
        assert early.take(log) is None, "it is taken once"
    lines = log.read_text().splitlines()
    assert lines[:3] == ["of a worker before it", "before the path was known", "after"]
    assert lines[-1] == "RuntimeError: no more"


def test_one_that_nobody_takes_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen.__init__

    def noted(self: Any, *arguments: Any, **named: Any) -> None:
        start(self, *arguments, **named)
        started.append(self)

    monkeypatch.setattr(subprocess.Popen, "__init__", noted)
    with EarlyWorker(own_worker("import time; time.sleep(600)")):
        (process,) = started
        assert process.poll() is None
    assert process.poll() is not None


def test_one_that_has_ended_is_replaced(tmp_path: Path) -> None:
    """And says why, though its log was not named then."""
    with EarlyWorker(own_worker("raise SystemExit('no torch here')")) as early:
        process = early._process
        assert process is not None
        wait_until(lambda: process._process.poll() is not None)
        assert early.take(tmp_path / "worker.log") is None
        assert "no torch here" in process._last_log_line()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was written ahead, and that it was given back."""
    found: list[object] = []

    class Memory:
        def __init__(self, num_bytes: int) -> None:
            found.append(num_bytes)

        def release(self) -> None:
            found.append("released")

    monkeypatch.setattr(early_module, "WarmMemory", Memory)
    return found


def test_the_memory_that_it_expects_is_free_when_it_is_ready(tmp_path: Path, calls: list[object]) -> None:
    with EarlyWorker(own_worker(SAYS_HELLO)) as early:
        early.expect(1234)
        worker = early.take(tmp_path / "worker.log")
        assert worker is not None
        assert calls == [1234]
        worker.wait_until_ready(TimeLimits())
        assert calls == [1234, "released"]
        worker.kill()


def test_the_memory_of_one_that_ends_is_free_for_the_next(tmp_path: Path, calls: list[object]) -> None:
    """Whether it ends before it is taken or after that."""
    with EarlyWorker(own_worker("raise SystemExit(1)")) as early:
        process = early._process
        assert process is not None
        wait_until(lambda: process._process.poll() is not None)
        early.expect(1234)
        assert early.take(tmp_path / "worker.log") is None
        assert calls == [1234, "released"]
    calls.clear()
    with EarlyWorker(own_worker("input(); raise SystemExit(1)")) as early:
        early.expect(1234)
        worker = early.take(tmp_path / "worker.log")
        assert worker is not None
        worker._process.send({"type": "trial"})
        with pytest.raises(WorkerDied):
            worker.wait_until_ready(TimeLimits())
        assert calls == [1234, "released"]


ANSWERS = """
from kvplan.workers.channel import WorkerChannel
channel = WorkerChannel.open()
channel.send({"type": "hello", "engine_version": "1", "torch_version": "2", "architectures": []})
assert channel.receive() == {"type": "device"}
channel.send({"type": "device", "gpu": None, "none": {"sentence": "it is too old", "hint": None, "is_present": True}})
channel.wait_for_the_end()
"""


def test_the_worker_that_is_asked_for_its_device_runs_the_trials(tmp_path: Path, calls: list[object]) -> None:
    with EarlyWorker(own_worker(ANSWERS)) as early:
        process = early._process
        assert early.ask_device() == NoGpu("it is too old", None, is_present=True)
        early.expect(1234)
        worker = early.take(tmp_path / "worker.log")
        assert worker is not None
        assert worker._process is process
        assert worker.wait_until_ready(TimeLimits())["engine_version"] == "1"
        worker.kill()
    assert calls == [], "memory that nobody would give back in time"


def test_a_worker_that_dies_of_its_device_is_one_error() -> None:
    dying = ANSWERS.replace(
        "assert channel.receive()", "raise RuntimeError('libcuda: no luck')\nassert channel.receive()"
    )
    with EarlyWorker(own_worker(dying)) as early, pytest.raises(KvplanError, match="No device could be opened") as died:
        early.ask_device()
    assert "libcuda: no luck" in died.value.message
    assert died.value.hint == "--device cpu leaves the GPU alone"


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], set[str]]]:
    """The processes that served trials."""
    path = tmp_path / "served.txt"
    monkeypatch.setenv("FAKE_WORKER_LOG", str(path))
    yield lambda: {line.split()[0] for line in path.read_text().splitlines()}


def test_a_sweep_serves_its_trials_with_it(tmp_path: Path, processes: Callable[[], set[str]]) -> None:
    plan = tiny_plan(tmp_path, {"max_num_seqs": "1,2"})
    with EarlyWorker(FAKE_WORKER) as early:
        assert early._process is not None
        pid = early._process.pid
        outcome = run_new_sweep(plan, tmp_path / "run", SilentProgress(), command="test", early=early)
    assert [row["status"] for row in outcome.rows] == ["ok", "ok"]
    assert processes() == {str(pid)}
    assert not os.path.exists(f"/proc/{pid}"), "it has ended with the sweep"


MIB = 1024**2

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux is asked to write memory ahead")


@pytest.fixture
def plenty(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a machine has free at the moment decides nothing."""
    monkeypatch.setattr(early_module, "free_memory_bytes", lambda: 1 << 50)


def resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


@linux
@pytest.mark.usefixtures("plenty")
def test_memory_is_written_and_given_back() -> None:
    before = resident_bytes()
    memory = WarmMemory(70 * MIB)
    wait_until(lambda: memory.num_written == 64 * MIB)
    assert resident_bytes() - before > 60 * MIB, "whole pieces of 8 MiB"
    memory.release()
    assert resident_bytes() - before < 8 * MIB
    memory.release()


@linux
@pytest.mark.usefixtures("plenty")
def test_it_stops_where_it_is() -> None:
    memory = WarmMemory(1024 * MIB)
    wait_until(lambda: memory.num_written > 0)
    memory.release()
    written = memory.num_written
    assert 0 < written < 1024 * MIB
    time.sleep(0.02)
    assert memory.num_written == written


def test_nothing_is_written_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    WarmMemory(0).release()
    monkeypatch.setattr(early_module, "free_memory_bytes", lambda: 12 * MIB)
    memory = WarmMemory(1 << 30)
    memory.release()
    assert memory.num_written == 0, "half of what is free is less than a piece"


def test_what_a_first_trial_writes(tmp_path: Path) -> None:
    """Weights, and the blocks of the longest requests that run at once, as far as the pool has them."""
    plan = tiny_plan(tmp_path, {"max_num_seqs": "2"})
    settings = plan.trials[0].settings
    memory = plan.predictor.memory(settings)
    lengths = sorted(each.num_prompt_tokens + each.num_output_tokens for each in plan.predictor.requests)
    tokens = sum(lengths[-2:])
    assert memory.num_blocks * memory.block_bytes > tokens * memory.layout.bytes_per_token
    assert plan.first_bytes == memory.weight_bytes + tokens * memory.layout.bytes_per_token


WITHOUT_EXTRAS = """
import sys
sys.modules.update(dict.fromkeys(("httptools", "msgspec", "uvloop"), None))
from kvplan.cli import main
sys.argv = ["kvplan", *{words!r}]
sys.exit(main())
"""


@pytest.mark.parametrize(("engine", "code"), [([], 0), (["--engine", "vllm"], 2)], ids=["own", "vllm"])
def test_only_another_engine_needs_the_load_extra(engine: list[str], code: int) -> None:
    words = ["sweep", "--model", "gpt2", "--device-memory", "1GiB", "--dry-run", *engine]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS.format(words=words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert ("pip install 'kvplan[load]'" in done.stderr) == bool(engine)
