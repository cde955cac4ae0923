"""What the client measures against what a server really did: times, counts, and everything that breaks."""

from __future__ import annotations

import statistics

import pytest
from fake_server import Counting, FakeServer, running
from load_helpers import load

from kvplan.load.client.exchange import EventSplitter, error_text
from kvplan.load.options import LoadOptions
from kvplan.load.run import run_load
from kvplan.load.session import find_target


def ms(values: list[float]) -> float:
    return 1000 * statistics.mean(values)


def test_ttft_and_tpot_are_those_of_the_server() -> None:
    with running(FakeServer(ttft=0.03, gap=0.006)) as server:
        run = load(server, num_prompts=12, max_concurrency=4, output_len="12")
        served = {request.body["seed"]: request for request in server.served}
    records, row = run.measured.records, run.row({})
    assert (row["status"], row["completed"], row["total_output_tokens"]) == ("ok", 12, 144)
    assert row["chunks_per_token"] == 1.0
    pairs = [(record, served[record.index]) for record in records]
    first = [(record.times[0] - record.started) - (request.writes[0] - request.received) for record, request in pairs]
    spans = [
        (record.times[-1] - record.times[0]) - (request.writes[-1] - request.writes[0]) for record, request in pairs
    ]
    # The way there and back. How long it is at most depends on who else uses the machine: the shortest is bounded.
    assert 0 <= min(first) < 0.02
    assert min(map(abs, spans)) < 0.02
    assert row["mean_ttft_ms"] == pytest.approx(ms([record.times[0] - record.started for record in records]))
    tpot = ms([(record.times[-1] - record.times[0]) / 11 for record in records])
    assert (row["mean_tpot_ms"], row["mean_itl_ms"]) == (pytest.approx(tpot), pytest.approx(tpot))


def test_throughput_is_tokens_over_the_time_from_first_arrival_to_last_token() -> None:
    with running(FakeServer()) as server:
        run = load(server, num_prompts=8, max_concurrency=2, output_len="10")
        served = max(request.writes[-1] for request in server.served) - min(each.received for each in server.served)
    records, row = run.measured.records, run.row({})
    seconds = max(record.times[-1] for record in records) - min(record.started for record in records)
    assert row["duration"] == pytest.approx(seconds)
    assert seconds >= served, "the server's part of it"
    assert row["output_throughput"] == pytest.approx(80 / seconds)
    assert row["request_throughput"] == pytest.approx(8 / seconds)


@pytest.mark.parametrize("counting", ["continuous", "token_ids", "final", "finish_chunk"])
@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_several_tokens_in_a_chunk_are_counted_as_tokens(counting: Counting, endpoint: str) -> None:
    with running(FakeServer(counting=counting, tokens_per_chunk=4, gap=0.008)) as server:
        run = load(server, num_prompts=3, max_concurrency=3, output_len="40", endpoint=endpoint)
    row = run.row({})
    assert row["total_output_tokens"] == 120
    assert row["chunks_per_token"] == pytest.approx(0.25)
    # TPOT is over tokens: ten chunks of four, nine gaps
    assert [len(record.times) for record in run.measured.records] == [10] * 3
    tpot = ms([(record.times[-1] - record.times[0]) / 39 for record in run.measured.records])
    assert row["mean_tpot_ms"] == pytest.approx(tpot)
    assert row["mean_itl_ms"] is None, "gaps between chunks are not gaps between tokens"
    expected = {"continuous": "continuous_usage", "token_ids": "token_ids"}.get(counting, "usage")
    assert row["token_source"] == expected


def test_the_role_chunk_of_a_chat_is_no_token() -> None:
    with running(FakeServer(counting="final")) as server:
        run = load(server, num_prompts=2, max_concurrency=1, output_len="5", endpoint="chat")
    assert [len(record.times) for record in run.measured.records] == [5, 5]


