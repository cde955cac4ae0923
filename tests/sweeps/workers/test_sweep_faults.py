"""What a sweep survives: SIGKILL of parent and worker, full disks, a corrupted tail, a second sweep at once.

After every one of them the directory is continued, and must hold the rows of an undisturbed run with the same seed:
the same settings with the same statuses, none twice, none lost. A sweep runs in a forked process, so that many of them
cost no starts of Python.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sweep_helpers import FAKE_WORKER, assert_all_gone, is_running, tiny_plan

from kvplan.errors import KvplanError
from kvplan.runs.directory import read_trials
from kvplan.sweeps.progress import SilentProgress
from kvplan.sweeps.session import resume_sweep, run_new_sweep

AXES = {"max_num_seqs": "1,2,3,4", "block_size": "4,8,16", "gpu_memory_utilization": "0.05,0.9"}
CRASHES = json.dumps({"4/4": "exit"})
FULL, REFUSED, OTHER = 3, 4, 5  # exit codes of a forked sweep

Outcomes = list[tuple[object, ...]]


@pytest.fixture(autouse=True)
def _worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Trials of 4 ms; four of them crash by themselves, those at utilization 0.05 run out of memory."""
    monkeypatch.setenv("FAKE_WORKER_SECONDS", "0.004")
    monkeypatch.setenv("FAKE_WORKER_BEHAVIOUR", CRASHES)
    monkeypatch.setenv("FAKE_WORKER_LOG", str(tmp_path / "begun.log"))


def run_or_resume(root: Path, directory: Path) -> None:
    if (directory / "manifest.json").exists():
        resume_sweep(directory, SilentProgress(), worker_command=FAKE_WORKER)
    else:
        plan = tiny_plan(root, AXES, num_runs=2)
        run_new_sweep(plan, directory, SilentProgress(), command="test", worker_command=FAKE_WORKER)


def forked(job: Callable[[], None]) -> int:
    """The pid of a process that does the job and ends with 0, FULL, REFUSED or OTHER."""
    pid = os.fork()
    if pid:
        return pid
    code = OTHER
    try:
        job()
        code = 0
    except KvplanError as error:
        code = FULL if "could not be written" in error.message else REFUSED
    finally:
        os._exit(code)


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def outcomes(directory: Path) -> Outcomes:
    """Settings and status of every row, sorted; KvplanError or an assertion where the file is not whole."""
    stored = read_trials(directory / "trials.jsonl")
    assert not stored.is_torn
    rows = [item["row"] for item in stored.records]
    assert len({row["trial_id"] for row in rows}) == len(rows)
    names = ("max_num_seqs", "block_size", "gpu_memory_utilization", "run_number", "status")
    return sorted(tuple(row[name] for name in names) for row in rows)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an undisturbed run, to be copied."""
    root = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_WORKER_BEHAVIOUR", CRASHES)
        run_or_resume(root, root / "run")
    return root / "run"


@pytest.fixture(scope="module")
def undisturbed(finished: Path) -> Outcomes:
    found = outcomes(finished)
    assert len(found) == 4 * 3 * 2 * 2
    assert {status for *_, status in found} == {"ok", "crash", "oom_weights"}
    return found


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "run")


def begun(root: Path) -> list[int]:
    """The workers' pids, one entry for every trial that was begun."""
    log = root / "begun.log"
    return [int(line.split()[0]) for line in log.read_text().splitlines()] if log.exists() else []


def last_worker(root: Path) -> int | None:
    """The worker that began a trial last."""
    return begun(root)[-1] if begun(root) else None


def wait_until_begun(root: Path, number: int, sweep: int) -> None:
    """Until so many trials have begun in all, or the sweep has ended."""
    deadline = time.monotonic() + 60
    while len(begun(root)) < number and is_running(sweep):
        assert time.monotonic() < deadline, "the sweep does not go on"
        time.sleep(0.001)


