"""Sends a running server what only an attacker sends, and watches /health and the API process's memory meanwhile.

    kvplan serve MODEL --port 8000 &
    python tools/check_hostile.py 127.0.0.1:8000

One line for each attack: what was answered, how often /health was asked, its p99 and worst latency in ms, and the
resident memory of the process that listens, in MB: at most, and when the attack is over. Exit code 1 where /health
took longer than --most-ms.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

_PAUSE_SECONDS = 0.01
_MIB = 1 << 20


@dataclass
class Watch:
    """What /health did while an attack ran: latencies in seconds, the largest resident memory in bytes."""

    latencies: list[float] = field(default_factory=list)
    num_failures: int = 0
    most_bytes: int = 0


class Server:
    """The server at ``address``; memory is read of process ``pid``."""

    def __init__(self, address: str, pid: int) -> None:
        host, _, port = address.rpartition(":")
        self.host, self.port, self.pid = host, int(port), pid

    def resident_bytes(self) -> int:
        """Of the process that listens."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def connect(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=120)

    def post(self, path: str, body: bytes) -> str:
        """The status of an answer, and how it begins."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=300)
        try:
            connection.request("POST", path, body, {"content-type": "application/json"})
            answer = connection.getresponse()
            return f"{answer.status} {answer.read(60)!r}"
        except OSError as problem:
            return type(problem).__name__
        finally:
            connection.close()

    def watched(self, attack: Callable[[], str]) -> tuple[str, Watch]:
        """What ``attack`` came to, and what /health did meanwhile and a second longer."""
        ours, theirs = multiprocessing.Pipe()
        watcher = multiprocessing.Process(target=self._watch, args=(theirs,))
        watcher.start()  # a process of its own: what the attack costs here would count as the server's time
        ours.recv()
        outcome = attack()
        time.sleep(1.0)
        ours.send(None)
        watch: Watch = ours.recv()
        watcher.join()
        return outcome, watch

    def _watch(self, orders: Connection) -> None:
        watch = Watch()
        orders.send(None)
        while not orders.poll():
            began = time.perf_counter()
            try:
                connection = http.client.HTTPConnection(self.host, self.port, timeout=120)
                connection.request("GET", "/health")
                connection.getresponse().read()
                connection.close()
            except OSError:
                watch.num_failures += 1
            watch.latencies.append(time.perf_counter() - began)
            watch.most_bytes = max(watch.most_bytes, self.resident_bytes())
            time.sleep(_PAUSE_SECONDS)
        orders.send(watch)


# ---- attacks


def _answer(connection: socket.socket) -> str:
    """The beginning of what the server says, or that it says nothing."""
    try:
        return repr(connection.recv(40))
    except OSError as problem:
        return type(problem).__name__


def _sent(connection: socket.socket, data: bytes, times: int) -> int:
    """How many of ``times`` copies of ``data`` the server took."""
    for number in range(times):
        try:
            connection.sendall(data)
        except OSError:
            return number
    return times


def nothing(server: Server) -> str:
    """What the machine itself does to /health."""
    time.sleep(3.0)
    return ""


def long_prompt(server: Server) -> str:
    return server.post("/v1/completions", json.dumps({"prompt": "the cat sat " * (31 * _MIB // 12)}).encode())


def long_tokenize(server: Server) -> str:
    return server.post("/tokenize", json.dumps({"prompt": "the cat sat " * (31 * _MIB // 12)}).encode())


def long_chat(server: Server) -> str:
    messages = [{"role": "user", "content": "the cat sat " * (31 * _MIB // 12)}]
    return server.post("/v1/chat/completions", json.dumps({"messages": messages}).encode())


def million_characters(server: Server) -> str:
    """As a text that is truncated, so that all of it has to be encoded."""
    body = {"prompt": "the cat sat " * 83_000, "truncate_prompt_tokens": 8, "max_tokens": 1}
    return server.post("/v1/completions", json.dumps(body).encode())


def many_tokens(server: Server) -> str:
    return server.post("/detokenize", b'{"tokens": [' + b"5," * (15 * _MIB) + b"5]}")


def many_lists(server: Server) -> str:
    return server.post("/v1/completions", b'{"prompt": "a", "user": [' + b"[]," * (10 * _MIB) + b"1]}")


def huge_header(server: Server) -> str:
    with server.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\na: ")
        number = _sent(connection, b"x" * _MIB, 300)
        with suppress(OSError):
            connection.sendall(b"\r\n\r\n")
        return f"{number} of 300 MiB taken, {_answer(connection)}"


def many_headers(server: Server) -> str:
    with server.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n")
        number = _sent(connection, b"a: b\r\n" * 10_000, 400)
        with suppress(OSError):
            connection.sendall(b"\r\n")
        return f"{number * 10_000:,} of 4,000,000 taken, {_answer(connection)}"


def idle_connections(server: Server) -> str:
    with ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(server.connect())
        time.sleep(3.0)
    return "1,000 opened"


def dribbling_heads(server: Server) -> str:
    return _dribble(server, b"GET /health HTTP/1.1\r\nhost: ")


def dribbling_bodies(server: Server) -> str:
    return _dribble(server, b'POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n{"prompt": "')


def _dribble(server: Server, beginning: bytes) -> str:
    """300 connections, a byte on each every tenth of a second."""
    with ExitStack() as stack:
        connections = [stack.enter_context(server.connect()) for _ in range(300)]
        for connection in connections:
            connection.sendall(beginning)
        for _ in range(50):
            for connection in connections:
                _sent(connection, b"x", 1)
            time.sleep(0.1)
    return "300 opened"


def many_choices(server: Server) -> str:
    """As many as one request may have."""
    return server.post("/v1/completions", json.dumps({"prompt": [[5]] * 1024, "n": 16, "max_tokens": 1}).encode())


def pipelined(server: Server) -> str:
    with server.connect() as connection:
        number = _sent(connection, b"GET /nothing HTTP/1.1\r\n\r\n" * 5000, 1)
        return f"{number * 5000:,} taken, {_answer(connection)}"


ATTACKS: tuple[Callable[[Server], str], ...] = (
    nothing, long_prompt, long_tokenize, long_chat, million_characters, many_tokens, many_lists, huge_header,
    many_headers, idle_connections, dribbling_heads, dribbling_bodies, pipelined,
    many_choices,
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the attacks, and say whether /health was quick enough in all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="HOST:PORT")
    parser.add_argument("--pid", type=int, required=True, help="the process that listens: memory is read of it")
    parser.add_argument("--most-ms", type=float, default=100.0, help="that /health may take (default: 100)")
    parser.add_argument("--attack", action="append", choices=[attack.__name__ for attack in ATTACKS])
    chosen = parser.parse_args(arguments)
    server = Server(chosen.address, chosen.pid)
    worst = 0.0
    print(
        f"{'attack':20s} {'seconds':>8s} {'asked':>6s} {'p99 ms':>8s} {'max ms':>8s} {'most MB':>8s} {'after MB':>8s}"
    )
    for attack in ATTACKS:
        if chosen.attack and attack.__name__ not in chosen.attack:
            continue
        began = time.perf_counter()
        outcome, watch = server.watched(lambda attack=attack: attack(server))  # type: ignore[misc]
        ordered = sorted(watch.latencies)
        worst = max(worst, ordered[-1])
        numbers = (ordered[int(0.99 * (len(ordered) - 1))] * 1e3, ordered[-1] * 1e3)
        memory = (watch.most_bytes / 1e6, server.resident_bytes() / 1e6)
        seconds = time.perf_counter() - began - 1.0
        failed = f" ({watch.num_failures} failed)" if watch.num_failures else ""
        print(
            f"{attack.__name__:20s} {seconds:8.1f} {len(ordered):6d} {numbers[0]:8.1f} {numbers[1]:8.1f} "
            f"{memory[0]:8.0f} {memory[1]:8.0f}  {outcome}{failed}",
            flush=True,
        )
    return 1 if worst * 1e3 > chosen.most_ms else 0


if __name__ == "__main__":
    sys.exit(main())
