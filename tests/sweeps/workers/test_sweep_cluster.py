"""``kvplan sweep --ray`` up to the edge of Ray: places, actors that are lost, nodes of another kind.

``make check-cluster`` runs the same on a real cluster.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_ray import FakeRay, scheduling
from sweep_helpers import FAKE_WORKER, Notes, tiny_plan, write_tiny_model

from kvplan.errors import KvplanError, UsageError
from kvplan.machine.visible_gpu import first_visible_gpu
from kvplan.sweeps.cluster import connection, node_worker
from kvplan.sweeps.cluster.connection import Cluster, connected
from kvplan.sweeps.cluster.places import Node, kind_to_use, nodes_from, places_in
from kvplan.sweeps.options import SweepOptions
from kvplan.sweeps.plan import make_plan
from kvplan.sweeps.session import SweepOutcome, run_new_sweep
from kvplan.sweeps.worker.client import Worker

AXES = {"max_num_seqs": "1..8*2", "gpu_memory_utilization": "0.05,0.9"}


def listed(number: int, **resources: float) -> dict[str, Any]:
    return {"NodeID": f"{number:06d}abc", "Alive": True, "NodeManagerHostname": f"n{number}", "Resources": resources}


CPUS = [listed(1, CPU=4.0), listed(2, CPU=4.0)]


@pytest.fixture(autouse=True)
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in scheduling().items():
        monkeypatch.setitem(sys.modules, name, module)
    start = Worker.start
    monkeypatch.setattr(Worker, "start", lambda log_path: start(log_path, FAKE_WORKER))
    monkeypatch.setattr(connection, "_NODES_EVERY_SECONDS", 0.05)
    monkeypatch.setattr(connection, "_POLL_SECONDS", 0.05)


def sweep_over(ray: FakeRay, tmp_path: Path, **options: Any) -> tuple[SweepOutcome, Notes]:
    cluster, notes = Cluster(ray, None), Notes()
    plan = tiny_plan(tmp_path, AXES, **options)
    elsewhere = cluster.device_for(plan.options)
    plan = make_plan(plan.options, elsewhere=elsewhere)
    outcome = run_new_sweep(plan, tmp_path / "run", notes, command="test", pool_of=cluster.pool_of)
    return outcome, notes


def test_a_sweep_over_two_nodes_outlives_its_actors(tmp_path: Path) -> None:
    # the first actor only looks at the device; of the workers two die in a trial, and are replaced
    ray = FakeRay(CPUS, losing=[None, 1, 0])
    outcome, notes = sweep_over(ray, tmp_path)
    assert [row["status"] for row in outcome.rows] == ["ok"] * 4 + ["oom_weights"] * 4
    assert sum(row["num_lost_workers"] or 0 for row in outcome.rows) >= 1
    assert any("was lost: it ended (ActorDiedError)" in line for line in notes.lines)
    assert all(row["node"] for row in outcome.rows)
    assert {actor.options["num_cpus"] for actor in ray.actors} == {4.0}, "a node that times CPUs is one worker's"
    assert {actor.options["scheduling_strategy"].node_id for actor in ray.actors[1:3]} == {
        node["NodeID"] for node in CPUS
    }
    assert all(actor.is_dead for actor in ray.actors)


def test_a_trial_in_which_kvplan_fails_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, failures = node_worker.NodeWorker.run, [ImportError("no more room"), ImportError("still none")]

    def failing(self: node_worker.NodeWorker, *arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return run(self, *arguments)

    monkeypatch.setattr(node_worker.NodeWorker, "run", failing)
    outcome, notes = sweep_over(FakeRay(CPUS), tmp_path)
    assert [row["status"] for row in outcome.rows] == ["ok"] * 4 + ["oom_weights"] * 4
    assert any(
        "was lost: it could not go on: kvplan failed there: ImportError: still none" in line for line in notes.lines
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": "0.0.1"}, "it has kvplan 0.0.1, this is "),
        ({"name": "Another CPU"}, "it has a Another CPU, and the rows are of a "),
        ({"num_cores": 999}, "it has 999 cores, and the rows are of "),
        ({"problem": "There are no weights at 'x'."}, "There are no weights at 'x'."),
    ],
)
def test_a_node_whose_rows_would_not_be_comparable_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], reason: str
) -> None:
    class Odd(node_worker.NodeWorker):
        """The second worker is on an odd node; the first actor only looks."""

        made = 0

        def __init__(self) -> None:
            super().__init__()
            Odd.made += 1
            self.is_odd = Odd.made == 3

        def look(self, *arguments: Any) -> node_worker.NodeReport:
            found = super().look(*arguments)
            if not self.is_odd or found.device is None:
                return found
            parts = {name: value for name, value in change.items() if name in ("name", "num_cores")}
            rest = {name: value for name, value in change.items() if name not in parts}
            device = None if "problem" in change else replace(found.device, **parts)
            return replace(found, device=device, **rest)

    monkeypatch.setattr(connection, "NodeWorker", Odd)
    outcome, notes = sweep_over(FakeRay(CPUS), tmp_path)
    assert len(outcome.rows) == 8
    assert len(notes.lines) == 1
    assert reason in notes.lines[0]


def test_the_device_of_the_plan_is_that_of_the_nodes() -> None:
    options = SweepOptions(model="gpt2", load_format="dummy", device_memory="1GiB")
    cluster = Cluster(FakeRay(CPUS), None)
    assert cluster.device_for(options).memory_bytes == 1 << 30
    assert cluster.device_for(replace(options, load_format="none", gpu="l4")).name == "NVIDIA L4"
    with pytest.raises(KvplanError, match=r"No node of the cluster can run this sweep\. .*exceeds the"):
        cluster.device_for(replace(options, device_memory="900TiB"))
    with pytest.raises(KvplanError, match="It has no CPU or GPU to spare"):
        Cluster(FakeRay([listed(1, memory=1.0)]), None).device_for(options)
    with pytest.raises(UsageError, match="--ray cannot be used with --engine vllm"):
        cluster.device_for(SweepOptions(model="gpt2", engine="vllm"))


def test_places() -> None:
    gpus = nodes_from(
        [
            listed(1, CPU=16.0, GPU=4.0, **{"accelerator_type:L4": 1.0}),
            listed(2, CPU=2.0, GPU=8.0, **{"accelerator_type:H100": 1.0}),
            listed(3, CPU=8.0),
            listed(4, CPU=8.0) | {"Alive": False},
        ]
    )
    assert [node.name for node in gpus] == ["n1", "n2", "n3"]
    on_l4 = places_in(gpus, "L4", is_timed=True)
    assert [(place.number, place.num_cpus, place.num_gpus, place.kind) for place in on_l4] == [
        (number, 1.0, 1, "L4") for number in (1, 2, 3, 4)
    ]
    assert {place.num_cpus for place in places_in(gpus, "H100", is_timed=True)} == {0.25}
    assert [(place.node.name, place.num_cpus) for place in places_in(gpus, None, is_timed=True)] == [
        ("n1", 16.0), ("n2", 2.0), ("n3", 8.0),
    ]  # fmt: skip
    assert len(places_in(gpus, None, is_timed=False)) == 26
    assert len({place.name for place in places_in(gpus, None, is_timed=False)}) == 26


def test_kinds_of_gpus_are_never_mixed() -> None:
    l4 = Node("a", "a", 8.0, 1, ("L4",))
    h100 = Node("b", "b", 8.0, 1, ("H100",))
    plain = Node("c", "c", 8.0, 0, ())
    options = SweepOptions(model="gpt2")
    assert kind_to_use([plain], options, None) is None
    assert kind_to_use([plain, l4], options, None) == "L4"
    assert kind_to_use([l4, h100], options, "H100") == "H100"
    assert kind_to_use([l4, h100], replace(options, device="cpu"), None) is None
    assert kind_to_use([Node("d", "d", 8.0, 2, ())], options, None) == "GPU"
    with pytest.raises(UsageError, match="several kinds of GPUs: H100, L4"):
        kind_to_use([l4, h100], options, None)
    with pytest.raises(KvplanError, match="The cluster has no A100"):
        kind_to_use([l4], options, "A100")
    with pytest.raises(KvplanError, match="The cluster has no GPUs"):
        kind_to_use([plain], replace(options, device="cuda"), None)
    with pytest.raises(UsageError, match="this sweep uses none"):
        kind_to_use([l4], replace(options, device="cpu"), "L4")


def test_a_cluster_that_is_not_there_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said_by: Callable[..., str]
) -> None:
    monkeypatch.setattr(connection, "_address_here", lambda: "127.0.0.1:1")
    with pytest.raises(KvplanError, match=r"Nothing answers at 127\.0\.0\.1:1"), connected("127.0.0.1:1"):
        pass
    for address in ("ray://here:10001", "nowhere", "here:port"):
        with pytest.raises(UsageError), connected(address):
            pass
    with pytest.raises(KvplanError, match=r"Nothing answers at 127\.0\.0\.1:1") as ended, connected("auto"):
        pass
    assert "ray start --head" in str(ended.value.hint)
    model = str(write_tiny_model(tmp_path / "model"))
    assert "--accelerator-type is for --ray" in said_by("sweep", "--model", model, "--accelerator-type", "L4")
    assert "takes each trial from the results of those before" in said_by(
        "sweep", "--model", model, "--ray", "auto", "--boundary", "max_model_len"
    )


def test_without_the_extra_the_way_to_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said_by: Callable[..., str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # type: ignore[arg-type]
    model = str(write_tiny_model(tmp_path / "model"))
    error = said_by("sweep", "--model", model, "--ray", "auto")
    assert "`kvplan sweep --ray` needs a package that is not installed: ray" in error
    assert "pip install 'kvplan[cluster]'" in error


@pytest.mark.parametrize(
    ("visible", "handle"), [(None, 0), ("3,1", 3), ("GPU-ab", "GPU-ab"), ("", None), ("-1", None), ("MIG-1", "MIG-1")]
)
def test_a_worker_looks_at_the_gpu_that_it_was_given(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, handle: object
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    driver: Any = type("Driver", (), {})()
    driver.nvmlDeviceGetHandleByIndex = driver.nvmlDeviceGetHandleByUUID = lambda which: which
    assert first_visible_gpu(driver) == handle
