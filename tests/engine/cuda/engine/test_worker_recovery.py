"""A sweep's worker on a GPU: memory that runs out in any phase is a row, and the next trial runs in the same process.

Only a context that is lost for good costs the process.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fake_gpu import MIB, FakeGpu, take_gpu
from tiny_configs import gpt2_config

from kvplan.sweeps.worker import trial as worker_trial
from kvplan.sweeps.worker.engine_host import EngineHost
from kvplan.sweeps.worker.protocol import TrialOrder, TrialResult
from kvplan.sweeps.worker.trial import run_trial
from kvplan.workload.requests import RequestSpec
from kvplan_engine.models.decoder import Decoder

MODEL = gpt2_config(n_embd=64, n_head=1, n_layer=1, vocab_size=300, n_positions=64)
SETTINGS = {"max_num_seqs": 2, "max_num_batched_tokens": 32, "max_model_len": 64, "block_size": 16}


class Sweep:
    """A worker's side of a sweep on ``gpu``."""

    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu
        self.host = EngineHost()
        self.said: list[Any] = []

    def trial(self, **settings: Any) -> TrialResult:
        engine = {"model": MODEL, "device": "cuda", "dtype": "float32", "load_format": "dummy", "seed": 0}
        requests = tuple(RequestSpec(index=number, num_prompt_tokens=7, num_output_tokens=5) for number in range(2))
        order = TrialOrder("t", engine, SETTINGS | {"gpu_memory_utilization": 0.9} | settings, requests, None, 0, 300)
        with self.gpu.memory():
            return run_trial(self.host, order, self.said.append)

    @property
    def reserve(self) -> dict[str, int]:
        """What was said last of what a pool would leave."""
        return [message["reserve"] for message in self.said if message["type"] == "reserve"][-1]


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch) -> Sweep:
    for name in ("reset_peak_memory_stats", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    for name in ("max_memory_allocated", "max_memory_reserved"):
        monkeypatch.setattr(torch.cuda, name, lambda: 5 * MIB)
    return Sweep(take_gpu(monkeypatch, FakeGpu(total_bytes=100 * MIB)))


def assert_served(result: TrialResult) -> None:
    assert result.row["status"] == "ok", result.row
    assert result.worker_usable
    assert result.row["completed"] == 2


@pytest.mark.slow
def test_memory_that_runs_out_is_a_row_and_the_sweep_goes_on(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    first = sweep.trial()
    assert_served(first)
    assert first.row["graph_bytes"] == 4 * sweep.gpu.graph_bytes  # two batch sizes, two numbers of tokens
    weights = sweep.host.engine.model

    none_left = sweep.trial(gpu_memory_utilization=0.15)
    assert (none_left.row["status"], none_left.row["oom_phase"]) == ("oom_kv_init", "kv_init")
    assert none_left.worker_usable

    sweep.gpu.refuses_graph = sweep.gpu.num_captures
    capture = sweep.trial()
    assert (capture.row["status"], capture.row["oom_phase"]) == ("oom_kv_init", "graph_capture")
    assert "capture steps as graphs" in capture.row["error"]
    assert capture.worker_usable
    sweep.gpu.refuses_graph = None

    with monkeypatch.context() as patch:
        patch.setattr(Decoder, "forward", _raise(torch.OutOfMemoryError("CUDA out of memory. Tried 2.00 MiB.")))
        running = sweep.trial(enforce_eager=True)
    assert (running.row["status"], running.row["oom_phase"]) == ("oom_runtime", "runtime")
    assert running.worker_usable

    assert_served(sweep.trial(enforce_eager=False))
    assert sweep.host.engine.model is weights, "the weights were loaded once"
    assert sweep.gpu.most_used_bytes <= sweep.gpu.total_bytes


def test_what_is_said_before_a_pool_is_what_it_leaves(sweep: Sweep) -> None:
    """Also where other processes have grown, and where the pool is refused; the weights stay from the first trial."""
    refused = sweep.trial(gpu_memory_utilization=0.15)
    assert refused.row["status"] == "oom_kv_init"
    assert sweep.reserve == {"total_bytes": 100 * MIB, "overhead_bytes": 16 * MIB, "graph_bytes": 0}
    weights = sweep.host.engine.model

    served = sweep.trial()
    assert_served(served)
    assert sweep.reserve["graph_bytes"] == served.row["graph_bytes"] == 4 * sweep.gpu.graph_bytes
    assert sweep.reserve["overhead_bytes"] == served.row["overhead_bytes"]
    again = sweep.trial()
    assert again.row["overhead_bytes"] == served.row["overhead_bytes"], "the workspace before is no overhead"
    assert again.row["num_blocks_total"] == served.row["num_blocks_total"]

    sweep.gpu.context_bytes += 30 * MIB  # a neighbour has grown
    fewer = sweep.trial()
    assert_served(fewer)
    assert sweep.reserve["overhead_bytes"] == fewer.row["overhead_bytes"] > 30 * MIB
    assert fewer.row["num_blocks_total"] < served.row["num_blocks_total"]
    assert sweep.gpu.most_used_bytes <= 0.9 * sweep.gpu.total_bytes, "the neighbour's memory counts as used"
    assert sweep.host.engine.model is weights


def test_weights_that_do_not_fit(sweep: Sweep) -> None:
    sweep.gpu.total_bytes = sweep.gpu.context_bytes
    result = sweep.trial()
    assert (result.row["status"], result.row["oom_phase"]) == ("oom_weights", "weights")
    assert result.worker_usable
    sweep.gpu.total_bytes = 100 * MIB
    assert_served(sweep.trial())


@pytest.mark.parametrize("says_so", [True, False], ids=["the error says so", "only a probe shows it"])
def test_a_lost_context_costs_the_process_and_not_the_row(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch, says_so: bool
) -> None:
    assert_served(sweep.trial())
    words = "an illegal memory access was encountered" if says_so else "out of memory"
    sweep.gpu.is_lost = not says_so
    monkeypatch.setattr(Decoder, "forward", _raise(RuntimeError(f"CUDA error: {words}\nCompile with `TORCH_USE_...`")))
    result = sweep.trial(enforce_eager=True)
    assert result.row["status"] == ("crash" if says_so else "oom_runtime")
    assert words in result.row["error"] and "\n" not in result.row["error"]
    assert not result.worker_usable


def test_a_fault_that_nobody_foresaw_is_raised(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_trial, "memory_figures", _raise(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        sweep.trial()


def _raise(error: Exception) -> Any:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail
