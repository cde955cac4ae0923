"""The ASGI application: from a path to its handler, and from an exception to an answer."""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
from collections.abc import Awaitable, Callable

from kvplan_engine.errors import EngineError
from kvplan_engine.server.engine_client.generation import EngineDead, RequestRefused
from kvplan_engine.server.engine_client.in_flight import Overloaded
from kvplan_engine.server.http import control, generating, service
from kvplan_engine.server.http.exchange import ClientGone, Exchange, Receive, Scope, Send
from kvplan_engine.server.http.state import ServerState
from kvplan_engine.server.openai.errors import ApiError, Headers, bad_request, unavailable
from kvplan_engine.server.options import ServerOptions
from kvplan_engine.server.text.template_messages import TemplateFailed

# Cross-origin requests: whether a page of another server may read the answers, as a browser asks for it.
#
# Options, defaults and answers are those of vLLM, which has them from Starlette.


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


logger = logging.getLogger("kvplan_engine.server")

Handler = Callable[[ServerState, Exchange], Awaitable[None]]

ROUTES: dict[str, dict[str, Handler]] = {
    "/v1/completions": {"POST": generating.completions},
    "/v1/chat/completions": {"POST": generating.chat_completions},
    "/v1/models": {"GET": service.models},
    "/v1/runtime_config": {"GET": control.show_runtime_config, "PATCH": control.change_runtime_config},
    "/tokenize": {"POST": service.tokenize},
    "/detokenize": {"POST": service.detokenize},
    "/health": {"GET": service.health},
    "/ping": {"GET": service.health, "POST": service.health},
    "/load": {"GET": service.load},
    "/version": {"GET": service.show_version},
    "/metrics": {"GET": service.show_metrics},
    "/server_info": {"GET": control.server_info},
    "/reset_prefix_cache": {"POST": control.reset_prefix_cache},
    "/v1/load_lora_adapter": {"POST": control.load_adapter},
    "/v1/unload_lora_adapter": {"POST": control.unload_adapter},
}
_WITHOUT_KEY = frozenset({"/health", "/ping", "/load", "/version", "/metrics"})
_WHILE_DRAINING = _WITHOUT_KEY | {"/server_info"}


class Application:
    """Serves ``state``."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._key_digests = [hashlib.sha256(key.encode()).digest() for key in state.options.api_keys]
        self._cross_origin = CrossOrigin(state.options)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # a websocket: there is none here
            await send({"type": "websocket.close", "code": 1000})
            return
        exchange = Exchange(scope, receive, send)
        self._state.num_open += 1
        try:
            await self._answer(exchange)
        finally:
            self._state.num_open -= 1
            seconds = time.perf_counter() - exchange.arrival_seconds
            handler = _handler_label(exchange.path)
            if exchange.status:
                self._state.metrics.count_http(handler, exchange.method, exchange.status, seconds)

    async def _answer(self, exchange: Exchange) -> None:
        exchange.extra_headers = self._cross_origin.headers(exchange)
        try:
            if self._cross_origin.is_preflight(exchange):
                await self._cross_origin.answer_preflight(exchange)
                return
            handler = self._handler(exchange)
            self._check_key(exchange)
            if self._state.is_draining and exchange.path not in _WHILE_DRAINING:
                raise unavailable("The server is shutting down.")
            await handler(self._state, exchange)
        except ClientGone:
            return
        except Exception as problem:  # noqa: BLE001 - the last place where a client can still be told
            await self._tell(exchange, self._error(problem))

    def _handler(self, exchange: Exchange) -> Handler:
        if exchange.path.startswith(service.MODEL_PATH):
            methods: dict[str, Handler] = {"GET": service.model}
        else:
            methods = ROUTES.get(exchange.path, {})
        if not methods:
            raise ApiError(404, f"There is nothing at {exchange.path}.", "NotFoundError")
        handler = methods.get(exchange.method)
        if handler is None and exchange.method == "OPTIONS":
            return _say_methods
        if handler is None:
            allowed = ", ".join(methods)
            message = f"{exchange.path} takes {allowed}, not {exchange.method}."
            raise ApiError(405, message, "MethodNotAllowed", headers=[(b"allow", allowed.encode())])
        return handler

    def _check_key(self, exchange: Exchange) -> None:
        """Check it in the same time for every key, right or wrong."""
        if not self._key_digests or exchange.path in _WITHOUT_KEY:
            return
        scheme, _, key = exchange.header(b"authorization").partition(b" ")
        digest = hashlib.sha256(key.strip()).digest()
        matches = [hmac.compare_digest(digest, own) for own in self._key_digests]
        if scheme.lower() != b"bearer" or not any(matches):
            headers = [(b"www-authenticate", b"Bearer")]
            raise ApiError(401, "The API key is missing or wrong.", "AuthenticationError", headers=headers)

    def _error(self, problem: Exception) -> ApiError:
        if isinstance(problem, ApiError):
            return problem
        if isinstance(problem, Overloaded):
            self._state.metrics.num_rejections[problem.reason] += 1
            return unavailable(str(problem))
        if isinstance(problem, EngineDead):
            return unavailable(f"The engine is not running: {problem}", retry_after_seconds=10)
        if isinstance(problem, (RequestRefused, TemplateFailed)):
            return bad_request(str(problem))
        if isinstance(problem, EngineError):
            return bad_request(problem.message)
        logger.exception("a request failed")
        return ApiError(500, "The server failed on this request; its log says how.", "InternalServerError")

    async def _tell(self, exchange: Exchange, error: ApiError) -> None:
        """Tell the error as the answer, or within the stream that has begun."""
        if not exchange.status:
            await exchange.answer(error.status, error.body(), error.headers)
            return
        await exchange.write(b"data: " + error.body() + b"\n\ndata: [DONE]\n\n")
        await exchange.end_stream()


async def _say_methods(state: ServerState, exchange: Exchange) -> None:
    """What a path takes, where nothing else is asked."""
    methods = ("GET",) if exchange.path.startswith(service.MODEL_PATH) else tuple(ROUTES[exchange.path])
    await exchange.answer(204, b"", [(b"allow", ", ".join((*methods, "OPTIONS")).encode())])


def _handler_label(path: str) -> str:
    """The route, not the path: metrics have a label for each."""
    if path.startswith(service.MODEL_PATH):
        return service.MODEL_PATH + "{model}"
    return path if path in ROUTES else "none"
