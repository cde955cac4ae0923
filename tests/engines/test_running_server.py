"""A server that runs already: what it tells, what is refused, and what is left empty. Served for real: tests/load."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fake_server import FakeServer, running
from hostile_server import document, hostile

from kvplan.catalog.models import resolve_model
from kvplan.cli import main
from kvplan.engines.registry import swept_engine
from kvplan.engines.running import RunningServer
from kvplan.errors import KvplanError, UsageError
from kvplan.machine.host import cpu_name
from kvplan.runs.columns import Row
from kvplan.runs.trials import NEEDED_SETTINGS
from kvplan.sweeps.options import SweepOptions
from kvplan.workload.lengths import Lengths
from kvplan.workload.requests import WorkloadSpec, generate_requests

# As vLLM 0.32 has them on its page.
PAGE = """
vllm:num_requests_running{engine="0"} 0.0
vllm:cache_config_info{block_size="128",gpu_memory_utilization="0.9",kv_cache_size_tokens="8064",num_gpu_blocks="63"} 1
"""
KVPLAN_PAGE = 'vllm:num_requests_running{engine="0"} 0.0\nkvplan:num_seats{engine="0"} 4\n'


@pytest.fixture(scope="module")
def silent() -> Iterator[FakeServer]:
    with running(FakeServer()) as server:
        yield server


@pytest.fixture(scope="module")
def telling() -> Iterator[FakeServer]:
    with running(FakeServer(metrics=lambda: PAGE)) as server:
        yield server


def test_the_url_makes_the_engine(silent: FakeServer) -> None:
    engine = swept_engine(SweepOptions(model="gpt2", engine="openai", url=silent.url))
    assert isinstance(engine, RunningServer)
    assert engine.name == "openai"


@pytest.mark.parametrize("engine", ["llamacpp", "sglang", "trtllm"])
def test_only_vllm_lowers_settings_while_it_runs(engine: str) -> None:
    with pytest.raises(UsageError, match=f"--reuse-server cannot be used with {engine}"):
        swept_engine(SweepOptions(model="gpt2", engine=engine, reuse_server=True))
    with pytest.raises(UsageError, match=f"--preload cannot be used with {engine}"):
        swept_engine(SweepOptions(model="gpt2", engine=engine, preload=True))


def test_it_says_what_the_server_tells(telling: FakeServer) -> None:
    serving, unpredicted = RunningServer(telling.url).notices
    assert serving == (
        f"{telling.url} serves already, vllm: max_model_len 4,096, block_size 128, gpu_memory_utilization 0.9; "
        "8,064 KV tokens"
    )
    assert unpredicted == "nothing is predicted of it"


def test_engines_behind_one_address_are_said() -> None:
    both = PAGE + PAGE.replace("{", '{engine="1",', 2).replace('engine="1",engine="0"', 'engine="1"')
    with running(FakeServer(metrics=lambda: both)) as server:
        said = RunningServer(server.url).notices[0]
    assert "vllm x 2 data-parallel: " in said and said.endswith("16,128 KV tokens")


def test_a_server_may_tell_nothing(silent: FakeServer) -> None:
    assert RunningServer(silent.url).notices[0].endswith("an engine without known metrics: it tells no settings")


def test_plans_are_made_with_what_it_tells(telling: FakeServer) -> None:
    server = RunningServer(telling.url)
    model = server.model(resolve_model("gpt2"), server.device(None))
    requests = generate_requests(WorkloadSpec(2, Lengths(16, 16), Lengths(8, 8)))
    base = model.base_settings(requests, None)
    assert (base.block_size, base.max_model_len, base.gpu_memory_utilization) == (128, 4096, 0.9)
    pool = model.memory(base)
    assert (pool.outcome, pool.kv_cache_tokens, pool.num_blocks) == ("ok", 8064, 63)
    assert model.default_axes(base) == {}


def test_its_settings_cannot_vary(silent: FakeServer) -> None:
    server = RunningServer(silent.url)
    server.refuse({})
    with pytest.raises(UsageError, match="max_num_seqs of a running server cannot be swept"):
        server.refuse({"max_num_seqs": (1, 2)})


def test_nobody_answers() -> None:
    with pytest.raises(KvplanError, match="No server listens"):
        _ = RunningServer("http://127.0.0.1:9").notices


def test_the_device_is_what_the_server_tells_and_never_this_machines(silent: FakeServer) -> None:
    device = RunningServer(silent.url).device(None)
    assert (device.name, device.memory_bytes) == (f"server at {silent.url}", 0)


def test_the_key_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(FakeServer(key="secret")) as server:
        with pytest.raises(KvplanError, match="refuses the API key"):
            _ = RunningServer(server.url).notices
        monkeypatch.setenv("OPENAI_API_KEY", "secret")
        assert RunningServer(server.url).notices


def _swept(url: str, out: Path) -> tuple[Row, Mapping[str, Any], str]:
    """A sweep of the server as a user does it: its row, its summary, its page."""
    words = ("--num-prompts", "3", "--max-concurrency", "2", "--input-len", "8", "--output-len", "3", "--no-rerun")
    assert main(["sweep", "--engine", "openai", "--url", url, "--model", "gpt2", *words, "--out", str(out)]) == 0
    row = json.loads((out / "trials.jsonl").read_text().splitlines()[0])["row"]
    return row, json.loads((out / "summary.json").read_text()), (out / "report.html").read_text()


def test_a_row_holds_what_the_server_tells_and_nothing_else(silent: FakeServer, tmp_path: Path) -> None:
    row, summary, page = _swept(silent.url, tmp_path / "run")
    assert (row["status"], row["completed"], row["url"]) == ("ok", 3, silent.url)
    for name in (
        "engine", "engine_version", "device", "device_name", "device_memory_bytes", "node", "dtype", "kv_cache_dtype",
        "load_format", "model_impl", "quantization", "tensor_parallel_size", *NEEDED_SETTINGS,
        "weights_bytes_predicted", "block_bytes_predicted", "num_blocks_predicted", "predicted_status",
    ):  # fmt: skip
        assert row.get(name) is None, name
    assert all(best["commands"] == {} and best["settings"] == {} for best in summary["best"])
    assert f"at {silent.url}" in page and cpu_name() not in page
    assert main(["report", str(tmp_path / "run"), "--format", "md"]) == 0


def test_what_kvplans_server_tells_is_in_the_row(tmp_path: Path) -> None:
    info = {
        "version": "1.2.3",
        "model": {"device": "cpu", "dtype": "float32"},
        "max_model_len": 512,
        "config": {"max_num_seqs": 4, "max_num_batched_tokens": 256},
        "memory": {"device_total_bytes": 734_003_200},
    }
    answers = {"/metrics": document(KVPLAN_PAGE), "/server_info?config_format=json": document(info)}
    with hostile(answers, after=100) as server:
        row, _, _ = _swept(server.url, tmp_path / "run")
    assert (row["engine"], row["engine_version"], row["device"], row["dtype"]) == ("kvplan", "1.2.3", "cpu", "float32")
    assert (row["device_memory_bytes"], row["device_name"]) == (734_003_200, None)
    assert (row["max_num_seqs"], row["max_model_len"], row["max_num_batched_tokens"]) == (4, 512, 256)


def test_a_sweep_of_a_server_is_continued_whatever_machine_an_older_version_named(
    silent: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    _swept(silent.url, out)
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["device"]["name"] = "another CPU"
    (out / "manifest.json").write_text(json.dumps(manifest))
    assert main(["sweep", "--resume", str(out), "--url", silent.url]) == 0
    capsys.readouterr()
