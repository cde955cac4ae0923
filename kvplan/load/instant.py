"""An OpenAI-compatible server without a model: every token comes as soon as the connection takes it.

Each token is one write of its own, with usage, as engines send them when they are not behind; streams take turns.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Final, cast

import httptools

_HOST: Final = "127.0.0.1"
_MODEL: Final = "instant"
_HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_CHUNK: Final = (
    '{{"id":"cmpl-00000000000000000000000000000000","object":"text_completion","created":1700000000,'
    '"model":"instant","choices":[{{"index":0,"text":" word","logprobs":null,"finish_reason":{finish}}}],'
    '"usage":{{"prompt_tokens":{prompt},"completion_tokens":{number},"total_tokens":{total}}}}}'
)


def _chunked(payload: str) -> bytes:
    event = f"data: {payload}\n\n".encode()
    return f"{len(event):x}\r\n".encode() + event + b"\r\n"


def _events(num_prompt: int, num_output: int) -> list[bytes]:
    """The writes of one answer."""
    writes = [
        _chunked(
            _CHUNK.format(
                finish='"length"' if number == num_output else "null",
                prompt=num_prompt,
                number=number,
                total=num_prompt + number,
            )
        )
        for number in range(1, num_output + 1)
    ]
    return [*writes, _chunked("[DONE]") + b"0\r\n\r\n"]


class InstantProtocol(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._path = b""
        self._body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by class

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._path, self._body = url, b""

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._path == b"/v1/models":
            self._answer({"object": "list", "data": [{"id": _MODEL, "object": "model"}]})
        elif self._path.endswith(b"/completions"):
            self._stream(json.loads(self._body))
        else:
            self._answer({"error": {"message": "not found"}}, b"404 Not Found")

    def _answer(self, document: object, status: bytes = b"200 OK") -> None:
        assert self._transport is not None
        body = json.dumps(document).encode()
        self._transport.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))

    def _stream(self, request: dict[str, object]) -> None:
        assert self._transport is not None
        prompt = request.get("prompt") or json.dumps(request.get("messages"))
        writes = _events(len(str(prompt).split()), int(str(request.get("max_tokens") or 16)))
        self._transport.write(_HEAD)
        self._write_next(writes, 0)

    def _write_next(self, writes: list[bytes], place: int) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(writes[place])
        if place + 1 < len(writes):
            asyncio.get_running_loop().call_soon(self._write_next, writes, place + 1)


async def _serve() -> None:
    """Listens where the system has room, prints the port, and ends when its standard input does."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(InstantProtocol, _HOST, 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:
        asyncio.run(_serve())
    else:
        uvloop.run(_serve())
