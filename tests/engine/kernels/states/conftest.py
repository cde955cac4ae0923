"""Fixtures of the tests of layers with a state."""

from __future__ import annotations

import pytest

from kvplan_engine.kernels.cpu.library import CpuKernels
from kvplan_engine.kernels.cpu.states import CpuStates


@pytest.fixture(scope="module")
def kernels(kernels: CpuKernels) -> CpuStates:
    return CpuStates(kernels)
