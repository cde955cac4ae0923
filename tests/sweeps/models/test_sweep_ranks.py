"""A trial over two ranks: its row says so, and a rank that is killed in the middle of it is a row of its own status."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from sweep_helpers import tiny_plan

from kvplan.runs.trials import TrialSettings
from kvplan.sweeps.worker.engine_host import EngineHost
from kvplan.sweeps.worker.protocol import TrialOrder
from kvplan.sweeps.worker.trial import run_trial

pytestmark = pytest.mark.xdist_group("ranks")

SETTINGS = TrialSettings(
    gpu_memory_utilization=0.9,
    max_num_seqs=4,
    block_size=16,
    max_model_len=64,
    max_num_batched_tokens=64,
    dtype="float32",
    tensor_parallel_size=2,
)


def test_a_rank_killed_while_a_trial_is_served_is_a_row_of_its_own_status(tmp_path: Path) -> None:
    plan = tiny_plan(tmp_path, num_prompts=6, output_len="12", seed=5)
    model = str(tmp_path / "tiny-model" / "config.json")
    engine = {"model": model, "device": "cpu", "device_memory": 1 << 28, "load_format": "dummy", "seed": 5}
    order = TrialOrder("first", engine, SETTINGS.engine_arguments(), plan.predictor.requests, 3, 5, 128)
    host = EngineHost(is_limited=True)  # this process keeps its memory limit
    whole = run_trial(host, order, lambda *_, **__: None)
    assert whole.row["status"] == "ok"
    predicted = plan.predictor.own_memory(SETTINGS)
    assert whole.row["weights_bytes"] == predicted.weight_bytes
    assert whole.row["block_bytes"] == predicted.block_bytes

    assert host.engine is not None and host.engine.ranks is not None
    (rank,) = host.engine.ranks.pids

    def kill_when_serving(message: Any) -> None:
        if message["type"] == "stage" and message["stage"] == "serving":
            os.kill(rank, signal.SIGKILL)

    result = run_trial(host, order, kill_when_serving)
    assert result.row["status"] == "rank_died"
    assert result.row["error"] == "Rank 1 of 2 was ended by SIGKILL."
    assert not result.worker_usable, "the next trial needs a worker of its own"
    assert not Path(f"/proc/{rank}").exists()
