"""One kept HTTP connection to a server, and what goes wrong with an address in one sentence.

For readings and questions, one at a time; the load itself has a client of its own (kvplan.load.client).
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from kvplan.errors import KvplanError, UsageError
from kvplan.files import parse_json
from kvplan.metrics.bounded import MOST_ANSWER_BYTES, Allowance, TooLongError, ask
from kvplan.units import format_bytes

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
