"""What a person sees of servers in 80 columns, and one server over time: rates, a restart, a server that goes."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from metric_pages import LLAMACPP_PAGE, SGLANG_PAGE, vllm_page
from page_server import PageServer, page_server, vllm_pages

from kvplan.metrics.limits import ServerLimits
from kvplan.metrics.page import read_page
from kvplan.metrics.reading import ServerReading
from kvplan.metrics.window import difference
from kvplan.top.gpus import GpuState
from kvplan.top.snapshot import Snapshot, make_snapshot
from kvplan.top.view import _bar, screen
from kvplan.top.watch import ServerState, ServerWatch

LIMITS = ServerLimits(max_num_seqs=256, max_model_len=4096, version="0.33.0")


def reading_at(seconds: float, page: str) -> ServerReading:
    found = read_page(page, seconds)
    assert found is not None
    return found


def busy_state(url: str = "http://127.0.0.1:8000", usage: float = 211 / 504) -> ServerState:
    """Ten seconds: 400 tokens out, 1,000 in, 600 found in the cache, one preemption, eight requests finished."""
    before = reading_at(0.0, vllm_page(queries=1000.0, hits=100.0, usage=usage))
    after = reading_at(
        10.0,
        vllm_page(
            usage=usage,
            queries=2000.0,
            hits=700.0,
            generation_tokens=400.0,
            preemptions=1.0,
            finished={"stop": 5.0, "length": 8.0, "abort": 0.0},
            ttft=[0.03] * 19 + [0.7],
            itl=[0.004] * 90 + [0.06] * 10,
        ),
    )
    window = difference(before, after)
    return ServerState(url, after, window, LIMITS, ("meta-llama/Llama-3.1-8B",))


def lines_of(snapshot: Snapshot, width: int = 80, height: int | None = None) -> list[str]:
    return screen(snapshot, width=width, height=height, title="kvplan top").plain.split("\n")


def test_a_server_at_80_columns() -> None:
    assert lines_of(make_snapshot([busy_state()])) == [
        "kvplan top",
        "",
        "http://127.0.0.1:8000  vllm 0.33.0  meta-llama/Llama-3.1-8B",
        "  KV  ██████████░░░░░░░░░░░░░░  41.9 % of 8,064 tokens   +1 of 1 x 4k",
        "  running 3/256   waiting 2 (2 capacity)   preemptions 1 +1   prefix hits 60 %",
        "  out 40.0 tok/s   in 100 tok/s   0.8 requests/s",
        "  TTFT p50 31 p95 40 p99 700 ms   ITL p50 <10 p95 62 p99 72 ms",
    ]


def test_drafts_have_a_line_where_there_are_any() -> None:
    before, after = (
        reading_at(at, vllm_page(accepted=counts)) for at, counts in ((0.0, [0, 0, 0]), (1.0, [20, 16, 4]))
    )
    state = ServerState("http://h:1", after, difference(before, after))
    assert (
        lines_of(make_snapshot([state]))[-1]
        == "  drafts  2.00 tokens a verification   50 % of the draft tokens accepted"
    )
    gauge = reading_at(0.0, SGLANG_PAGE + 'sglang:spec_accept_length{dp_rank="0",model_name="q",tp_rank="0"} 2.83\n')
    assert "  drafts  2.83 tokens a verification" in lines_of(make_snapshot([ServerState("http://h:1", gauge)]))


def test_room_that_does_not_fit_beside_the_pool_stands_below_it() -> None:
    snapshot = make_snapshot([busy_state()], contexts=(256, 1024, 4096))
    pool, room = (
        "  KV  ██████████░░░░░░░░░░░░░░  41.9 % of 8,064 tokens",
        "+18 of 31 x 256   +4 of 7 x 1k   +1 of 1 x 4k",
    )
    assert lines_of(snapshot)[3:5] == [pool, f"  room  {room}"]
    assert lines_of(snapshot, width=120)[3] == f"{pool}   {room}"


def test_nothing_is_wider_than_the_terminal() -> None:
    many = [busy_state(f"http://a-very-long-host-name.example.org:80{place:02d}") for place in range(12)]
    gpu = GpuState(0, "NVIDIA H100 80GB HBM3", 70 << 30, 80 << 30, 1755, 1980, 98, 612.4)
    for width in (60, 80, 120):
        for height in (None, 24):
            snapshot = make_snapshot(many, [gpu], contexts=(1024, 2048, 4096))
            assert max(map(len, lines_of(snapshot, width, height))) <= width


def test_servers_that_would_not_fit_as_blocks_get_a_line_each() -> None:
    gone = ServerState("http://10.0.0.9:8000", error="No server listens at http://10.0.0.9:8000.", gone_seconds=12.4)
    states = [*(busy_state(f"http://10.0.0.{place}:8000") for place in range(8)), gone]
    lines = lines_of(make_snapshot(states, contexts=(1024,)), height=24)
    assert len(lines) == 11
    assert lines[1] == "server                            KV   run  wait    tok/s  TTFT95  TPOT95   room"
    assert lines[2] == "10.0.0.0:8000         ███▍░░░░  42 %     3     2     40.0      40      62     +4"
    assert lines[-1].startswith("10.0.0.9:8000         no reading for 12 s: No server listens")
    assert len(lines_of(make_snapshot(states), height=None)) > 24


@pytest.mark.parametrize(("usage", "colour"), [(0.5, "green"), (0.95, "dark_orange"), (0.99, "red")])
def test_the_bar_has_the_colours_of_vllms_dashboards(usage: float, colour: str) -> None:
    text = screen(make_snapshot([busy_state(usage=usage)]), width=80, height=None, title="")
    filled = [span.style for span in text.spans if "█" in text.plain[span.start : span.end]]
    assert colour in filled


def test_a_percentile_outside_the_finite_buckets_is_not_made_up() -> None:
    before = reading_at(0.0, vllm_page())
    window = difference(before, reading_at(1.0, vllm_page(itl=[0.001] * 5, ttft=[9999.0])))
    lines = lines_of(make_snapshot([ServerState("http://h:1", before, window)]))
    assert lines[-1] == "  TTFT p50 >40,000 p95 >40,000 p99 >40,000 ms   ITL p50 <10 p95 <10 p99 <10 ms"


def test_an_interpolated_percentile_does_not_look_exact() -> None:
    """All that is known of thirty waits of half a minute is that they lie between 20 and 40 s."""
    before = reading_at(0.0, vllm_page())
    window = difference(before, reading_at(1.0, vllm_page(ttft=[31.7] * 30, itl=[0.0131] * 30)))
    lines = lines_of(make_snapshot([ServerState("http://h:1", before, window)]))
    assert lines[-1] == "  TTFT p50 30,000 p95 39,000 p99 40,000 ms   ITL p50 18 p95 24 p99 25 ms"


def test_a_server_that_is_gone_says_so_above_what_it_said_last() -> None:
    state = replace(busy_state(), error="No server listens at http://127.0.0.1:8000.", gone_seconds=300.0, window=None)
    lines = lines_of(make_snapshot([state]))
    assert lines[3] == "  gone for 5 min: No server listens at http://127.0.0.1:8000."
    assert "41.9 %" in lines[4]
    assert "+1 of" not in lines[4], "nothing fits into a server that is gone"


def test_a_server_without_a_reading_is_its_address_and_the_reason() -> None:
    lines = lines_of(make_snapshot([ServerState("http://h:1", error="There is no host called h.")]))
    assert lines[2:] == ["http://h:1", "  no reading: There is no host called h."]


def test_a_server_that_tells_no_pool_has_no_bar() -> None:
    state = ServerState("http://127.0.0.1:8080", reading_at(0.0, LLAMACPP_PAGE), limits=ServerLimits(max_num_seqs=4))
    lines = lines_of(make_snapshot([state], contexts=(1024,)))
    assert lines[3] == "  KV  not told by this server"
    assert "/4" in lines[4]


def test_llama_cpp_shows_the_tokens_in_its_slots() -> None:
    reading = replace(reading_at(0.0, LLAMACPP_PAGE), num_slots=4, slot_tokens=1024, kv_cache_used_tokens=320.0)
    lines = lines_of(make_snapshot([ServerState("http://127.0.0.1:8080", reading)], contexts=(512,)))
    assert lines[3] == "  KV  320 tokens in 1 of 4 slots of 1,024   ~+3 of 4 x 512"


def test_data_parallel_engines_show_the_fullest_and_say_that_room_is_counted_in_tokens() -> None:
    """SGLang: two engines, 0.5 and 0.9 used, of 60,000 tokens each; no histograms, no requests counted."""
    state = ServerState("http://h:30000", reading_at(0.0, SGLANG_PAGE))
    assert lines_of(make_snapshot([state], contexts=(8192,)))[2:] == [
        "http://h:30000  sglang x 2 data-parallel  q",
        "  KV  ████████████████▊░░░░░░░  70.0 % (fullest 90 %) of 120,000 tokens",
        "  room  ~+4 of 14 x 8k",
        "  running 8   waiting 3",
        "  engine 0  ████░░░░  50.0 %   running 3   waiting 1",
        "  engine 1  ███████▎  90.0 %   running 5   waiting 2",
    ]


def test_seats_are_those_of_each_data_parallel_engine() -> None:
    state = ServerState("http://h:30000", reading_at(0.0, SGLANG_PAGE), limits=ServerLimits(max_num_seqs=6))
    assert "  running 8/12   waiting 3" in lines_of(make_snapshot([state], contexts=(8192,)))


def test_a_gpu_line_leaves_out_what_the_driver_does_not_tell() -> None:
    full = GpuState(0, "NVIDIA L4", 12 << 30, 24 << 30, 1530, 2040, 87, 68.6)
    bare = GpuState(1, "NVIDIA GB10", 1 << 30, 100 << 30)
    lines = lines_of(make_snapshot([], [full, bare]))
    assert lines[-2:] == [
        "GPU 0 NVIDIA L4   12.0 of 24.0 GiB   1,530 MHz (75 %)   busy 87 %   69 W",
        "GPU 1 NVIDIA GB10   1.0 of 100.0 GiB",
    ]


def test_a_bar_is_of_characters_that_the_output_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """LC_ALL=C printed \\u2591 for each cell."""
    assert _bar(0.5, 8).plain == "████░░░░"
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert _bar(0.5, 8).plain == "####...."


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
