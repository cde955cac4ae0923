"""Several engines as one, without their processes: shares of the machine, settings for all or none, devices."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from kvplan_engine.device import process_memory
from kvplan_engine.errors import EngineError
from kvplan_engine.requests.sampling_params import SamplingParams
from kvplan_engine.server.engine_client.client import EngineClient
from kvplan_engine.server.engine_client.generation import Mailbox
from kvplan_engine.server.engine_client.in_flight import AdmissionQueue
from kvplan_engine.server.engine_client.process import MachineShare
from kvplan_engine.server.engine_client.replicas import Replicas
from kvplan_engine.server.engine_client.routing import EngineLoad, Route
from kvplan_engine.server.messages import Begun, Ended, ModelFacts, PoolFacts, Stats, Step
from kvplan_engine.server.metrics.state import EngineMetrics, ServerMetrics

CONFIG: dict[str, Any] = {
    "enable_prefix_caching": True,
    "kv_reservation": "paged",
    "kv_host_cache_bytes": 0,
    "kv_disk_cache_bytes": 0,
    "kv_disk_cache_dir": None,
    "block_size": 16,
    "max_num_seqs": 8,
}


class Commanded:
    """Stands for ``EngineClient.command`` of every engine: keeps their settings, and one engine refuses."""

    def __init__(self, replicas: Replicas, refusing: int | None) -> None:
        self.settings = [dict(CONFIG) for _ in replicas.engines]
        self._refusing = refusing
        for number, engine in enumerate(replicas.engines):
            engine.pool = PoolFacts(dict(CONFIG), 256, 8, 100, 16, 1024, {})
            engine.command = self._command_of(number)  # type: ignore[method-assign]

    def _command_of(self, number: int) -> Any:
        async def command(name: str, **changes: Any) -> None:
            assert name == "reconfigure"
            if number == self._refusing:
                raise EngineError("it does not fit.")
            self.settings[number].update(changes)

        return command


def reconfigured(refusing: int | None, **changes: Any) -> list[dict[str, Any]]:
    """The settings of three engines, after ``changes`` that engine ``refusing`` refuses."""

    async def change() -> list[dict[str, Any]]:
        replicas = Replicas(ServerMetrics(3), AdmissionQueue())
        replicas._shares = [MachineShare({}, index, 3) for index in range(3)]
        replicas._open.set()
        engines = Commanded(replicas, refusing)
        try:
            await replicas.reconfigure(changes, 1.0)
        except EngineError as problem:
            assert problem.message == "it does not fit."
        assert replicas._open.is_set(), "nobody may come in any more"
        return engines.settings

    return asyncio.run(change())


@pytest.mark.parametrize("refusing", [0, 1, 2])
def test_what_one_engine_refuses_changes_none(refusing: int) -> None:
    assert reconfigured(refusing, block_size=32, max_num_seqs=4) == [CONFIG] * 3


def test_what_all_take_changes_all() -> None:
    assert reconfigured(None, block_size=32) == [CONFIG | {"block_size": 32}] * 3
    found = reconfigured(None, kv_disk_cache_dir="/kv", kv_disk_cache_bytes=1)
    assert [each["kv_disk_cache_dir"] for each in found] == [f"/kv/engine-{number}" for number in range(3)]


def test_loads_count_what_is_in_flight_and_end_at_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that begin, end, and leave before and after they began, of one and of several samples."""

    async def loads() -> tuple[EngineLoad, EngineLoad, int]:
        queue = AdmissionQueue()
        client = EngineClient(EngineMetrics(), queue, asyncio.Event())
        client.pool = PoolFacts(dict(CONFIG), 256, 8, 100, 16, 1024, {})
        monkeypatch.setattr(client, "_send", lambda message: None)
        requests = [
            client.submit([1] * 20, SamplingParams(n=n), 0.0, Mailbox(), 0, None, Route(0, num_new_tokens=10 * n))
            for n in (1, 2, 3, 1)
        ]
        first = [request.first for request in requests]
        begun = [Begun(first[0], 1.0, 0), Begun(first[1], 1.0, 0)]
        client._take(Step(1.0, [first[0]], [5], Stats(), begun=begun, ended=[Ended(first[0], "stop")]), is_late=False)
        between = client.load()
        for request in requests:
            client.abort(request)
        return between, client.load(), queue.num_requests + queue.num_tokens

    between, after, queued = asyncio.run(loads())
    assert between == EngineLoad(2 + 3 + 1, 3 + 1, 30 + 10, num_seats=8, free_tokens=0)
    assert after == EngineLoad(0, 0, 0, num_seats=8, free_tokens=0)
    assert queued == 0


def test_an_engine_that_is_alone_gets_what_there_is() -> None:
    share = MachineShare({"device": "cpu"})
    assert (share.environment({}), share.cpu_bytes()) == ({}, None)
    assert share.settings({"kv_disk_cache_dir": "/kv"}) == {"kv_disk_cache_dir": "/kv"}


def test_threads_are_divided() -> None:
    cores = len(os.sched_getaffinity(0))
    share = MachineShare({"device": "cpu"}, 1, 2)
    assert share.environment({}) == {"OMP_NUM_THREADS": str(max(1, cores // 2))}
    assert share.environment({"OMP_NUM_THREADS": "7"}) == {}, "what the user chose"
    assert MachineShare({"device": "cpu"}, 0, 4 * cores).environment({}) == {"OMP_NUM_THREADS": "1"}


def test_memory_that_nobody_chose_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_memory, "available_memory_bytes", lambda: 12 * 1024**3)
    sizes = [MachineShare({"tensor_parallel_size": ranks}, 0, 2).cpu_bytes() for ranks in (1, 2)]
    assert sizes == [3 * 1024**3, 3 * 1024**3 // 2]
    monkeypatch.setattr(process_memory, "available_memory_bytes", lambda: 64 * 1024**3)
    assert MachineShare({}, 0, 2).cpu_bytes() == 4 * 1024**3


@pytest.mark.parametrize(
    ("settings", "visible", "expected"),
    [
        ({}, None, ["0", "1", "2"]),
        ({"device": "cuda"}, "5,3,4", ["5", "3", "4"]),
        ({}, "GPU-a,GPU-b", ["GPU-a", "GPU-b", ""]),
        ({"tensor_parallel_size": 2}, None, ["0,1", "2,3", "4,5"]),
        ({"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, None, ["0,1,2,3", "4,5,6,7", "8,9,10,11"]),
    ],
)
def test_every_engine_has_gpus_of_its_own(settings: dict[str, Any], visible: str | None, expected: list[str]) -> None:
    """The third finds none where two are visible; see below."""
    inherited = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = [MachineShare(settings, index, 3).environment(inherited) for index in range(3)]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in found] == expected


def test_an_engine_without_a_gpu_beside_one_that_has_one_is_refused() -> None:
    async def check(*devices: str) -> None:
        replicas = Replicas(ServerMetrics(len(devices)), AdmissionQueue())
        for engine, device in zip(replicas.engines, devices, strict=True):
            engine.model = model(device)
        replicas._check_devices()

    asyncio.run(check("cpu", "cpu"))
    asyncio.run(check("cuda:0", "cuda:0"))
    with pytest.raises(EngineError, match=r"^engine 1 of 2 finds no GPU of its own\.$"):
        asyncio.run(check("cuda:0", "cpu"))


def model(device: str) -> Any:
    return ModelFacts("m", 1, "float32", False, 1, device, 1)
