"""One kept HTTP connection to a server, and what goes wrong with an address in one sentence.

For readings and questions, one at a time; the load itself has a client of its own (kvplan.load.client).

An answer of a server that nobody vouches for: ``http.client``'s, with an end to its bytes and to its time.

``http.client`` counts neither: a timeout of a socket begins anew with every byte, and a body is as long as the server
says. Everything that an answer sends counts here, whatever HTTP calls it: heads, sizes of chunks, trailers, bodies.
"""

from __future__ import annotations

import http.client
import io
import json
import socket
import ssl
import time
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, Final, cast
from urllib.parse import urlsplit

from kvplan.errors import KvplanError, UsageError
from kvplan.files import parse_json
from kvplan.units import MIB, format_bytes

MOST_ANSWER_BYTES: Final = 16 * MIB
"""A page of metrics has some 200 KB for each data-parallel engine, and settings and lists of models have less."""
_PIECE_BYTES: Final = 65536
DEFAULT_TIMEOUT_SECONDS: Final = 10.0
_USER_AGENT: Final = "kvplan"


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server listens. path: what its endpoints have in front of them, '' for most."""

    host: str
    port: int
    path: str = ""
    is_tls: bool = False

    @staticmethod
    def parse(text: str) -> ServerAddress:
        """``localhost:8000``, ``http://10.0.0.1:8000/v1`` or ``https://host/prefix``. UsageError otherwise."""
        url = text if "://" in text else f"http://{text}"
        try:
            parts = urlsplit(url)
            port = parts.port
            (parts.hostname or "").encode("idna")  # as every resolver does: labels of 1 to 63 characters
        except ValueError:
            raise UsageError(f"'{text}' is not an address.", hint="for example http://localhost:8000") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"'{text}' is not an address.", hint="for example http://localhost:8000")
        is_tls = parts.scheme == "https"
        path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
        return ServerAddress(parts.hostname, port or (443 if is_tls else 80), path, is_tls)

    @property
    def host_header(self) -> str:
        """``host:port`` as the Host header has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_tls else 80) else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self.host_header}{self.path}"


@dataclass(frozen=True, slots=True)
class Response:
    """status and body of an answer."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", errors="replace")

    def json(self) -> Any:
        """The body as JSON; None if it is none, or none that a server means."""
        try:
            return parse_json(self.body)
        except ValueError:
            return None


class PersistentConnection:
    """A connection that is kept from one question to the next. Not for several threads at once.

    timeout_seconds: for a whole answer, from the question to its last byte.
    """

    def __init__(
        self, address: ServerAddress, api_key: str | None = None, *, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    ) -> None:
        self.address = address
        self._headers = {"User-Agent": _USER_AGENT, "Accept": "*/*"}
        if api_key:
            if not api_key.isascii() or not api_key.isprintable():
                raise UsageError("The API key has characters that no header can have.", hint="check --api-key")
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._timeout_seconds = timeout_seconds
        kind = http.client.HTTPSConnection if address.is_tls else http.client.HTTPConnection
        self._connection = kind(address.host, address.port)

    def __enter__(self) -> PersistentConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def get(self, path: str) -> Response:
        """GET below the address's path. KvplanError if the server cannot be reached or does not speak HTTP."""
        return self.ask("GET", path)

    def ask(self, method: str, path: str, document: object = None) -> Response:
        """A question with an optional JSON body; a connection that the server has closed meanwhile is opened again."""
        body = None if document is None else json.dumps(document).encode()
        headers = self._headers | ({"Content-Type": "application/json"} if body is not None else {})
        is_kept = self._connection.sock is not None
        deadline = time.monotonic() + self._timeout_seconds
        try:
            return self._ask(method, path, body, headers, deadline)
        except (http.client.BadStatusLine, ConnectionResetError, BrokenPipeError) as error:
            self.close()
            if not is_kept:
                raise unreachable(self.address, error) from error
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise unreachable(self.address, error) from error
        try:
            return self._ask(method, path, body, headers, deadline)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise unreachable(self.address, error) from error

    def _ask(self, method: str, path: str, body: bytes | None, headers: dict[str, str], deadline: float) -> Response:
        whole = self.address.path + path
        return Response(*ask(self._connection, method, whole, body, headers, Allowance(deadline)))


