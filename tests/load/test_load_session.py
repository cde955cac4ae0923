"""A whole load: the directory it writes, what it prints, and what it says of mistakes."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_server import FakeServer, running
from metric_pages import LLAMACPP_PAGE, vllm_page

from kvplan.runs.columns import COLUMN_NAMES, table_columns

BENCH_KEYS = frozenset(
    {
        "model_id", "num_prompts", "request_rate", "burstiness", "max_concurrency", "duration", "completed", "failed",
        "total_input_tokens", "total_output_tokens", "request_throughput", "output_throughput",
        "total_token_throughput", "max_concurrent_requests", "mean_ttft_ms", "median_ttft_ms", "std_ttft_ms",
        "p99_ttft_ms", "mean_tpot_ms", "mean_itl_ms", "mean_e2el_ms",
    }
)  # fmt: skip


def vllm_like(server: FakeServer) -> None:
    """Give the server a page of vLLM that tells what it really does."""

    def page() -> str:
        return vllm_page(
            running=float(server.num_open),
            waiting=0.0,
            usage=min(1.0, server.num_open / 8),
            ttft=[request.writes[0] - request.received for request in server.served if request.writes],
            generation_tokens=float(sum(request.num_tokens for request in server.served)),
        )

    server.metrics = page


def test_a_load_writes_what_a_sweep_writes(tmp_path: Path, ran: Callable[..., tuple[int, str, str]]) -> None:
    server = FakeServer(gap=0.025)
    vllm_like(server)
    out = tmp_path / "run"
    with running(server):
        words = ("--num-prompts", "24", "--max-concurrency", "4", "--output-len", "12", "--slo", "ttft:5000")
        code, printed, _ = ran("load", server.url, *words, "--out", str(out), "--api-key", "secret")
    assert code == 0
    assert {path.name for path in out.iterdir()} >= {"trials.jsonl", "results.csv", "manifest.json", "summary.json",
                                                     "report.html", "occupancy.png"}  # fmt: skip
    (row,) = csv.DictReader((out / "results.csv").read_text().splitlines())
    assert list(row) == list(table_columns([row])) and set(row) <= set(COLUMN_NAMES)
    assert (row["status"], row["completed"], row["slo_pass"], row["engine"]) == ("ok", "24", "True", "vllm")
    assert float(row["kv_usage_max"]) == 0.5
    # what the client measured beside what the server itself did
    assert float(row["mean_ttft_ms"]) >= float(row["server_mean_ttft_ms"])
    assert "24 of 24 requests served" in printed and "Bound by" in printed
    assert re.search(r"Service level kept: TTFT p99 [\d.]+ ms \(bound 5000\)\.", printed)
    assert "KV cache 50 % full at most" in printed
    assert all("secret" not in path.read_text(errors="replace") for path in out.glob("*.json*"))


def test_a_missed_service_level_is_said(tmp_path: Path, ran: Callable[..., tuple[int, str, str]]) -> None:
    with running(FakeServer(ttft=0.05)) as server:
        words = (
            "--num-prompts",
            "3",
            "--output-len",
            "2",
            "--slo",
            "ttft:20",
            "tpot:900",
            "--out",
            str(tmp_path / "run"),
        )
        code, printed, _ = ran("load", server.url, *words)
    assert code == 0
    assert re.search(
        r"Service level missed: TTFT p99 [\d.]+ ms \(bound 20\), TPOT p99 [\d.]+ ms \(bound 900\)", printed
    )


def test_json_has_the_keys_of_vllm_bench_serve_and_nothing_else_on_stdout(
    tmp_path: Path, ran: Callable[..., tuple[int, str, str]]
) -> None:
    with running(FakeServer(gap=0.001)) as server:
        words = ("--num-prompts", "5", "--max-concurrency", "5", "--output-len", "3", "--json")
        code, printed, talk = ran("load", server.url, *words, "--out", str(tmp_path / "run"))
    document = json.loads(printed)
    assert code == 0
    assert document.keys() >= BENCH_KEYS
    assert (document["schema"], document["completed"], len(document["runs"])) == ("kvplan.load/1", 5, 1)
    assert document["kv_usage_max"] is None
    assert "answers 404 instead of metrics" in talk
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == document


def test_a_pool_that_the_server_does_not_tell_is_not_shown_as_empty(
    tmp_path: Path, ran: Callable[..., tuple[int, str, str]]
) -> None:
    with running(FakeServer(gap=0.25, metrics=lambda: LLAMACPP_PAGE)) as server:
        words = ("--num-prompts", "2", "--output-len", "6", "--out", str(tmp_path / "run"))
        code, printed, _ = ran("load", server.url, *words)
    assert code == 0 and "Server (llamacpp): 1 running" in printed
    page = (tmp_path / "run" / "report.html").read_text()
    assert "How full the KV pool was is not told by this server" in page
    assert "The KV pool peaks" not in page


def test_a_figure_that_is_not_finite_costs_that_figure_alone(
    tmp_path: Path, ran: Callable[..., tuple[int, str, str]]
) -> None:
    server = FakeServer(gap=0.001)
    server.metrics = lambda: vllm_page(usage=float("nan"))
    with running(server):
        words = ("--num-prompts", "5", "--max-concurrency", "5", "--output-len", "3", "--json")
        code, printed, _ = ran("load", server.url, *words, "--out", str(tmp_path / "run"))
    document = json.loads(printed)
    assert (code, document["completed"], document["kv_usage_max"]) == (0, 5, None)


def test_a_search_finds_the_most_users_within_the_service_level(
    tmp_path: Path, ran: Callable[..., tuple[int, str, str]]
) -> None:
    class Crowded(FakeServer):
        """Slow as soon as more than five are served at once."""

        async def _stream(self, *arguments: Any) -> bool:
            self.ttft = 0.005 if self.num_open <= 5 else 0.4
            return await super()._stream(*arguments)

    with running(Crowded(gap=0.0)) as server:
        words = ("--search", "users=1..8", "--slo", "ttft:300", "--output-len", "2", "--num-prompts", "16", "--json")
        code, printed, _ = ran("load", server.url, *words, "--out", str(tmp_path / "run"))
    document = json.loads(printed)
    (search,) = document["slo"]["searches"]
    assert code == 0
    assert (search["keeps"], search["misses"]) == (5, 6)
    assert document["max_concurrency"] == 5, "the figures at the top are those of the load that was found"
    assert search["variable"] == "users" and "is met up to 5 users (" in search["sentence"]
    assert (tmp_path / "run" / "slo.png").exists()
    assert "(p99) met up to 5 users (" in (tmp_path / "run" / "report.html").read_text()


def test_a_search_over_rates_begins_with_the_capacity(tmp_path: Path, ran: Callable[..., tuple[int, str, str]]) -> None:
    with running(FakeServer(ttft=0.002, gap=0.0)) as server:
        words = (
            "--search",
            "request_rate=50,100,200",
            "--slo",
            "e2el:2000",
            "--output-len",
            "2",
            "--num-prompts",
            "10",
        )
        code, printed, _ = ran("load", server.url, *words, "--json", "--out", str(tmp_path / "run"))
    assert code == 0
    assert json.loads(printed)["slo"]["searches"][0]["keeps"] == 200


def test_failed_requests_are_said_and_the_others_reported(
    tmp_path: Path, ran: Callable[..., tuple[int, str, str]]
) -> None:
    server = FakeServer(gap=0.0, refuse=lambda number: 503 if number == 5 else None)
    with running(server):
        words = ("--num-prompts", "8", "--max-concurrency", "2", "--output-len", "2")
        code, printed, talk = ran("load", server.url, *words, "--out", str(tmp_path / "run"))
    assert code == 1, "as --max-failed 0 has it"
    assert "1 of 8 requests: 503: The engine is busy." in talk
    assert "7 of 8 requests served" in printed


def test_a_run_without_a_served_request_has_failed(tmp_path: Path, ran: Callable[..., tuple[int, str, str]]) -> None:
    server = FakeServer(refuse=lambda number: 503 if number >= 2 else None)  # the probes are served
    with running(server):
        words = ("--num-prompts", "3", "--output-len", "2", "--slo", "ttft:100")
        code, printed, talk = ran("load", server.url, *words, "--out", str(tmp_path / "run"))
    assert code == 1
    assert "0 of 3 requests served" in printed
    assert "3 of 3 requests: 503: The engine is busy." in talk
    assert "Traceback" not in talk


def test_a_directory_that_holds_a_run_is_not_written_over(
    tmp_path: Path, ran: Callable[..., tuple[int, str, str]]
) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    with running(FakeServer()) as server:
        code, _, talk = ran("load", server.url, "--out", str(tmp_path))
    assert code == 1
    assert "already holds a" in talk and "--resume" not in talk


@pytest.mark.parametrize(
    ("server", "words", "code", "sentence", "hint"),
    [
        (FakeServer(key="right"), (), 1, "refuses the API key", "--api-key"),
        (FakeServer(key="right"), ("--api-key", "wrong"), 1, "refuses the API key", "--api-key"),
        (FakeServer(models=("a", "b")), ("--model", "c"), 1, "has no model 'c'", "it serves a, b"),
        (FakeServer(models=()), (), 1, "names no model", "--model"),
        (FakeServer(refuse=lambda number: 500), (), 1, "did not serve a small request: 500", "log"),
        (FakeServer(), ("--input-len", "5000"), 1, "takes 4,096 at most", "--input-len"),
        (FakeServer(), ("--request-rate", "fast"), 2, "is not a rate", "write 4"),
        (FakeServer(), ("--request-rate", "1e-300"), 2, "is not a rate", "write 4"),
        (
            FakeServer(),
            ("--request-rate", "1000", "--duration", "1000000"),
            2,
            "more than 10,000,000 requests",
            "use less",
        ),
        (
            FakeServer(),
            ("--duration", "inf", "--users", "2"),
            2,
            "--duration must be at most 1,000,000,000 s",
            "use less",
        ),
        (FakeServer(), ("--request-timeout", "inf"), 2, "--request-timeout must be at most", "use less"),
        (FakeServer(), ("--num-prompts", "100000000000"), 2, "--num-prompts must be at most 10,000,000", "use less"),
        (FakeServer(), ("--seed", "9" * 25), 2, "--seed must be at most", "use less"),
        (FakeServer(), ("--request-rate", "2", "--burstiness", "1e-8"), 2, "A burstiness of 1e-08 is too low", "0.1"),
        (FakeServer(), ("--slo", "speed:1"), 2, "is not a service level", "ttft:500"),
        (FakeServer(), ("--workload", "/nowhere.jsonl"), 1, "cannot be read", ""),
    ],
)
def test_a_mistake_is_one_sentence_and_a_hint(
    server: FakeServer,
    words: tuple[str, ...],
    code: int,
    sentence: str,
    hint: str,
    tmp_path: Path,
    ran: Callable[..., tuple[int, str, str]],
) -> None:
    with running(server):
        found, printed, talk = ran("load", server.url, *words, "--out", str(tmp_path / "run"))
    assert (found, printed) == (code, "")
    assert sentence in talk and hint in talk
    assert "Traceback" not in talk
    assert not (tmp_path / "run").exists(), "nothing is left behind"


def test_a_missing_package_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, ran: Callable[..., tuple[int, str, str]]
) -> None:
    monkeypatch.setitem(sys.modules, "httptools", None)  # what Python itself takes for a package that is missing
    code, _, talk = ran("load", "http://127.0.0.1:9")
    assert code == 2
    assert "needs a package that is not installed: httptools" in talk
    assert "pip install 'kvplan[load]'" in talk


def test_the_self_test_measures_this_client_alone(ran: Callable[..., tuple[int, str, str]]) -> None:
    code, printed, _ = ran("load", "--self-test", "--max-concurrency", "8", "--output-len", "8", "--json")
    document = json.loads(printed)
    assert code == 0
    assert document["tokens_per_second"] > 0
    assert document["cpu_microseconds_per_token"] > 0
