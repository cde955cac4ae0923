"""All tests. When they run on several processes (``-n``), a file's tests stay together, since they share fixtures."""

from __future__ import annotations

import os

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:  # before torch is loaded
    # threads that wait for others give their core to the other processes, instead of spinning on it
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests without a group of their own are their file's: what a module loads or compiles, one process makes."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.name))