@pytest.mark.slow
def test_sigkill_at_random_moments(tmp_path: Path, undisturbed: Outcomes, exhaustive: bool) -> None:
    """Parent and worker in turn, whatever they are doing; only a sweep that is left in peace may end."""
    directory, moments, num_kills = tmp_path / "run", random.Random(7), 50 if exhaustive else 20
    killed = {"parent": 0, "worker": 0}
    while sum(killed.values()) < num_kills:
        num_begun = len(begun(tmp_path))
        sweep = forked(lambda: run_or_resume(tmp_path, directory))
        if moments.random() < 0.8:  # the others are killed before their first trial
            wait_until_begun(tmp_path, num_begun + moments.randint(1, 4), sweep)
        time.sleep(moments.uniform(0, 0.02))
        worker = last_worker(tmp_path)
        if killed["worker"] < killed["parent"] and worker is not None and is_running(worker):
            os.kill(worker, signal.SIGKILL)
            killed["worker"] += 1
            time.sleep(moments.uniform(0, 0.05))
        os.kill(sweep, signal.SIGKILL)
        killed["parent"] += 1
        ended(sweep)
        if (directory / "trials.jsonl").exists() and len(read_trials(directory / "trials.jsonl").records) > 40:
            shorten(directory, moments)  # so that there is always something left to disturb
    assert killed["worker"] >= num_kills // 5
    assert ended(forked(lambda: run_or_resume(tmp_path, directory))) == 0
    assert outcomes(directory) == undisturbed
    assert_all_gone(set(begun(tmp_path)))


def shorten(directory: Path, moments: random.Random) -> None:
    """Keep some whole lines and a piece of the next, as a machine that lost its power may."""
    lines = (directory / "trials.jsonl").read_bytes().splitlines(keepends=True)
    kept = moments.randrange(10)
    (directory / "trials.jsonl").write_bytes(b"".join(lines[:kept]) + lines[kept][: moments.randrange(200)])


