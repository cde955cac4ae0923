"""`kvplan load` against `kvplan serve`, both as a user starts them: what the client measured, beside the server."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_server import FakeServer, running

KVPLAN = (sys.executable, "-m", "kvplan")


@pytest.fixture(scope="module")
def served(smollm2_file: Path) -> Iterator[str]:
    """SmolLM2 with four seats; its address."""
    options = ("--port", "0", "--max-num-seqs", "4", "--device-memory", "2GiB", "--served-model-name", "smollm2")
    process = subprocess.Popen([*KVPLAN, "serve", str(smollm2_file), *options], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        found = None
        while found is None:
            line = process.stderr.readline()
            assert line, f"the server ended with {process.wait()}"
            found = re.search(r" at (http://\S+)", line)
        yield found[1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        process.stderr.close()


def load(url: str, out: Path, *words: str) -> dict[str, object]:
    command = [*KVPLAN, "load", url, *words, "--json", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    document: dict[str, object] = json.loads(done.stdout)
    return document


@pytest.mark.slow
@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_the_client_measures_what_the_server_measures(served: str, endpoint: str, tmp_path: Path) -> None:
    words = ("--num-prompts", "32", "--max-concurrency", "8", "--input-len", "96", "--output-len", "24")
    found = load(served, tmp_path / "run", *words, "--endpoint", endpoint)
    assert (found["engine"], found["completed"], found["status"]) == ("kvplan", 32, "ok")
    assert found["token_source"] == "continuous_usage"
    assert found["total_output_tokens"] == 768
    assert found["total_input_tokens"] == pytest.approx(32 * 96, abs=32), "a word that is two tokens here and there"
    # Within 1 % on a machine of one's own (docs/load.md); here others run beside.
    assert found["mean_ttft_ms"] == pytest.approx(found["server_mean_ttft_ms"], rel=0.25, abs=100)
    assert found["mean_itl_ms"] == pytest.approx(found["server_mean_itl_ms"], rel=0.25, abs=10)
    # eight in flight, four seats, long enough for many readings of the server's page; where others leave the client
    # too little of the machine, it says so instead
    assert found["bound_by"] == ("client" if found["client_bound"] else "seats")
    assert (found["max_num_seqs"], found["max_running"]) == (4, 4)
    assert found["prefix_hit_rate"] < 0.2  # type: ignore[operator]  # the chat template's first block at most


@pytest.mark.slow
def test_shared_prefixes_are_found_by_the_servers_prefix_cache(served: str, tmp_path: Path) -> None:
    words = ("--num-prompts", "12", "--max-concurrency", "2", "--input-len", "32", "--output-len", "2")
    found = load(served, tmp_path / "run", *words, "--prefix-len", "128", "--num-prefixes", "2")
    # 10 of 12 prompts find their 128 of 160 tokens
    assert found["prefix_hit_rate"] == pytest.approx(10 / 12 * 128 / 160, abs=0.12)


def test_ctrl_c_reports_what_had_ended_by_then(tmp_path: Path) -> None:
    with running(FakeServer(ttft=0.02, gap=0.01)) as server:
        words = ("--users", "2", "--duration", "60", "--output-len", "4", "--out", str(tmp_path / "run"))
        process = subprocess.Popen(
            [*KVPLAN, "load", server.url, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        while len(server.served) < 12:
            time.sleep(0.02)
            assert process.poll() is None, process.communicate()
        os.kill(process.pid, signal.SIGINT)
        out, talk = process.communicate(timeout=30)
    assert process.returncode == 130, talk
    assert b"requests served" in out
    assert b"Traceback" not in talk
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["interrupted"] is True
    assert summary["completed"] >= 8


def test_a_load_is_no_sweep_to_be_continued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from kvplan.cli import main

    (tmp_path / "manifest.json").write_text(json.dumps({"server": {"url": "http://x"}, "options": {}}))
    assert main(["sweep", "--resume", str(tmp_path)]) == 1
    assert "holds a load, not a sweep" in capsys.readouterr().err
    assert main(["calibrate", str(tmp_path)]) == 1
    assert "holds a load, not a sweep" in capsys.readouterr().err


@pytest.mark.slow
def test_a_sweep_searches_the_load_of_a_server_that_runs(served: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ("--model", "smollm2-135m", "--num-prompts", "6", "--input-len", "24", "--output-len", "6", "--no-rerun")
    search = ("--search", "max_concurrency=1,2", "--slo", "ttft:60000", "--num-runs", "1")
    command = [*KVPLAN, "sweep", "--engine", "openai", "--url", served, *words, *search, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "serves already, kvplan" in done.stderr
    rows = [json.loads(line)["row"] for line in (out / "trials.jsonl").read_text().splitlines()]
    assert max(row["max_concurrency"] for row in rows) == 2, (
        "both keep so generous a bound, and the larger is what counts"
    )
    for row in rows:
        assert (row["status"], row["completed"], row["total_output_tokens"]) == ("ok", 6, 36)
        assert (row["engine"], row["url"], row["max_num_seqs"]) == ("kvplan", served, 4), "as its metrics say"
        assert str(row["kernels"]).startswith("cpu-")
        assert row["kv_cache_tokens"] and row["kv_cache_tokens_predicted"] is None
        assert row["predicted_status"] is None and row["reused_server"] is True


@pytest.mark.slow
def test_a_traces_block_ids_are_found_by_the_servers_prefix_cache(served: str, tmp_path: Path) -> None:
    """Mooncake's columns with blocks of 128 tokens, 12 prompts that branch off each other."""
    runs = [[0, 1, 2], [0, 1, 3], [0, 4], [5], [5, 6, 7], [0, 1, 2, 8], [9], [5, 6, 10], [0, 4, 11], [12], [9, 13], [5]]
    rows = [
        {"timestamp": 10 * place, "input_length": 128 * len(ids) - 8, "output_length": 2, "hash_ids": ids}
        for place, ids in enumerate(runs)
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = load(served, tmp_path / "run", "--workload", str(trace), "--max-concurrency", "1")
    assert (found["completed"], found["num_prompts"]) == (12, 12)
    expected = 0
    for place, ids in enumerate(runs):
        most = max((_tokens_alike(ids, earlier) for earlier in runs[:place]), default=0)
        expected += min(most, 128 * len(ids) - 9) // 16 * 16
    total = sum(128 * len(ids) - 8 for ids in runs)
    # A word that is two tokens here and there moves the ends of blocks.
    assert found["prefix_hit_rate"] == pytest.approx(expected / total, abs=0.03)


def _tokens_alike(one: list[int], other: list[int]) -> int:
    """Of two prompts whose last block lacks eight tokens."""
    alike = [a == b for a, b in zip(one, other, strict=False)]
    return min(128 * [*alike, False].index(False), 128 * len(one) - 8, 128 * len(other) - 8)
