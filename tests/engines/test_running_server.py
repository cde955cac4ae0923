"""A server that runs already: what it tells, what is refused, and what is left empty. Served for real: tests/load."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fake_server import FakeServer, running

from kvplan.catalog.models import resolve_model
from kvplan.engines.registry import swept_engine
from kvplan.engines.running import RunningServer
from kvplan.errors import KvplanError, UsageError
from kvplan.sweeps.options import SweepOptions
from kvplan.workload.lengths import Lengths
from kvplan.workload.requests import WorkloadSpec, generate_requests

# As vLLM 0.32 has them on its page.
PAGE = """
vllm:num_requests_running{engine="0"} 0.0
vllm:cache_config_info{block_size="128",gpu_memory_utilization="0.9",kv_cache_size_tokens="8064",num_gpu_blocks="63"} 1
"""


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


def test_another_machine_is_not_this_one() -> None:
    device = RunningServer("http://10.1.2.3:8000").device(None)
    assert (device.name, device.memory_bytes) == ("that of 10.1.2.3", 0)


def test_the_key_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(FakeServer(key="secret")) as server:
        with pytest.raises(KvplanError, match="refuses the API key"):
            _ = RunningServer(server.url).notices
        monkeypatch.setenv("OPENAI_API_KEY", "secret")
        assert RunningServer(server.url).notices
