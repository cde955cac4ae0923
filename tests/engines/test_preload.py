"""Servers forked from a process with their engine's imports: what they are, what they spawn, and how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from serve_adapter import ServeAdapter
from sweep_helpers import wait_until
from test_engine_processes import are_gone, command_of, keepers
from test_engine_sweep import CONFIG, sweep

from kvplan.engines.interface import Command, Preload, StartOrder
from kvplan.engines.registry import AdaptedEngine
from kvplan.engines.serving.keeper import descendants
from kvplan.engines.serving.process import ServerProcess, environment_with
from kvplan.engines.starter import ForkServer

HEAVY = """
import os
print("imported", flush=True)
os.environ["SET_BY_IMPORT"] = "kept"
"""
ENGINE = """
import heavy, multiprocessing, os, sys, time

def child(sent, name):
    sent.send((name, os.getppid(), os.environ.get("GIVEN"), os.environ.get("LATE"), "heavy" in sys.modules))
    sent.close()
    time.sleep(600)

def main():
    print("server", __name__, sys.argv[1:], os.getsid(0) != os.getpid(), flush=True)
    print("environment", os.environ.get("GIVEN"), os.environ.get("TAKEN"), os.environ["SET_BY_IMPORT"], flush=True)
    os.environ["LATE"] = "late"
    spawn = multiprocessing.get_context("spawn")
    for name in ("first", "second"):
        received, sent = spawn.Pipe(duplex=False)
        process = spawn.Process(target=child, args=(sent, name), daemon=True)
        process.start()
        sent.close()
        name, parent, given, late, _ = received.recv()
        print(name, parent == os.getpid(), given, late, process.is_alive(), flush=True)
    process.kill()
    process.join()
    print("second ended", process.exitcode, flush=True)
    if sys.argv[1:] == ["fails"]:
        raise OSError("no such thing")
    time.sleep(600)

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With an engine of two modules."""
    (tmp_path / "heavy.py").write_text(HEAVY, encoding="utf-8")
    (tmp_path / "engine.py").write_text(ENGINE, encoding="utf-8")
    return tmp_path


@pytest.fixture
def forks(folder: Path) -> Iterator[ForkServer]:
    preload = Preload(sys.executable, ("heavy", "not_there"))
    environment = environment_with({"PYTHONPATH": str(folder), "TAKEN": "1"})
    server = ForkServer(preload, environment, folder / "preload.log")
    yield server
    server.close()


def forked_from(pid: int) -> list[int]:
    """Processes with imports below this one, and what is forked from them."""
    return [below for below in descendants(pid) if b"fork_server.py" in command_of(below)]


def fork(forks: ForkServer, folder: Path, *words: str) -> ServerProcess:
    environment = {"PYTHONPATH": str(folder), "GIVEN": "given"}
    command = Command((sys.executable, "-m", "engine", *words), environment)
    return ServerProcess(command, folder / "log", keep=forks.keeper)


def test_two_threads_may_stop_one(forks: ForkServer, folder: Path) -> None:
    """The one that ends what takes too long, and the one that is through with it."""
    server = fork(forks, folder, "here")
    wait_until(lambda: "second ended" in server.log())
    with ThreadPoolExecutor(4) as threads:
        for stopped in [threads.submit(server.stop) for _ in range(4)]:
            stopped.result()
    assert server.poll() == -signal.SIGTERM


def test_a_forked_server_is_what_a_started_one_is(forks: ForkServer, folder: Path) -> None:
    for _ in range(2):
        server = fork(forks, folder, "here")
        wait_until(lambda server=server: "second ended" in server.log())  # type: ignore[misc]
        assert server.log().splitlines() == [
            "server __main__ ['here'] True",
            "environment given None kept",
            "first True given late True",
            "imported",  # by the second process that it spawns: only the first is forked
            "second True given late True",
            f"second ended {-signal.SIGKILL}",
        ]
        pids = [server.keeper_pid, *descendants(server.keeper_pid)]
        assert len(pids) >= 3, "the keeper, the server and the first process"
        server.stop()
        assert are_gone(pids)
        assert server.poll() == -signal.SIGTERM
    imports = (folder / "preload.log").read_text(encoding="utf-8").splitlines()
    assert imports == ["imported", "not_there is not imported beforehand: No module named 'not_there'"]


def test_a_forked_server_that_fails_says_so(forks: ForkServer, folder: Path) -> None:
    server = fork(forks, folder, "fails")
    wait_until(lambda: not server.is_running)
    assert server.poll() == 1 and server.log().splitlines()[-1] == "OSError: no such thing"
    server.stop()


def test_it_dies_with_the_process_that_had_it_forked(folder: Path) -> None:
    script = f"""
import sys, time
from pathlib import Path
from kvplan.engines.interface import Command, Preload
from kvplan.engines.starter import ForkServer
from kvplan.engines.serving.process import ServerProcess, environment_with
folder = Path({str(folder)!r})
preload = Preload(sys.executable, ("heavy",))
forks = ForkServer(preload, environment_with({{"PYTHONPATH": str(folder)}}), folder / "preload.log")
command = Command((sys.executable, "-m", "engine"), {{"PYTHONPATH": str(folder)}})
server = ServerProcess(command, folder / "log", keep=forks.keeper)
while "second ended" not in server.log():
    time.sleep(0.02)
print("ready", flush=True)
time.sleep(600)
"""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    ) as parent:
        assert parent.stdout is not None and parent.stdout.readline() == b"ready\n"
        pids = descendants(parent.pid)
        assert len(pids) >= 4, "the imports, the keeper, the server and what it spawned"
        parent.kill()
    wait_until(lambda: are_gone(pids))


FRAGILE = """
import os, sys
with open(os.environ["STARTS"], "a") as starts:
    print("forked" if "heavy" in sys.modules else "started", file=starts)
sys.exit(3)
"""


@dataclass
class Fragile(ServeAdapter):
    """An engine that does not come up, forked or not. starts: a file of its own."""

    folder: Path = Path()
    module: str = "heavy"

    @property
    def preload(self) -> Preload:
        return Preload(sys.executable, (self.module,), self._environment)

    def command(self, order: StartOrder) -> Command:
        return Command((sys.executable, "-m", "fragile"), self._environment)

    @property
    def _environment(self) -> dict[str, str | None]:
        return {"PYTHONPATH": str(self.folder), "STARTS": str(self.folder / "starts")}


@pytest.mark.parametrize(("module", "starts"), [("heavy", ["forked", "started"]), ("dying", ["started"])])
def test_no_failure_comes_of_forking(folder: Path, module: str, starts: list[str]) -> None:
    (folder / "fragile.py").write_text(FRAGILE, encoding="utf-8")
    (folder / "dying.py").write_text("import os; os._exit(9)", encoding="utf-8")
    config = folder / "config.json"
    config.write_text(json.dumps(CONFIG), encoding="utf-8")
    engine = AdaptedEngine(Fragile(folder=folder, module=module))
    given: dict[str, Any] = {"axes": {"max_num_seqs": "4"}, "num_prompts": 1}
    (row,) = sweep(str(config), folder / "run", engine=engine, **given).rows
    assert row["status"] == "crash" and "exit code 3" in str(row["error"])
    assert (folder / "starts").read_text(encoding="utf-8").splitlines() == starts
    assert keepers(os.getpid()) == [] and forked_from(os.getpid()) == []