def unreachable(address: ServerAddress, error: Exception) -> KvplanError:
    """What to say of a server that does not answer."""
    url = address.url
    if isinstance(error, ConnectionRefusedError):
        return KvplanError(
            f"No server listens at {url}.", hint="start one, for example with `kvplan serve` or `vllm serve`"
        )
    if isinstance(error, socket.gaierror):
        return KvplanError(f"There is no host called {address.host}.", hint="check the address")
    if isinstance(error, TimeoutError):
        return KvplanError(f"The server at {url} does not answer in time.", hint="is it still loading its model?")
    if isinstance(error, ssl.SSLCertVerificationError):
        return KvplanError(
            f"The certificate of {url} is not trusted: {error.verify_message}.",
            hint="SSL_CERT_FILE names a file with the certificate authority",
        )
    if isinstance(error, ssl.SSLError):
        why = getattr(error, "reason", None) or error  # only those that OpenSSL raises have a reason
        return KvplanError(f"No secure connection to {url}: {why}.", hint="http:// instead of https://?")
    if isinstance(error, TooLongError):
        size = format_bytes(MOST_ANSWER_BYTES)
        return KvplanError(f"An answer of {url} has more than {size}.", hint="is it the server that you mean?")
    if isinstance(error, http.client.HTTPException):
        return KvplanError(f"What listens at {url} does not speak HTTP.", hint="check the port, and http or https")
    return KvplanError(f"The server at {url} cannot be reached: {error}.", hint="check the address")


class TooLongError(http.client.HTTPException):
    """An answer of more bytes than any that is meant."""


@dataclass(slots=True)
class Allowance:
    """What an answer may still take. deadline: on ``time.monotonic()``'s clock."""

    deadline: float
    num_bytes: int = MOST_ANSWER_BYTES

    @property
    def seconds(self) -> float:
        """What is left of the time. TimeoutError if nothing is."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer takes too long")
        return left


class _BoundedReader(io.RawIOBase):
    """A socket's bytes, as long as the allowance lasts."""

    def __init__(self, connected: socket.socket, allowance: Allowance) -> None:
        self._socket, self._allowance = connected, allowance
        self._raw = cast(io.RawIOBase, connected.makefile("rb", buffering=0))

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        allowance = self._allowance
        self._socket.settimeout(allowance.seconds)
        num_read = self._raw.readinto(buffer)
        allowance.num_bytes -= num_read or 0
        if allowance.num_bytes < 0:
            raise TooLongError("the answer is too long")
        return num_read

    def close(self) -> None:
        self._raw.close()
        super().close()


class _BoundedSocket:
    """Stands for a socket where ``HTTPResponse`` asks it for a file."""

    def __init__(self, connected: socket.socket, allowance: Allowance) -> None:
        self._socket, self._allowance = connected, allowance

    def makefile(self, mode: str) -> IO[bytes]:
        return io.BufferedReader(_BoundedReader(self._socket, self._allowance), _PIECE_BYTES)


def ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes | None,
    headers: dict[str, str],
    allowance: Allowance,
) -> tuple[int, bytes]:
    """Status and body of an answer. OSError or HTTPException for whatever goes wrong."""
    connection.timeout = allowance.seconds
    connection.response_class = partial(_bounded_response, allowance)  # type: ignore[assignment]  # it is only called
    if connection.sock is not None:
        connection.sock.settimeout(allowance.seconds)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    pieces = []
    while piece := answer.read(_PIECE_BYTES):  # as it comes: a body's own length is only the server's word
        pieces.append(piece)
    if answer.length:  # of a body with a length, what did not come
        raise http.client.IncompleteRead(b"", answer.length)
    return answer.status, b"".join(pieces)


def _bounded_response(
    allowance: Allowance, connected: socket.socket, *args: Any, **options: Any
) -> http.client.HTTPResponse:
    return http.client.HTTPResponse(cast(socket.socket, _BoundedSocket(connected, allowance)), *args, **options)
