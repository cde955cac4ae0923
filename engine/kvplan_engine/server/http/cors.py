"""Cross-origin requests: whether a page of another server may read the answers, as a browser asks for it.

Options, defaults and answers are those of vLLM, which has them from Starlette.
"""

from __future__ import annotations

from kvplan_engine.server.http.exchange import Exchange
from kvplan_engine.server.openai.errors import Headers
from kvplan_engine.server.options import ServerOptions

_ANY = "*"
_ALL_METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
_ALWAYS_ALLOWED = frozenset({"accept", "accept-language", "content-language", "content-type"})
_CACHED_SECONDS = b"600"


class CrossOrigin:
    """What pages of which origins may do. An origin is scheme, host and port, such as ``https://chat.example``."""

    def __init__(self, options: ServerOptions) -> None:
        self._origins = frozenset(options.allowed_origins)
        self._is_any_origin = _ANY in self._origins
        self._methods = _ALL_METHODS if _ANY in options.allowed_methods else options.allowed_methods
        self._is_any_header = _ANY in options.allowed_headers
        self._headers = _ALWAYS_ALLOWED | {name.lower() for name in options.allowed_headers}
        self._allows_credentials = options.allow_credentials

    def headers(self, exchange: Exchange) -> Headers:
        """What an answer to ``exchange`` carries; nothing where no browser asks, or its page may not read it."""
        origin = _text(exchange, b"origin")
        if not origin or not self._is_allowed(origin):
            return []
        is_named = not self._is_any_origin or self._allows_credentials or bool(exchange.header(b"cookie"))
        headers = _named(origin) if is_named else [(b"access-control-allow-origin", b"*")]
        if self._allows_credentials:
            headers.append((b"access-control-allow-credentials", b"true"))
        return headers

    def _is_allowed(self, origin: str) -> bool:
        return self._is_any_origin or origin in self._origins

    @staticmethod
    def is_preflight(exchange: Exchange) -> bool:
        """Whether a browser asks what it may send, before it does."""
        asks = exchange.header(b"origin") and exchange.header(b"access-control-request-method")
        return exchange.method == "OPTIONS" and bool(asks)

    async def answer_preflight(self, exchange: Exchange) -> None:
        """200, or a 400 that says what is not allowed. No key is needed: browsers send none with it."""
        method = _text(exchange, b"access-control-request-method")
        wanted = _text(exchange, b"access-control-request-headers")
        names = [name.strip().lower() for name in wanted.split(",") if name.strip()]
        refused = [
            what
            for what, is_allowed in (
                ("origin", self._is_allowed(_text(exchange, b"origin"))),
                ("method", method in self._methods),
                ("headers", self._is_any_header or self._headers.issuperset(names)),
            )
            if not is_allowed
        ]
        headers: Headers = [
            (b"access-control-allow-methods", ", ".join(self._methods).encode()),
            (b"access-control-max-age", _CACHED_SECONDS),
            (b"content-type", b"text/plain; charset=utf-8"),
        ]
        allowed = wanted if self._is_any_header else ", ".join(sorted(self._headers))
        if allowed:
            headers.append((b"access-control-allow-headers", allowed.encode()))
        text = "Disallowed CORS " + ", ".join(refused) if refused else "OK"
        await exchange.answer(400 if refused else 200, text.encode(), headers)


def _named(origin: str) -> Headers:
    return [(b"access-control-allow-origin", origin.encode()), (b"vary", b"Origin")]


def _text(exchange: Exchange, name: bytes) -> str:
    """A header that may be sent back: "" for one with letters that an answer's head cannot have."""
    text = exchange.header(name).decode("latin-1")
    return text if text.isascii() and text.isprintable() else ""
