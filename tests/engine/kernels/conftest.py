"""Fixtures of the kernels' tests."""

from __future__ import annotations

import pytest
from kernel_builds import BUILDS

from kvplan_engine.kernels.cpu.library import CpuKernels, load_kernels


@pytest.fixture(scope="module", params=BUILDS, ids=lambda variant: variant.name)
def kernels(request: pytest.FixtureRequest) -> CpuKernels:
    return load_kernels(request.param)
