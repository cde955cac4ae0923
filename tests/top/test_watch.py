"""One server over time: rates between readings, a server that goes and comes back, a restart."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from page_server import PageServer, page_server, vllm_pages

from kvplan.top.watch import ServerWatch


@pytest.fixture
def server() -> Iterator[PageServer]:
    with page_server(vllm_pages(generation_tokens=100.0, ttft=[0.03] * 4)) as served:
        yield served


def watch_of(server: PageServer, *, window_seconds: float = 60.0) -> ServerWatch:
    return ServerWatch(server.url, interval_seconds=0.01, window_seconds=window_seconds)


def test_what_happened_between_two_readings(server: PageServer) -> None:
    watch = watch_of(server)
    watch.read_once()
    assert watch.state.window is None
    server.pages.update(vllm_pages(generation_tokens=130.0, ttft=[0.03] * 4 + [0.07] * 6, preemptions=2.0))
    watch.read_once()
    window = watch.state.window
    assert window is not None and window.ttft is not None
    assert (window.generation_tokens, window.num_preemptions, window.ttft.count) == (30.0, 2.0, 6.0)
    assert 0.06 < (window.ttft.percentile(50) or 0.0) <= 0.08
    assert watch.state.limits.max_num_seqs == 256
    assert watch.state.models == ("meta-llama/Llama-3.1-8B",)


def test_a_server_that_is_gone_keeps_its_last_reading_and_comes_back(server: PageServer) -> None:
    watch = watch_of(server)
    watch.read_once()
    watch.read_once()
    server.stop()
    watch.read_once()
    gone = watch.state
    assert not gone.is_up and gone.reading is not None and gone.window is None
    assert gone.error == f"No server listens at {server.url}."
    time.sleep(0.02)
    watch.read_once()
    assert watch.state.gone_seconds >= 0.02, "since the first failure, not since the last"
    server.start()
    watch.read_once()
    assert watch.state.is_up and watch.state.gone_seconds == 0.0


def test_a_restarted_server_begins_anew(server: PageServer) -> None:
    watch = watch_of(server)
    watch.read_once()
    server.pages.update(vllm_pages(generation_tokens=5.0))
    watch.read_once()
    assert watch.state.window is None, "fewer tokens than before are no rate"
    server.pages.update(vllm_pages(generation_tokens=9.0))
    watch.read_once()
    assert watch.state.window is not None
    assert watch.state.window.generation_tokens == 4.0


def test_another_model_in_its_place_is_asked_for_its_settings(server: PageServer) -> None:
    watch = watch_of(server)
    watch.read_once()
    server.stop()
    watch.read_once()
    server.pages.update(vllm_pages("openai-community/gpt2"))
    server.start()
    watch.read_once()
    assert watch.state.models == ("openai-community/gpt2",)


def test_the_window_forgets_old_readings(server: PageServer) -> None:
    watch = watch_of(server, window_seconds=0.05)
    watch.read_once()
    time.sleep(0.06)
    server.pages.update(vllm_pages(generation_tokens=110.0, ttft=[0.03] * 4))
    watch.read_once()
    time.sleep(0.06)
    server.pages.update(vllm_pages(generation_tokens=111.0, ttft=[0.03] * 4))
    watch.read_once()
    window = watch.state.window
    assert window is not None
    assert window.generation_tokens == 1.0
    assert window.seconds >= 0.05


def test_a_page_of_something_else_is_a_sentence(server: PageServer) -> None:
    server.pages["/metrics"] = "node_load1 3\n"
    watch = watch_of(server)
    watch.read_once()
    assert watch.state.reading is None
    assert "of no engine that is known" in (watch.state.error or "")


def test_the_thread_reads_until_it_is_stopped(server: PageServer) -> None:
    watch = watch_of(server)
    watch.start()
    deadline = time.monotonic() + 3.0
    while watch.state.window is None and time.monotonic() < deadline:
        time.sleep(0.005)
    watch.stop()
    assert watch.state.window is not None
    watch._thread.join(3.0)
    assert not watch._thread.is_alive()
