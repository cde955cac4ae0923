"""The life of the server: bind, load, serve, drain, end."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import uvicorn
import uvloop

from kvplan_engine.errors import EngineError
from kvplan_engine.knob import refuse_beyond_64_bits
from kvplan_engine.requests.request import LoRARequest
from kvplan_engine.server.engine_client.in_flight import AdmissionQueue
from kvplan_engine.server.engine_client.replicas import Replicas
from kvplan_engine.server.http.application import Application
from kvplan_engine.server.http.bounds import WaitingConnections, WaitingTimes, most_connections
from kvplan_engine.server.http.connection import Connection
from kvplan_engine.server.http.control import add_adapter
from kvplan_engine.server.http.state import ServerState
from kvplan_engine.server.metrics.exposition import Exposition
from kvplan_engine.server.metrics.state import ServerMetrics
from kvplan_engine.server.openai.errors import unavailable
from kvplan_engine.server.options import ServerOptions

logger = logging.getLogger("kvplan_engine.server")

FAILED = 1
# What the kernel holds of a stream that is not sent yet. The rest waits in this process, which waits with it.
_UNSENT_BYTES = 128 * 1024
_TICK_SECONDS = 1.0
_LAG_PROBE_SECONDS = 1.0
_CLOSE_SECONDS = 1  # for connections that are still open when nothing is in flight any more


def run(options: ServerOptions) -> int:
    """Serve until a signal or the engine's death; the exit code. EngineError when the server cannot start."""
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(_serve(options))
    finally:
        loop.close()


async def _serve(options: ServerOptions) -> int:
    for name, value in options.settings.items():
        refuse_beyond_64_bits(name, value)
    with _bound(options) as listener:
        metrics = ServerMetrics(options.data_parallel_size)
        client = Replicas(metrics, AdmissionQueue(options.max_num_queued_reqs, options.max_num_queued_tokens))
        metrics.adapters = client.adapters_in_flight
        state = ServerState(options, client, metrics, Exposition(metrics, options.model_names[0]))
        ending = _Ending(state)
        try:
            await _load(client, options, ending)
            if ending.is_asked:
                return 0
            state.read_model()
            for name, path in options.lora_modules.items():
                await add_adapter(state, LoRARequest(name, path))
            return await _serve_loaded(state, listener, ending)
        finally:
            await state.close()
            await client.stop()


async def _load(client: Replicas, options: ServerOptions, ending: _Ending) -> None:
    """Load the model, or stop loading when a signal arrives."""
    loading = asyncio.ensure_future(client.start(options.model, options.settings))
    asked = asyncio.ensure_future(ending.asked.wait())
    await asyncio.wait({loading, asked}, return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if not loading.done():
        loading.cancel()
    with suppress(asyncio.CancelledError):
        await loading


async def _serve_loaded(state: ServerState, listener: socket.socket, ending: _Ending) -> int:
    server = _Server(_uvicorn_config(state), partial(_announce, state, listener))
    tasks = [asyncio.create_task(each) for each in (ending.watch(server), _probe_lag(state.metrics))]
    gc.collect()
    gc.freeze()  # what start-up made stays for good: collections need not look at it
    try:
        await server.serve(sockets=[listener])
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return FAILED if ending.is_engine_dead else 0


class _Server(uvicorn.Server):
    """A server without uvicorn's signal handlers, which know nothing of draining; ``announce`` is called once it
    listens.

    It ends once ``ended`` is set. uvicorn looks ten times a second whether it should: each look would find the
    processor's caches cold, and cost more than the tokens of several streams.
    """

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = announce
        self.ended = asyncio.Event()

    async def main_loop(self) -> None:
        while not self.ended.is_set():
            await self.on_tick(0)  # the date in every answer's head
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.ended.wait(), _TICK_SECONDS)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._announce()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _uvicorn_config(state: ServerState) -> uvicorn.Config:
    times = WaitingTimes(state.options.timeout_keep_alive, state.options.client_header_timeout)
    return uvicorn.Config(
        Application(state),
        lifespan="off",
        http=partial(Connection, times, WaitingConnections(most_connections())),  # type: ignore[arg-type]
        ws="none",
        proxy_headers=False,
        loop="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_CLOSE_SECONDS,
    )


class _Ending:
    """Why and how the server ends: a first signal lets requests in flight finish, a second one does not wait."""

    def __init__(self, state: ServerState) -> None:
        self.asked = asyncio.Event()
        self.is_engine_dead = False
        self._at_once = asyncio.Event()
        self._state = state
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)

    @property
    def is_asked(self) -> bool:
        return self.asked.is_set()

    def _on_signal(self) -> None:
        (self._at_once if self.is_asked else self.asked).set()

    async def watch(self, server: _Server) -> None:
        """Until a signal or the engine's death; then see to it that ``server`` ends."""
        client = self._state.client
        await _first(self.asked.wait, client.dead.wait)
        if client.is_dead:
            self.is_engine_dead = True
            logger.error("%s", client.ending())
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.asked.wait(), self._state.options.dead_engine_seconds)
        await self._drain()
        server.ended.set()

    async def _drain(self) -> None:
        """Take no new requests, give those in flight their time, and end the others with an error."""
        state = self._state
        state.is_draining = True
        deadline = time.monotonic() + state.options.shutdown_timeout
        while state.num_open and time.monotonic() < deadline:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._at_once.wait(), 0.05)
            if self._at_once.is_set() or not state.client.is_anyone_alive:
                break
        state.client.abort_all(unavailable("The server is shutting down."))
        await asyncio.sleep(0.05)  # for the errors to be written


async def _first(*waits: Callable[[], Awaitable[object]]) -> None:
    tasks = [asyncio.ensure_future(wait()) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def _probe_lag(metrics: ServerMetrics) -> None:
    """How much later than asked this process wakes up: it is late when something blocks its loop."""
    while True:
        due = time.perf_counter() + _LAG_PROBE_SECONDS
        await asyncio.sleep(_LAG_PROBE_SECONDS)
        metrics.loop_lag.observe(max(0.0, time.perf_counter() - due))


@contextmanager
def _bound(options: ServerOptions) -> Iterator[socket.socket]:
    """A socket at the address, before minutes go into loading a model; it does not listen yet."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as problem:
        raise EngineError(f"the server cannot listen on '{options.host}': {problem.strerror or problem}.") from None
    except UnicodeError:  # of IDNA, for a label that is empty or too long
        raise EngineError(f"the server cannot listen on '{options.host}': that is not the name of a host.") from None
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # inherited by connections: ends those of clients that are gone without a word, or never read
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, options.dead_client_seconds * 1000)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, options.dead_client_seconds)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        try:
            listener.bind(address)
        except OSError as problem:
            raise EngineError(
                f"port {options.port} of {options.host} cannot be used: {problem.strerror or problem}.",
                hint="choose another with --port",
            ) from None
        yield listener


def _announce(state: ServerState, listener: socket.socket) -> None:
    pool, num_engines = state.client.pool, len(state.client.engines)
    each = f" in each of {num_engines} engines" if num_engines > 1 else ""
    num_tokens = pool.num_blocks * pool.block_size
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    touched = f"; {pool.touched_bytes / 2**20:,.0f} MiB of it already backed by memory" if pool.touched_bytes else ""
    print(
        f"KV cache: {num_tokens:,} tokens in {pool.num_blocks:,} blocks of {pool.block_size}, "
        f"{num_tokens / pool.max_model_len:.1f} sequences of {pool.max_model_len:,} tokens{each}{touched}\n"
        f"serving {state.options.model_names[0]} at http://{shown}:{port}",
        file=sys.stderr,
        flush=True,
    )
