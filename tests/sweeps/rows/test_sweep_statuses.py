"""Every way in which the engine can run out of memory is a status that a row can have."""

from __future__ import annotations

import pytest

from kvplan.runs.statuses import OUT_OF_MEMORY_STATUSES
from kvplan_engine.device.allocation import allocating
from kvplan_engine.errors import ContextTooLong, OutOfDeviceMemory


@pytest.mark.parametrize("phase", ["weights", "kv_init", "kv_host", "graph_capture", "runtime"])
def test_the_engines_phases_are_known_statuses(phase: str) -> None:
    with pytest.raises(OutOfDeviceMemory) as raised, allocating(phase, 1 << 20):
        raise MemoryError
    assert raised.value.phase == phase
    assert raised.value.status in OUT_OF_MEMORY_STATUSES


def test_a_rejected_context_is_a_known_status() -> None:
    assert ContextTooLong("too long", requested_tokens=2, largest_tokens=1).status in OUT_OF_MEMORY_STATUSES
