"""Sweeps over a real Ray cluster on this machine, while workers, a node and the sweep's own process are killed.

    python tools/check_cluster.py --out docs/cluster-check.md      # some minutes; needs the extra `cluster`
    python tools/check_cluster.py --work DIR --only overhead       # one section; DIR keeps the sections for the page

Every raylet is a process of its own and listens on loopback; Ray takes each for a node. Exit code 1 where rows are not
those of an undisturbed sweep, a process is left, or a trial over Ray costs half a second more than without it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from kvplan.machine.host import cpu_name
from kvplan.units import plural
from sweeping import KVPLAN, TINY_GPT2, rows_of, wait_until

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # 0: loopback only

STORE_BYTES: Final = 80 << 20
MOST_OVERHEAD_SECONDS: Final = 0.5
# Forty trials of about half a second, in which every column but the clock's is the same each time.
_FORTY: Final = (
    "--load-format", "none", "--device-memory", "1GiB", "--num-prompts", "300", "--no-rerun",
    "--max-num-seqs", "1,2,4,8,16", "--block-size", "8,16", "--max-model-len", "64,128,192,256",
)  # fmt: skip
# Twelve trials of a few hundredths of a second, computed.
_SHORT: Final = (
    "--load-format", "dummy", "--device", "cpu", "--device-memory", "1GiB", "--num-prompts", "4", "--no-rerun",
    "--input-len", "8", "--output-len", "4", "--max-num-seqs", "1,2,4", "--block-size", "8,16", "--num-runs", "2",
)  # fmt: skip
_OF_THE_CLOCK: Final = frozenset(
    {"run_id", "started_at", "trial_seconds", "setup_seconds", "other_cpu_pct", "node", "num_restarts"}
    | {"num_lost_workers", "predicted_seconds", "learned_time_factor", "duration"}
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sections, write the page, and say what was not as expected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="page to write; default: stdout")
    parser.add_argument("--only", choices=SECTIONS, help="one section")
    parser.add_argument("--work", type=Path, help="keeps runs and sections; a section that lies there is reused")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="kvplan-cluster-") as name:
        work = chosen.work or Path(name)
        (work / "tiny").mkdir(parents=True, exist_ok=True)
        (work / "tiny" / "config.json").write_text(json.dumps(TINY_GPT2))
        sections = {key: _section(key, work) for key in SECTIONS if chosen.only in (None, key)}
    wrong = [f"{key}: {line}" for key, (_, problems) in sections.items() for line in problems]
    text = "\n\n".join([_head(), *(body for body, _ in sections.values()), _problems(wrong)]) + "\n"
    if chosen.out is None:
        print(text)
    else:
        chosen.out.write_text(text)
    return 1 if wrong else 0


def _section(key: str, work: Path) -> tuple[str, list[str]]:
    """Its text and what was not as expected; run only if ``work`` has no record of it."""
    record = work / f"{key}.json"
    if not record.exists():
        record.write_text(json.dumps(SECTIONS[key](work)))
    body, problems = json.loads(record.read_text())
    return body, problems


def _head() -> str:
    from importlib.metadata import version

    return (
        "# A Ray cluster, disturbed\n\n"
        "`make check-cluster` writes this page: sweeps as in [cluster.md](cluster.md) over real raylets on one "
        "machine, each of which\nRay takes for a node.\n\n"
        f"Ray {version('ray')}, Python {sys.version.split()[0]}, {cpu_name()}, {plural(os.cpu_count() or 1, 'core')}, "
        f"{time.strftime('%Y-%m-%d', time.gmtime())}. Scheduler, pool and\nblock accounting of a small GPT-2 are the "
        'engine\'s own; only under "Overhead" anything is computed.'
    )


def _problems(wrong: Sequence[str]) -> str:
    return "## Not as expected\n\n" + ("\n".join(f"- {line}" for line in wrong) or "Nothing.")


@contextmanager
def cluster(num_nodes: int) -> Iterator[Any]:
    """A head without CPUs, and nodes of one CPU."""
    from ray.cluster_utils import Cluster

    made = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "object_store_memory": STORE_BYTES, "include_dashboard": False},
    )
    try:
        made.worker_places = [made.add_node(num_cpus=1, object_store_memory=STORE_BYTES) for _ in range(num_nodes)]
        made.wait_for_nodes()
        yield made
    finally:
        made.shutdown()


def start(work: Path, name: str, *options: str) -> subprocess.Popen[bytes]:
    log = (work / f"{name}.log").open("ab")
    command = [*KVPLAN, "sweep", *options]
    return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def new(work: Path, name: str, *options: str) -> subprocess.Popen[bytes]:
    return start(work, name, "--model", str(work / "tiny" / "config.json"), "--out", str(work / name), *options)


def rows(directory: Path) -> list[dict[str, Any]]:
    return sorted(rows_of(directory), key=lambda row: row["trial_number"])


def comparable(directory: Path) -> list[dict[str, Any]]:
    return [{key: cell for key, cell in row.items() if key not in _OF_THE_CLOCK} for row in rows(directory)]


def processes(words: str) -> list[int]:
    """Processes whose command line holds ``words``."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if words in line and int(path.parent.name) != os.getpid():
            found.append(int(path.parent.name))
    return sorted(found)


