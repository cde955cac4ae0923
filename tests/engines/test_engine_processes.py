"""A server's processes: all of them end, whoever dies first, and nobody else's server is taken for ours."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from sweep_helpers import is_running, wait_until

from kvplan.engines.interface import Command
from kvplan.engines.server import free_port, is_free, listens, wait_until_ready
from kvplan.engines.serving.keeper import descendants
from kvplan.engines.serving.process import ServerProcess
from kvplan.errors import KvplanError

FAMILY = """
import os, signal, subprocess, sys, time
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
print("ready", flush=True)
{last}
"""
"""A server with a child that has a session of its own and does not listen to SIGTERM."""
SITS = "time.sleep(600)"
SECONDS = 60.0


def family(tmp_path: Path, last: str = SITS) -> ServerProcess:
    process = ServerProcess(Command((sys.executable, "-c", FAMILY.format(last=last))), tmp_path / "log")
    wait_until(lambda: "ready" in process.log() or not process.is_running)
    return process


def keepers(pid: int) -> list[int]:
    """Of the servers that a process started; a keeper is gone when all of its server is."""
    return [below for below in descendants(pid) if b"kvplan.engines.serving.keeper" in command_of(below)]


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def are_gone(pids: list[int]) -> bool:
    """Zombies whose parent has not read them count as gone."""
    return not any(map(is_running, pids))


def test_a_stopped_server_leaves_no_process(tmp_path: Path) -> None:
    process = family(tmp_path)
    pids = [process.keeper_pid, *descendants(process.keeper_pid)]
    assert len(pids) == 3, "keeper, server and the server's child"
    process.stop()
    assert are_gone(pids)
    assert process.poll() == -signal.SIGTERM


def test_what_a_dead_server_leaves_behind_is_ended_too(tmp_path: Path) -> None:
    process = family(tmp_path, last="os._exit(7)")
    wait_until(lambda: not process.is_running)
    assert process.poll() == 7
    process.stop()
    assert descendants(process.keeper_pid) == []


def test_a_server_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = f"""
import sys, time
from pathlib import Path
from kvplan.engines.interface import Command
from kvplan.engines.serving.process import ServerProcess
server = ServerProcess(Command((sys.executable, "-c", {FAMILY.format(last=SITS)!r})), Path({str(tmp_path / "log")!r}))
while "ready" not in server.log():
    time.sleep(0.02)
print("ready", flush=True)
time.sleep(600)
"""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"ready\n"
    pids = descendants(parent.pid)
    assert len(pids) == 3
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: are_gone(pids))


def test_a_program_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(KvplanError, match="cannot be started: /no/such/python: No such file"):
        ServerProcess(Command(("/no/such/python",)), tmp_path / "log")


def test_a_variable_of_none_is_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVPLAN_TAKEN", "1")
    show = "import os; print(os.environ.get('KVPLAN_TAKEN'), os.environ['KVPLAN_GIVEN'])"
    command = Command((sys.executable, "-c", show), {"KVPLAN_TAKEN": None, "KVPLAN_GIVEN": "2"})
    process = ServerProcess(command, tmp_path / "log")
    wait_until(lambda: not process.is_running)
    process.stop()
    assert process.log() == "None 2\n"


def test_ports_know_who_listens() -> None:
    port = free_port()
    assert is_free(port)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", port))
        listening.listen()
        assert not is_free(port)
        assert listens(port, [os.getpid()])
        assert not listens(port, [os.getppid()])


def test_somebody_elses_server_is_not_taken_for_ours(tmp_path: Path) -> None:
    serve = (sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "--directory", str(tmp_path))
    port = free_port()
    foreign = ServerProcess(Command((*serve, str(port))), tmp_path / "foreign")
    ours = family(tmp_path)
    try:
        wait_until(lambda: listens(port, descendants(foreign.keeper_pid)))
        with pytest.raises(KvplanError, match=f"Another server listens on port {port}"):
            wait_until_ready(ours, port, "/", SECONDS)
        assert wait_until_ready(foreign, port, "/", SECONDS).seconds is not None
    finally:
        ours.stop()
        foreign.stop()


def test_a_server_that_ends_or_dawdles_is_not_waited_for(tmp_path: Path) -> None:
    ended = family(tmp_path, last="sys.exit(3)")
    readiness = wait_until_ready(ended, free_port(), "/", SECONDS)
    assert (readiness.seconds, readiness.is_late, ended.poll()) == (None, False, 3)
    ended.stop()
    slow = family(tmp_path)
    readiness = wait_until_ready(slow, free_port(), "/", 0.3)
    assert (readiness.seconds, readiness.is_late) == (None, True)
    slow.stop()
