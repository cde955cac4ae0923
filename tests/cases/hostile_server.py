"""A server that means harm: the bytes of its answers are what a test says, whatever HTTP has to say of them."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

Answer = Callable[[bytes], Iterable[bytes]]
"""From the body of a request to the pieces of its answer."""
CLOSE = b""
"""The piece after which the connection is closed; without it the server waits for the next request."""


def document(value: object, status: int = 200) -> Answer:
    """A JSON document, or a text, as an honest server sends it."""
    body = (value if isinstance(value, str) else json.dumps(value)).encode("utf-8", "surrogatepass")
    head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    return lambda _: (head + body,)


def raw(*pieces: bytes, keeps: bool = False) -> Answer:
    """Any bytes. keeps: the connection stays open after them."""
    return lambda _: pieces if keeps else (*pieces, CLOSE)


def endless(start: bytes, piece: bytes) -> Answer:
    """``piece`` for ever, until the client has had enough."""

    def answer(_: bytes) -> Iterator[bytes]:
        yield start
        while True:
            yield piece

    return answer


def dribble(start: bytes, piece: bytes = b"a", seconds: float = 0.05) -> Answer:
    """A byte now and then: each of them within every timeout of a socket."""

    def answer(_: bytes) -> Iterator[bytes]:
        yield start
        while True:
            time.sleep(seconds)
            yield piece

    return answer


def stream(*events: object) -> Answer:
    """Server-sent events; a dictionary is written as JSON."""
    lines = [event if isinstance(event, bytes) else b"data: " + json.dumps(event).encode() for event in events]
    return raw(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", *(line + b"\n\n" for line in lines))


class Hostile:
    """answers: path -> answer; others are 404. after: requests for completions that are served honestly before.

    asked: all paths, in order; authorizations: that header of each request, b"" where it has none.
    """

    def __init__(self, answers: dict[str, Answer], after: int = 0) -> None:
        self.answers, self.after = answers, after
        self.num_completions = self.num_connections = 0
        self.asked: list[str] = []
        self.authorizations: list[bytes] = []
        self.url = ""

    def answer(self, path: str, body: bytes) -> Iterable[bytes]:
        self.asked.append(path)
        if path == "/v1/completions":
            self.num_completions += 1
            if self.num_completions <= self.after:
                return _served(body)
        return self.answers.get(path, document("not found", 404))(body)


def _served(body: bytes) -> Iterable[bytes]:
    asked = json.loads(body)
    num_prompt, wanted = len(asked["prompt"].split()), asked["max_tokens"]
    events = [
        {
            "choices": [{"text": " w", "finish_reason": "length" if number == wanted else None}],
            "usage": {"prompt_tokens": num_prompt, "completion_tokens": number},
        }
        for number in range(1, wanted + 1)
    ]
    return stream(*events, b"data: [DONE]")(body)


@contextmanager
def hostile(answers: dict[str, Answer], after: int = 0) -> Iterator[Hostile]:
    """It listens until the block ends; what it still sends then ends with its connections."""
    server = Hostile({"/v1/models": document({"data": [{"id": "m", "max_model_len": 4096}]})} | answers, after)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        opened: list[socket.socket] = []

        def accept() -> None:
            with suppress(OSError):
                while True:
                    connection = listening.accept()[0]
                    server.num_connections += 1
                    opened.append(connection)
                    threading.Thread(target=_serve, args=(server, connection), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield server
        finally:
            with suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            for connection in opened:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                connection.close()


def _serve(server: Hostile, connection: socket.socket) -> None:
    with suppress(OSError, ValueError), connection, connection.makefile("rb") as lines:
        while request := lines.readline():
            heads = {}
            while (line := lines.readline()) not in (b"\r\n", b""):
                name, _, value = line.partition(b":")
                heads[name.lower()] = value.strip()
            body = lines.read(int(heads.get(b"content-length", 0)))
            server.authorizations.append(heads.get(b"authorization", b""))
            for piece in server.answer(request.split()[1].decode(), body):
                if piece == CLOSE:
                    return
                connection.sendall(piece)