def workers() -> list[int]:
    return processes("kvplan.sweeps.worker.process")


def undisturbed(work: Path) -> list[dict[str, Any]]:
    """The rows of one worker without Ray; run once."""
    if not (work / "whole" / "summary.json").exists():
        new(work, "whole", *_FORTY).wait(300)
    return comparable(work / "whole")


def kills(work: Path) -> tuple[str, list[str]]:
    """Forty trials on three nodes; an actor, an engine process and a whole node are killed meanwhile."""
    expected = undisturbed(work)
    directory, done = work / "killed", []
    with cluster(3) as ray_cluster:
        sweep = new(work, "killed", *_FORTY, "--ray", ray_cluster.address)
        for count, what, kill in (
            (6, "an actor (SIGKILL)", lambda: os.kill(processes("ray::NodeWorker.run")[0], signal.SIGKILL)),
            (14, "an engine process (SIGKILL)", lambda: os.kill(workers()[0], signal.SIGKILL)),
            (22, "a node (its raylet, SIGKILL)", lambda: _end_node(ray_cluster)),
        ):
            if wait_until(lambda count=count: len(rows(directory)) >= count or sweep.poll() is not None):  # type: ignore[misc]
                kill()
                done.append(f"after {len(rows(directory))} rows: {what}")
        sweep.wait(300)
        left = [] if wait_until(lambda: not workers(), 20) else workers()
    found, lost = comparable(directory), sum(row["num_lost_workers"] or 0 for row in rows(directory))
    restarts = sum(row["num_restarts"] or 0 for row in rows(directory))
    problems = [] if found == expected else [f"{len(found)} rows, not those of the undisturbed sweep"]
    problems += [f"processes left: {left}"] if left else []
    problems += [] if lost >= 2 and restarts >= 1 else [f"only {lost} lost workers and {restarts} restarts in the rows"]
    body = "\n".join(f"- {line}" for line in done)
    return (
        f"## Workers and a node killed\n\n{len(expected)} trials on three nodes, and meanwhile killed:\n\n{body}\n\n"
        f"{len(found)} rows, {_equal(found == expected)} those of one worker without Ray in every column that no clock "
        f"decides.\n`num_lost_workers` is {lost} in all, `num_restarts` {restarts}; processes left: {len(left)}."
    ), problems


def _equal(is_equal: bool) -> str:
    return "equal to" if is_equal else "NOT equal to"


def _end_node(ray_cluster: Any) -> None:
    ray_cluster.remove_node(ray_cluster.worker_places[-1], allow_graceful=False)