def test_a_server_without_usage_has_no_figures_per_token() -> None:
    with running(FakeServer(counting="none")) as server:
        run = load(server, num_prompts=4, max_concurrency=2, output_len="6")
    row = run.row({"ttft": 1.0, "tpot": 1.0})
    assert row["completed"] == 4
    assert row["mean_ttft_ms"] is not None and row["mean_e2el_ms"] is not None
    unknown = ("total_output_tokens", "output_throughput", "mean_tpot_ms", "mean_itl_ms", "token_source", "slo_pass")
    assert [row[name] for name in unknown] == [None] * len(unknown)  # type: ignore[literal-required]


def test_a_strict_server_is_asked_without_the_fields_that_it_refuses() -> None:
    with running(FakeServer(is_strict=True, counting="final")) as server:
        run = load(server, num_prompts=2, max_concurrency=2, output_len="4")
    assert run.row({})["completed"] == 2
    assert "ignore_eos" not in server.served[-1].body


def test_a_connection_lost_in_the_middle_fails_that_request_alone() -> None:
    with running(FakeServer(break_after=lambda number: 3 if number == 4 else None)) as server:
        run = load(server, num_prompts=6, max_concurrency=2, output_len="8")
    row = run.row({"ttft": 10.0})
    assert (row["status"], row["completed"], row["failed"]) == ("failed", 5, 1)
    assert "1 of 6 requests" in str(row["error"]) and "closed the connection" in str(row["error"])
    assert row["slo_pass"] is False
    assert row["total_output_tokens"] == 40, "the tokens of a broken answer are not counted"


def test_refusals_are_counted_and_named() -> None:
    with running(FakeServer(refuse=lambda number: 503 if number >= 3 else None)) as server:
        run = load(server, num_prompts=5, max_concurrency=1, output_len="2")
    row = run.row({})
    assert (row["completed"], row["failed"]) == (3, 2)
    assert "503: The engine is busy." in str(row["error"])


def test_connections_are_kept_and_a_server_that_closes_them_is_served_all_the_same() -> None:
    with running(FakeServer()) as server:
        load(server, num_prompts=10, max_concurrency=2, output_len="2")
        assert server.num_connections <= 2 + 3  # models and two probes have connections of their own
    with running(FakeServer(keep_alive=False)) as server:
        assert load(server, num_prompts=5, max_concurrency=2, output_len="2").row({})["completed"] == 5


def test_an_answer_that_takes_too_long_has_failed() -> None:
    with running(FakeServer(ttft=0.0)) as server:
        options = LoadOptions(url=server.url, num_prompts=1, output_len="2")
        target = find_target(options)
        server.ttft = 5.0
        run = run_load(target, options.traffic(), timeout_seconds=0.1, with_metrics=False)
    assert "no end within 0.1 s" in str(run.row({})["error"])


def test_events_are_put_together_however_they_are_cut() -> None:
    text = b': keep-alive\n\nevent: x\ndata: {"a": 1}\r\n\r\ndata:{"b": "\xc3\xa4"}\n\ndata: [DONE]\n\n'
    for size in (1, 2, 3, 7, 1000):
        splitter = EventSplitter()
        found = [
            payload for start in range(0, len(text), size) for payload in splitter.feed(text[start : start + size])
        ]
        assert found == [b'{"a": 1}', b'{"b": "\xc3\xa4"}', b"[DONE]"]


def test_a_line_longer_than_any_buffer_is_one_event() -> None:
    payload = b"x" * 1_000_000
    splitter = EventSplitter()
    pieces = [b"data: " + payload[:500_000], payload[500_000:], b"\n\n"]
    assert [found for piece in pieces for found in splitter.feed(piece)] == [payload]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error": {"message": "too long", "code": 400}}', "too long"),
        (b'{"error": "Unauthorized"}', "Unauthorized"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b"<html>502\nBad Gateway</html>", "<html>502 Bad Gateway</html>"),
        (b'{"object":"error","message":"no such model"}', "no such model"),
    ],
)
def test_the_message_in_an_error(body: bytes, text: str) -> None:
    assert error_text(body) == text
