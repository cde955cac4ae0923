"""``kvplan top`` on the command line: one reading for scripts, frames for people, mistakes in one sentence."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from page_server import PageServer, page_server, vllm_pages
from rich.console import Console

from kvplan.cli import main
from kvplan.metrics.http import ServerAddress
from kvplan.top.gpus import GpuReader, is_local
from kvplan.top.session import TopOptions, TopSession


@pytest.fixture
def server() -> Iterator[PageServer]:
    with page_server(vllm_pages(usage=56 / 504)) as served:
        yield served


def test_one_document_of_one_reading(server: PageServer, printed_by: Callable[..., str]) -> None:
    document = json.loads(printed_by("top", server.url, "--once", "--json", "--interval", "0.02", "--ctx", "1k,2k"))
    assert document["schema"] == "kvplan.top/1"
    assert document.keys() == {"schema", "read_at", "servers", "gpus"}
    (found,) = document["servers"]
    assert found.keys() == {
        "url", "is_up", "error", "engine", "models", "limits", "reading", "window", "percentile_ranges", "room"
    }  # fmt: skip
    assert (found["url"], found["is_up"], found["engine"], found["error"]) == (server.url, True, "vllm", None)
    assert found["limits"]["max_num_seqs"] == 256
    assert found["reading"]["kv_cache_usage"] == pytest.approx(56 / 504)
    assert found["reading"]["cache"]["num_blocks"] == 505
    assert found["window"]["output_throughput"] == 0.0
    assert [room["context_tokens"] for room in found["room"]] == [1024, 2048]
    assert [room["sequences"] for room in found["room"]] == [7, 3]
    assert {room["basis"] for room in found["room"]} == {"plan of meta-llama/Llama-3.1-8B"}


def test_percentiles_come_with_the_edges_of_their_buckets(
    server: PageServer, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = vllm_pages(ttft=[0.03] * 9 + [99.0])

    class Later(dict[str, str]):
        """The first reading finds nothing observed yet, later ones do."""

        def get(self, path: str, default: str | None = None) -> str | None:  # type: ignore[override]
            text = super().get(path, default)
            if path == "/metrics":
                self.update(slow)
            return text

    with page_server(Later(vllm_pages())) as served:
        main(["top", served.url, "--once", "--json", "--interval", "0.02"])
    (found,) = json.loads(capsys.readouterr().out)["servers"]
    assert found["window"]["ttft"]["count"] == 10
    assert found["window"]["ttft"]["p99"] is None, "above the last finite bound nothing is known"
    assert found["percentile_ranges"]["ttft"]["p50"] == [0.02, 0.04]
    assert found["percentile_ranges"]["ttft"]["p99"] == [40.0, None]


def test_one_reading_for_people_and_a_server_that_is_not_there(
    server: PageServer, printed_by: Callable[..., str]
) -> None:
    server.stop()
    with page_server(vllm_pages()) as other:
        printed = printed_by("top", other.url, server.url, "--once", "--interval", "0")
        assert f"{other.url}  vllm  meta-llama/Llama-3.1-8B" in printed
        assert f"no reading: No server listens at {server.url}." in printed
    server.start()


def test_nobody_answering_is_exit_code_1(server: PageServer, printed_by: Callable[..., str]) -> None:
    server.stop()
    (found,) = json.loads(printed_by("top", server.url, "--once", "--json", "--interval", "0", code=1))["servers"]
    assert (found["is_up"], found["reading"], found["window"], found["room"]) == (False, None, None, [])
    server.start()


def session_of(server: PageServer) -> TopSession:
    return TopSession(TopOptions([server.url], interval_seconds=0.02, window_seconds=1.0), GpuReader())


def test_frames_follow_each_other_where_there_is_no_terminal(server: PageServer) -> None:
    output = io.StringIO()
    session_of(server).run(Console(file=output, width=100), num_frames=3)
    assert output.getvalue().count("kvplan top") == 3
    assert output.getvalue().count("+1 of 1 x 4k") == 3
    assert "\x1b" not in output.getvalue()


def test_a_terminal_is_given_back_as_it_was(server: PageServer) -> None:
    output = io.StringIO()
    session_of(server).run(Console(file=output, force_terminal=True, width=80, height=24), num_frames=2)
    text = output.getvalue()
    assert text.count("\x1b[?1049h") == text.count("\x1b[?1049l") == 1  # the alternate screen
    assert "Llama-3.1-8B" in text


def test_ctrl_c_ends_it_without_a_word(server: PageServer) -> None:
    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            raise KeyboardInterrupt

    output = io.StringIO()
    session = session_of(server)
    session.run(Console(file=output, width=80), stopped=Interrupted())
    assert output.getvalue().count("kvplan top") == 1
    for watch in session.watches:
        watch._thread.join(3.0)
        assert not watch._thread.is_alive()


class NvmlError(Exception):
    pass


def fake_driver(**replaced: object) -> SimpleNamespace:
    """pynvml of a machine with one GPU whose power nobody may read."""

    def refuse(_handle: object) -> None:
        raise NvmlError

    answers: dict[str, object] = {
        "NVMLError": NvmlError,
        "NVML_CLOCK_SM": 1,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda handle: "NVIDIA L4",
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=3, total=8),
        "nvmlDeviceGetClockInfo": lambda handle, kind: 1530,
        "nvmlDeviceGetMaxClockInfo": lambda handle, kind: 2040,
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=87),
        "nvmlDeviceGetPowerUsage": refuse,
    }
    return SimpleNamespace(**(answers | replaced))


def test_what_the_driver_tells_of_a_gpu() -> None:
    (state,) = GpuReader(fake_driver()).read()  # type: ignore[arg-type]
    assert (state.name, state.used_bytes, state.total_bytes, state.clock_mhz) == ("NVIDIA L4", 3, 8, 1530)
    assert (state.max_clock_mhz, state.busy_pct, state.power_watts) == (2040, 87, None)


def test_a_driver_that_does_not_start_is_no_gpu() -> None:
    def fail() -> None:
        raise NvmlError

    assert GpuReader(fake_driver(nvmlInit=fail)).read() == ()  # type: ignore[arg-type]
    assert GpuReader().read() == ()


@pytest.mark.parametrize(("url", "local"), [("localhost:8000", True), ("127.0.0.1:1", True), ("10.2.3.4:8000", False)])
def test_gpus_are_shown_for_servers_of_this_machine(url: str, local: bool) -> None:
    assert is_local(ServerAddress.parse(url)) is local


def test_watching_needs_no_heavy_package() -> None:
    code = (
        "import sys, kvplan.commands.top, kvplan.top.session, kvplan.top.snapshot; "
        "print(sorted({'torch', 'transformers', 'pandas', 'matplotlib', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