def driver(work: Path) -> tuple[str, list[str]]:
    """The sweep's own process is killed, and the sweep continued."""
    expected = undisturbed(work)
    directory = work / "resumed"
    with cluster(2) as ray_cluster:
        sweep = new(work, "resumed", *_FORTY, "--ray", ray_cluster.address)
        wait_until(lambda: len(rows(directory)) >= 10 or sweep.poll() is not None)
        os.kill(sweep.pid, signal.SIGKILL)
        sweep.wait()
        left = [] if wait_until(lambda: not workers(), 20) else workers()
        kept = (directory / "trials.jsonl").read_bytes()
        kept = kept[: kept.rindex(b"\n") + 1]
        start(work, "resumed", "--resume", str(directory), "--ray", ray_cluster.address).wait(300)
    found = comparable(directory)
    is_kept = (directory / "trials.jsonl").read_bytes().startswith(kept)
    problems = [] if found == expected and is_kept else ["the resumed sweep has other rows"]
    problems += [f"processes left: {left}"] if left else []
    return (
        f"## The sweep's own process killed\n\nSIGKILL after {len(kept.splitlines())} rows; processes left: "
        f"{len(left)}. `--resume` keeps these rows and ends with\n{len(found)}, "
        f"{_equal(found == expected and is_kept)} the undisturbed ones."
    ), problems


def shards(work: Path) -> tuple[str, list[str]]:
    """Three shards without Ray, merged."""
    expected = undisturbed(work)
    parts = [str(work / f"part-{number}") for number in (1, 2, 3)]
    for number in (1, 2, 3):
        new(work, f"part-{number}", *_FORTY, "--shard", f"{number}/3").wait(300)
    subprocess.run([*KVPLAN, "merge", *parts, "--out", str(work / "merged")], check=False, capture_output=True)
    found = comparable(work / "merged")
    counts = " + ".join(str(len(rows(Path(part)))) for part in parts)
    is_equal = found == expected
    return (
        f"## Shards\n\n`--shard` 1/3, 2/3 and 3/3 without Ray, {counts} rows, merged: {_equal(is_equal)} the "
        f"{len(expected)} of one machine."
    ), [] if is_equal else ["merged rows differ"]


def overhead(work: Path) -> tuple[str, list[str]]:
    """Short trials, computed: one worker over Ray beside one without."""

    def seconds(name: str, *options: str) -> tuple[float, float]:
        started = time.monotonic()
        new(work, name, *_SHORT, *options).wait(170)
        whole = time.monotonic() - started
        later = [row["trial_seconds"] for row in rows(work / name)][1:]  # the first loads the engine
        return whole, sum(later) / max(1, len(later))

    alone, alone_trial = seconds("alone")
    with cluster(1) as ray_cluster:
        over_ray, ray_trial = seconds("over-ray", "--ray", ray_cluster.address)
    num_trials = len(rows(work / "over-ray"))
    more = ray_trial - alone_trial
    is_complete = num_trials == len(rows(work / "alone")) > 0
    problems = [] if is_complete and more < MOST_OVERHEAD_SECONDS else [f"{more:.2f} s more per trial"]
    return (
        f"## Overhead\n\n{num_trials} short trials, computed, on one worker, which keeps its weights from trial to "
        f"trial. After the first, a trial takes\n{1000 * ray_trial:.0f} ms over Ray and {1000 * alone_trial:.0f} ms "
        f"without: {1000 * more:+.0f} ms. The whole command takes {over_ray:.1f} s and {alone:.1f} s: Ray is\n"
        "imported, the cluster joined, and an actor looks at its device."
    ), problems


SECTIONS: Final[dict[str, Callable[[Path], tuple[str, list[str]]]]] = {
    "kills": kills,
    "driver": driver,
    "shards": shards,
    "overhead": overhead,
}


if __name__ == "__main__":
    sys.exit(main())
