"""A server process of the tests: ``python -m kvplan_engine.server`` at a port of its own, and plain HTTP to it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

SMALL: dict[str, Any] = {"device": "cpu", "device_memory": "256MiB", "max_num_seqs": 64, "dtype": "float32"}


class HttpAnswer(NamedTuple):
    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """OpenAI's error object."""
        error: dict[str, Any] = self.json["error"]
        return error


class ServerProcess:
    """Started with the options of ``ServerOptions``. A context manager: leaving it ends the process.

    before: a line of Python that the process runs first.
    """

    def __init__(self, model: str, settings: dict[str, Any] | None = None, *, before: str = "", **options: Any) -> None:
        given = {"model": model, "port": 0, "settings": {**SMALL, **(settings or {})}, **options}
        run = f"{before}import runpy; runpy.run_module('kvplan_engine.server', run_name='__main__')"
        self._start(["-c", run] if before else ["-m", "kvplan_engine.server"], json.dumps(given))

    @classmethod
    def of_command(cls, arguments: list[str]) -> ServerProcess:
        """Started by another command of Python's."""
        server = cls.__new__(cls)
        server._start(arguments, "")
        return server

    def _start(self, arguments: list[str], options: str) -> None:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
            text=True,
        )
        assert self.process.stdin is not None
        with self.process.stdin as stdin:
            stdin.write(options)
        self.lines: list[str] = []
        self.url = self._wait_for_url()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _wait_for_url(self) -> str:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            found = re.search(r" at (http://\S+)", line)
            if found is not None:
                return found[1]
        self.process.stderr.close()
        raise AssertionError(f"exit code {self.process.wait()}: {''.join(self.lines)}")

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr:
            self.lines.extend(self.process.stderr)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self, number: int = signal.SIGTERM) -> int:
        """The exit code, after signal ``number``."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            code = self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self._reader.join(60)
        return code

    # ---- HTTP

    def request(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> HttpAnswer:
        """body: bytes as they are, anything else as JSON."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method, headers=headers or {})
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                return HttpAnswer(answer.status, answer.read(), dict(answer.headers))
        except urllib.error.HTTPError as error:
            with error:
                return HttpAnswer(error.code, error.read(), dict(error.headers))

    def exchange(self, *pieces: bytes, pause: float = 0.0) -> bytes:
        """All that the server says to ``pieces``, each with a pause behind it, until it closes the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
            for piece in pieces:
                with suppress(BrokenPipeError, ConnectionResetError):  # it may have closed the connection by then
                    connection.sendall(piece)
                time.sleep(pause)
            received = b""
            while more := connection.recv(1 << 16):
                received += more
        return received

    def get(self, path: str) -> HttpAnswer:
        return self.request("GET", path)

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> HttpAnswer:
        return self.request("POST", path, body, headers)

    def complete(self, prompt: Any, **fields: Any) -> dict[str, Any]:
        """The whole answer of /v1/completions."""
        answer = self.post("/v1/completions", {"prompt": prompt, "temperature": 0.0, **fields})
        assert answer.status == 200, answer.body
        whole: dict[str, Any] = answer.json
        return whole

    def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The events of a stream, decoded; the last is "[DONE]"."""
        answer = self.post(path, {**body, "stream": True})
        assert answer.status == 200, answer.body
        return list(decoded_events(answer.body))

    # ---- what the server says of itself

    def stats(self) -> dict[str, Any]:
        """Of the engine, which checks the invariants of its pool first."""
        answer = self.get("/server_info")
        assert answer.status == 200, answer.body
        stats: dict[str, Any] = answer.json["stats"]
        return stats

    def engines(self) -> list[dict[str, Any]]:
        """What each engine says of itself, after it has checked the invariants of its pool."""
        answer = self.get("/server_info")
        assert answer.status == 200, answer.body
        engines: list[dict[str, Any]] = answer.json["engines"]
        return engines

    @property
    def engine_pid(self) -> int:
        return int(self.get("/server_info").json["engine_pid"])

    def metrics(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """Samples by name and labels, without those that every sample has."""
        common = {"engine", "model_name"}
        return {
            (sample.name, frozenset(pair for pair in sample.labels.items() if pair[0] not in common)): sample.value
            for family in text_string_to_metric_families(self.get("/metrics").body.decode())
            for sample in family.samples
        }

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics()[name, frozenset(labels.items())]

    def by_engine(self, name: str, **labels: str) -> list[float]:
        """A metric of each engine."""
        return [
            sample.value
            for family in text_string_to_metric_families(self.get("/metrics").body.decode())
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]

    def wait_until_idle(self) -> dict[str, Any]:
        """The statistics once nothing runs or waits any more."""
        return wait_for(self.stats, is_idle)


def is_idle(stats: dict[str, Any]) -> bool:
    """Of an engine's statistics."""
    return not (stats["num_requests_running"] or stats["num_requests_waiting"])


def plain(text: str) -> str:
    """With one U+FFFD for any run of them: how many stand for bytes that are no text depends on where they are cut."""
    return re.sub("\ufffd+", "\ufffd", text)


def decoded_events(stream: bytes) -> Iterator[Any]:
    for event in stream.decode().split("\n\n"):
        if event:
            assert event.startswith("data: "), event
            text = event.removeprefix("data: ")
            yield text if text == "[DONE]" else json.loads(text)


def wait_for(look: Callable[[], Any], is_reached: Callable[[Any], bool], seconds: float = 120.0) -> Any:
    """What ``look`` sees once ``is_reached``; the last sight fails the test when time is up."""
    deadline = time.monotonic() + seconds
    while not is_reached(seen := look()):
        assert time.monotonic() < deadline, f"not reached in {seconds} s: {seen}"
        time.sleep(0.02)
    return seen
