"""The other ranks when the first one is gone: they end by themselves, and leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_models import Checkpoint

from kvplan_engine.config import EngineConfig
from kvplan_engine.description.division import Rank
from kvplan_engine.execution.ranks.group import RankGroup

pytestmark = pytest.mark.xdist_group("ranks")


def test_the_others_end_and_remove_where_they_met(checkpoints: dict[str, Checkpoint]) -> None:
    path = str(checkpoints["gpt2"].path)
    config = EngineConfig(
        model=path, dtype="float32", device="cpu", device_memory=1 << 28, max_model_len=64, tensor_parallel_size=2
    )
    group = RankGroup(Rank.all_of(2, 1))
    try:
        collectives = group.load(config, path, on_gpu=False)
        group.loaded()
        meeting = Path(group._meeting)
        assert meeting.exists()
        (connection,), (process,) = group._connections, group._processes
        connection.close()  # as the system does for a process that was killed
        assert process.wait(60) == 0
        assert not meeting.parent.exists()
        del collectives
    finally:
        group.close()
