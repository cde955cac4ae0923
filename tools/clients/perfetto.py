"""A trace of `kvplan profile`, opened in Perfetto's own user interface and counted by its SQL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from clients.browser import Tab, browser
from clients.findings import Findings

_PROFILED = (
    "smollm2-135m",
    "--max-num-seqs",
    "8",
    "--num-prompts",
    "12",
    "--input-len",
    "32..64",
    "--output-len",
    "8..24",
)
_LOAD = ("--request-rate", "4", "--device-memory", "512MiB", "--load-format", "dummy")
_SLICES = "select name, count(*) as n, sum(dur) as total from slice group by name"
_COUNTERS = (
    "select t.name, count(*) as n, sum(value) as total from counter c join track t on c.track_id = t.id group by t.name"
)
_PROCESSES = "select name, count(*) as n, 0 as total from process where name is not null group by name"
_ERRORS = "select name, 1 as n, value as total from stats where value > 0 and severity != 'info'"
# The interface's own query engine; names, counts and sums as plain JSON.
_QUERY = """
app.trace.engine.query({sql}).then(result => {{
  const rows = [];
  for (const it = result.iter({{name: 'str', n: 0, total: 0}}); it.valid(); it.next())
    rows.push([it.name, Number(it.n), Number(it.total)]);
  return rows;
}})
"""


def check_perfetto(chromium: Path | None, interface: Path | None) -> Findings:
    if chromium is None:
        return Findings("Perfetto", missing="there is no chromium")
    if interface is None:
        return Findings("Perfetto", missing="no --perfetto-ui")
    version = next((path.name for path in interface.glob("v[0-9]*") if path.is_dir()), "")
    findings = Findings("Perfetto", version.partition("-")[0])
    with tempfile.TemporaryDirectory() as folder:
        _profile(Path(folder) / "run")
        trace = Path(folder) / "run" / "trace.json"
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
        with _served(interface, trace) as url, browser(chromium) as tab:
            tab.open(f"{url}/index.html#!/?url={url}/trace.json")
            tab.wait_for("globalThis.app && app.trace !== undefined && !app.isLoadingTrace", 120)
            _compare(tab, events, findings)
    return findings


def _compare(tab: Tab, events: list[dict[str, Any]], findings: Findings) -> None:
    """What Perfetto read beside what the file holds: names, counts, and sums of durations and values."""
    slices, counters = written_slices(events), written_counters(events)
    for what, sql, written in (("slices", _SLICES, slices), ("counters", _COUNTERS, counters)):
        found = {name: (n, total) for name, n, total in _ask(tab, sql)}
        same = found.keys() == written.keys() and all(_agree(found[name], written[name]) for name in written)
        count = sum(n for n, _ in found.values())
        findings.check(f"{what}: names, counts and sums as in the file", same, f"{count} of {len(found)} names")
    findings.equal("processes", sorted(name for name, *_ in _ask(tab, _PROCESSES)), ["engine", "requests"])
    findings.equal("errors of the import", _ask(tab, _ERRORS), [])


def _ask(tab: Tab, sql: str) -> list[list[Any]]:
    rows: list[list[Any]] = tab.evaluate(_QUERY.format(sql=json.dumps(sql)))
    return rows


def _agree(found: tuple[int, float], written: tuple[int, float]) -> bool:
    """Perfetto keeps whole nanoseconds."""
    return found[0] == written[0] and abs(found[1] - written[1]) <= 2 * written[0]


def written_slices(events: list[dict[str, Any]]) -> dict[str, tuple[int, float]]:
    """name -> number of slices, and their nanoseconds: complete events, and pairs of a beginning and an end."""
    numbers: Counter[str] = Counter()
    lengths: Counter[str] = Counter()
    for event in events:
        if event["ph"] in "Xb":
            numbers[event["name"]] += 1
        if event["ph"] == "X":
            lengths[event["name"]] += 1000 * event["dur"]
        elif event["ph"] in "be":
            lengths[event["name"]] += (1000 if event["ph"] == "e" else -1000) * event["ts"]
    return {name: (number, lengths[name]) for name, number in numbers.items()}


def written_counters(events: list[dict[str, Any]]) -> dict[str, tuple[int, float]]:
    """Track -> number of values, and their sum. Each argument of a counter is a track of its own."""
    numbers: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    for event in events:
        if event["ph"] == "C":
            for argument, value in event["args"].items():
                numbers[f"{event['name']} {argument}"] += 1
                sums[f"{event['name']} {argument}"] += value
    return {name: (number, float(sums[name])) for name, number in numbers.items()}


def _profile(directory: Path) -> None:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    command = [sys.executable, "-m", "kvplan", "profile", *_PROFILED, *_LOAD, "--out", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, check=False)
    if done.returncode:
        raise SystemExit(f"error: kvplan profile failed: {done.stderr[-2000:]}")


@contextmanager
def _served(interface: Path, trace: Path) -> Iterator[str]:
    """The interface and the trace from one address, so that the page may read it."""

    class Files(SimpleHTTPRequestHandler):
        def translate_path(self, path: str) -> str:
            return str(trace) if path.startswith("/trace.json") else super().translate_path(path)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=str(interface)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
