"""A Prometheus that scrapes the server while `kvplan load` keeps it busy, and answers what dashboards ask."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from clients.dashboards import Query, read_dashboards
from clients.findings import Findings
from clients.served import Served

_SCRAPE_SECONDS = 1
_NUM_PROMPTS, _OUTPUT_LEN = 60, 24
_CONFIG = """\
global: {{scrape_interval: {seconds}s}}
scrape_configs:
  - job_name: kvplan
    static_configs: [{{targets: ["{address}"]}}]
"""
_SHOWN = (
    'up{job="kvplan"}',
    "histogram_quantile(0.99, sum by(le) (rate(vllm:e2e_request_latency_seconds_bucket[1m])))",
    "histogram_quantile(0.9, sum by(le) (rate(vllm:time_to_first_token_seconds_bucket[1m])))",
    "rate(vllm:generation_tokens_total[1m])",
    "max_over_time(vllm:num_requests_running[2m])",
    "max_over_time(vllm:kv_cache_usage_perc[2m])",
)


def check_prometheus(server: Served, executable: Path | None, dashboards: Path | None) -> Findings:
    if executable is None:
        return Findings("Prometheus", missing="it is not installed, and no --prometheus")
    version = subprocess.run([str(executable), "--version"], capture_output=True, text=True, check=True)
    findings = Findings("Prometheus", (version.stdout + version.stderr).split()[2])
    with _scraping(executable, server) as url:
        _keep_busy(server)
        findings.equal("the target is up", _value(url, _SHOWN[0]), 1.0)
        counted = server.counts().generation_tokens
        time.sleep(3 * _SCRAPE_SECONDS)
        scraped = _value(url, "sum(vllm:generation_tokens_total)")
        findings.equal("tokens generated, by Prometheus and by the server", (int(scraped), counted), (counted, counted))
        findings.details += [f"{query}  {_value(url, query):.4g}" for query in _SHOWN]
        if dashboards is None:
            findings.missing = "the dashboards' queries: no --dashboards"
            return findings
        for name, queries in read_dashboards(dashboards).items():
            _check_dashboard(url, name, queries, findings)
    return findings


def _check_dashboard(url: str, name: str, queries: Sequence[Query], findings: Findings) -> None:
    """A query without an answer is right only if all that it asks for is of a feature that the server does not have."""
    empty = [query for query in queries if math.isnan(_value(url, query.text))]
    unexplained = [query for query in empty if not query.is_of_absent_feature]
    said = f"{len(queries) - len(empty)} of {len(queries)} queries have an answer"
    if empty:
        said += "; without: " + ", ".join(sorted({metric for query in empty for metric in query.metrics}))
    findings.check(f"dashboard {name}", not unexplained, said)


@contextmanager
def _scraping(executable: Path, server: Served) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "prometheus.yml"
        config.write_text(_CONFIG.format(seconds=_SCRAPE_SECONDS, address=server.address), encoding="utf-8")
        command = [str(executable), f"--config.file={config}", f"--storage.tsdb.path={folder}/data"]
        command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_for(url)
            yield url
        finally:
            process.terminate()
            process.wait(60)


def _wait_for(url: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if not math.isnan(_value(url, _SHOWN[0])):
                return
        except OSError:
            pass
        time.sleep(0.5)
    raise SystemExit(f"error: Prometheus at {url} scraped nothing")


def _keep_busy(server: Served) -> None:
    command = [sys.executable, "-m", "kvplan", "load", server.url, "--num-prompts", str(_NUM_PROMPTS)]
    command += ["--max-concurrency", "8", "--input-len", "64", "--output-len", str(_OUTPUT_LEN), "--json"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*command, "--out", f"{folder}/run"], check=True, capture_output=True, env=environment)


def _value(url: str, query: str) -> float:
    """Of the first series that a query finds; NaN without one, and where the value is none."""
    with urlopen(f"{url}/api/v1/query?{urlencode({'query': query})}") as answer:
        found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    values = [float(series["value"][1]) for series in found]
    return next((value for value in values if not math.isnan(value)), math.nan)
