"""The engine's process, as the operating system sees it: starting it, and how it ended."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from kvplan_engine.device.process_memory import default_cpu_bytes
from kvplan_engine.errors import describe_exit


def start_process(theirs: socket.socket, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """The engine's process, which talks through ``theirs``. What it prints goes to the standard error.

    environment: of variables, those that it does not inherit.
    """
    # A session of its own: Ctrl-C in the terminal reaches this process alone, which then drains.
    return subprocess.Popen(
        [sys.executable, "-m", "kvplan_engine.server.engine_process", str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno(),
        start_new_session=True,
        env={**os.environ, **environment},
    )


def describe_ending(code: int | None) -> str:
    """What follows "The engine process". code: the process's return code, None while it runs."""
    if code is None:
        return "closed its connection"
    return describe_exit(code)


# What each of several engines gets of the machine: threads, GPUs, memory, a directory.
#
# An engine is a device of its own, so ``device_memory`` is that of each. What nobody chose is divided.


class MachineShare:
    """The share of engine ``index`` of ``count`` with these settings. An engine that is alone gets what there is."""

    def __init__(self, settings: Mapping[str, Any], index: int = 0, count: int = 1) -> None:
        self._index, self._count = index, count
        self._device = settings.get("device", "auto")
        sizes = (settings.get(name) or 1 for name in ("tensor_parallel_size", "pipeline_parallel_size"))
        self._num_devices = prod(sizes)  # a rank on each

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """What is added to ``inherited``: as many threads as fall to each engine, and GPUs of its own."""
        if self._count == 1:
            return {}
        added = {}
        if "OMP_NUM_THREADS" not in inherited:
            added["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // self._count))
        if self._device != "cpu":
            first, number = self._index * self._num_devices, self._num_devices
            visible = inherited.get("CUDA_VISIBLE_DEVICES")
            devices = [str(each) for each in range(first + number)] if visible is None else visible.split(",")
            added["CUDA_VISIBLE_DEVICES"] = ",".join(devices[first : first + number])
        return added

    def settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """``given`` as they are for this engine: one directory for the KV of each."""
        directory = given.get("kv_disk_cache_dir")
        if self._count == 1 or directory is None:
            return dict(given)
        return {**given, "kv_disk_cache_dir": str(Path(directory) / f"engine-{self._index}")}

    def cpu_bytes(self) -> int | None:
        """Bytes of each device where that is the CPU and nobody chose it. None: the engine finds it."""
        return None if self._count == 1 else default_cpu_bytes(self._count * self._num_devices)
