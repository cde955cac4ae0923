"""Sums over the GPUs of this machine, chosen as the ranks of an engine choose them at their start: a process for each.

``python -m kvplan_engine.doctor.ranks FOLDER INDEX COUNT DTYPE KIND`` is one of them; KIND is cuda or emulated.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

import torch

from kvplan_engine.description.division import Rank
from kvplan_engine.device.collectives import Collectives, open_store
from kvplan_engine.device.custom_all_reduce import choose_all_reduce
from kvplan_engine.errors import describe_exit
from kvplan_engine.kernels.cuda.launching.driver import current_runtime
from kvplan_engine.kernels.cuda.launching.emulation import EmulatedRuntime

PATIENCE_SECONDS = 90.0
"""The most that the whole trial may take: processes that import torch, NCCL's start, comparing and timing."""


def choose_over_gpus(num_ranks: int, dtype: str, kind: str = "cuda") -> str:
    """Describe what so many GPUs choose, or why that is not known. kind: cuda, or emulated on the CPU."""
    with tempfile.TemporaryDirectory(prefix="kvplan-ranks-") as folder:
        command = [sys.executable, "-m", __spec__.name, folder]
        paths = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        processes = [
            subprocess.Popen(
                [*command, str(index), str(num_ranks), dtype, kind],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=paths,
                text=True,
            )
            for index in range(num_ranks)
        ]
        try:
            return _first_answer(processes)
        finally:
            for process in processes:
                process.kill()
                with process:  # waits for it, and closes its pipe
                    pass


def _first_answer(processes: list[subprocess.Popen[str]]) -> str:
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        codes = [process.poll() for process in processes]
        for index, code in enumerate(codes):
            if code:
                return f"not known, rank {index} {describe_exit(code)}"
        if not any(code is None for code in codes):
            said = processes[0].stdout
            assert said is not None
            return said.read().strip().rpartition("\n")[2]  # NCCL_DEBUG writes before it
        time.sleep(0.02)
    return f"not known, the ranks took more than {PATIENCE_SECONDS:.0f} s"


def main() -> None:
    """Choose with the others, and print the first one's words."""
    folder, index, count, dtype, kind = sys.argv[1:]
    rank, on_gpu = Rank(int(index), int(count)), kind == "cuda"
    if on_gpu:
        torch.cuda.set_device(rank.index)
    collectives = Collectives(rank, open_store(os.path.join(folder, "meeting"), rank.count), on_gpu=on_gpu)
    runtime = current_runtime() if on_gpu else EmulatedRuntime()
    choice = choose_all_reduce(runtime, collectives, getattr(torch, dtype))
    if not rank.index:
        print(choice.why, flush=True)
    os._exit(0)  # not waiting for threads of the collectives


if __name__ == "__main__":
    main()
