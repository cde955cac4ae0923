"""An engine in a process of its own Python, on the side of compare.py."""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from protocol import Order

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# Settings that each project recommends for its CPU backend.
ENVIRONMENT = {
    "vllm": {"OMP_NUM_THREADS": "{threads}"},
    "vllm-eager": {"OMP_NUM_THREADS": "{threads}", "VLLM_EAGER": "1"},
}
PEERS = ("vllm", "vllm-eager", "openvino", "transformers", "llamacpp", "kvplan-bfloat16", "kvplan-int8")
SCRIPTS = {"vllm-eager": "engine_vllm.py"} | dict.fromkeys(("kvplan-bfloat16", "kvplan-int8"), "engine_kvplan.py")


@dataclass(frozen=True, slots=True)
class Run:
    """One timed run. noise: share of the machine's processor time that other processes took meanwhile."""

    seconds: float
    noise: float
    crc: str


class EngineFailed(Exception):
    """An engine ended or answered something else than a run."""


class EngineProcess:
    """An engine in its own Python, spoken to in JSON lines."""

    def __init__(self, name: str, python: str, order: Order, preload: str | None, log: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'engine'}" if name.startswith("kvplan") else ""}
        for key, value in ENVIRONMENT.get(name, {}).items():
            environment[key] = value.format(threads=order.num_threads)
        if preload:
            environment["LD_PRELOAD"] = preload
        script = HERE / SCRIPTS.get(name, f"engine_{name}.py")
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [python, str(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
            )
        self.loaded = self._ask(asdict(order))

    def run(self, name: str) -> Run:
        busy, own, started = _busy_seconds(), self._cpu_seconds(), time.perf_counter()
        answer = self._ask({"scenario": name})
        elapsed = time.perf_counter() - started
        others = _busy_seconds() - busy - (self._cpu_seconds() - own)
        if not answer["lengths_ok"]:
            raise EngineFailed("gave answers of another length than asked for")
        return Run(answer["seconds"], max(0.0, others / (elapsed * (os.cpu_count() or 1))), answer["crc"])

    def close(self) -> None:
        self._process.stdin.close()  # type: ignore[union-attr]
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()  # type: ignore[union-attr]

    def _ask(self, document: dict[str, Any]) -> dict[str, Any]:
        try:
            self._process.stdin.write(json.dumps(document) + "\n")  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]
            line = self._process.stdout.readline()  # type: ignore[union-attr]
        except BrokenPipeError:
            line = ""
        if not line:
            last = self._log.read_text(errors="replace").strip().splitlines()[-1:] or ["no message"]
            raise EngineFailed(f"ended: {last[0][:160]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _cpu_seconds(self) -> float:
        """User and system time of the process with its threads and ended children."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(int(value) for value in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def _busy_seconds() -> float:
    fields = [int(value) for value in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, _idle, _waiting, interrupts, soft_interrupts, stolen = fields
    return (user + nice + system + interrupts + soft_interrupts + stolen) / os.sysconf("SC_CLK_TCK")