def test_a_worker_killed_again_and_again_changes_no_row(
    tmp_path: Path, undisturbed: Outcomes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep itself lives on; every third of its trials loses its worker."""
    monkeypatch.setenv("FAKE_WORKER_SECONDS", "0.02")  # long enough that a busy machine sees them begin
    directory, moments = tmp_path / "run", random.Random(3)
    sweep = forked(lambda: run_or_resume(tmp_path, directory))
    num_killed, next_kill = 0, 2
    while os.waitpid(sweep, os.WNOHANG) == (0, 0):
        num_begun, worker = len(begun(tmp_path)), last_worker(tmp_path)
        if num_killed < 12 and num_begun >= next_kill and worker is not None and is_running(worker):
            os.kill(worker, signal.SIGKILL)
            num_killed += 1
            next_kill = num_begun + moments.randint(2, 4)  # its trial begins again: not the same one every time
        time.sleep(moments.uniform(0, 0.004))
    assert num_killed >= 6
    assert outcomes(directory) == undisturbed


TAILS = {
    "cut line": lambda line: line[: len(line) // 2],
    "line without its end": lambda line: line[:-1],
    "zeros": lambda line: b"\0" * 4096,
    "zeros and line feeds": lambda line: b"\0" * 100 + b"\n" + b"\0" * 50 + b"\n",
    "garbage": lambda line: bytes(random.Random(1).randrange(256) for _ in range(3000)),
    "JSON that is no record": lambda line: b'{"schema": "something else"}\n[1, 2]\n',
}


@pytest.mark.parametrize("name", TAILS)
def test_a_corrupted_tail_is_cut_off_and_run_again(
    tmp_path: Path, copied: Path, undisturbed: Outcomes, name: str
) -> None:
    path = copied / "trials.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-3]) + TAILS[name](lines[-3]))
    assert read_trials(path).is_torn
    run_or_resume(tmp_path, copied)
    assert outcomes(copied) == undisturbed
    assert path.read_bytes().startswith(b"".join(lines[:-3]))


def test_damage_in_the_middle_is_no_torn_write_and_is_refused(tmp_path: Path, copied: Path) -> None:
    path = copied / "trials.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:5], lines[5][:40] + b"\n", *lines[6:]]))
    with pytest.raises(KvplanError, match=r"Line 6 of .* is damaged, and records follow it"):
        run_or_resume(tmp_path, copied)


def test_two_sweeps_at_once_write_as_one(tmp_path: Path, undisturbed: Outcomes) -> None:
    """Of several that are started at the same moment one works, the others are refused in one sentence."""
    directory = tmp_path / "run"
    tiny_plan(tmp_path)
    for _ in range(2):
        pids = [forked(lambda: run_or_resume(tmp_path, directory)) for _ in range(3)]
        codes = [ended(pid) for pid in pids]
        assert codes.count(0) >= 1
        assert set(codes) <= {0, REFUSED}
        lines = (directory / "trials.jsonl").read_bytes().splitlines(keepends=True)
        assert outcomes(directory) == undisturbed
        (directory / "trials.jsonl").write_bytes(b"".join(lines[:30]))


def test_a_file_that_may_not_grow(tmp_path: Path, undisturbed: Outcomes) -> None:
    """The operating system refuses the write in the middle of a line (EFBIG, as a quota or a full disk does)."""
    directory = tmp_path / "run"

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        run_or_resume(tmp_path, directory)

    assert ended(forked(limited)) == FULL
    assert 0 < len(read_trials(directory / "trials.jsonl").records) < len(undisturbed)
    run_or_resume(tmp_path, directory)
    assert outcomes(directory) == undisturbed


ON_TMPFS = """
import subprocess, sys
from pathlib import Path
sys.path[:0] = {paths!r}
from test_sweep_faults import run_or_resume
from kvplan.errors import KvplanError
root, disk = Path({root!r}), Path({disk!r})
try:
    run_or_resume(root, disk / "run")
except KvplanError as error:
    print(error.message)
stored = (disk / "run" / "trials.jsonl").read_bytes()
print("rows on the full disk:", stored.count(b"\\n"), "torn:", not stored.endswith(b"\\n"))
subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
run_or_resume(root, disk / "run")
(root / "trials.jsonl").write_bytes((disk / "run" / "trials.jsonl").read_bytes())
"""


def in_own_mounts(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run where mounting is allowed and touches nobody else: a mount namespace, of a user namespace for users."""
    space = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
    return subprocess.run([*space, *command], capture_output=True, text=True, check=False)


def test_a_small_filesystem_runs_full(tmp_path: Path, undisturbed: Outcomes) -> None:
    """A tmpfs of 160 kB that the test mounts. Where mounting is forbidden, the limit of a file's size stands in."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(disk)]
    probe = in_own_mounts(mount)
    if probe.returncode:
        assert "permi" in probe.stderr.lower() or "not allowed" in probe.stderr.lower(), probe.stderr
        test_a_file_that_may_not_grow(tmp_path, undisturbed)
        return
    paths = [str(Path(__file__).parents[1] / "cases"), *sys.path]
    program = tmp_path / "program.py"
    program.write_text(ON_TMPFS.format(paths=paths, root=str(tmp_path), disk=str(disk)))
    done = in_own_mounts(["sh", "-c", 'm="$1"; shift; eval "$m" && exec "$@"', "sh", " ".join(mount), sys.executable,
                          str(program)])  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "No space left on device" in done.stdout
    rows = int(done.stdout.split("rows on the full disk: ")[1].split()[0])
    assert 0 < rows < len(undisturbed)
    assert "torn: False" in done.stdout
    (tmp_path / "copy").mkdir()
    os.replace(tmp_path / "trials.jsonl", tmp_path / "copy" / "trials.jsonl")
    assert outcomes(tmp_path / "copy") == undisturbed


def test_resume_of_a_manifest_from_before_requests_were_hashed(
    tmp_path: Path, copied: Path, undisturbed: Outcomes
) -> None:
    directory = copied
    manifest = json.loads((directory / "manifest.json").read_text())
    del manifest["workload"]["sha256"]
    (directory / "manifest.json").write_text(json.dumps(manifest))
    lines = (directory / "trials.jsonl").read_bytes().splitlines(keepends=True)
    (directory / "trials.jsonl").write_bytes(b"".join(lines[:9]))
    run_or_resume(tmp_path, directory)
    assert outcomes(directory) == undisturbed
    del manifest["model"]["config_sha256"], manifest["options"]
    (directory / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(KvplanError, match=r"lacks options, model\.config_sha256"):
        run_or_resume(tmp_path, directory)
