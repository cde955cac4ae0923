"""The API's end of the socket: starts the engine's process, and turns its frames into generations' tokens."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from contextlib import suppress
from typing import Any

import msgspec

from kvplan_engine.errors import EngineError, SettingsError
from kvplan_engine.requests.request import LoRARequest
from kvplan_engine.requests.sampling_params import SamplingParams
from kvplan_engine.server.engine_client.generation import (
    EngineDead,
    Generation,
    Mailbox,
    RequestRefused,
)
from kvplan_engine.server.engine_client.in_flight import AdmissionQueue, CommandsInFlight, RequestsInFlight
from kvplan_engine.server.engine_client.process import MachineShare, describe_ending, start_process
from kvplan_engine.server.engine_client.routing import ONLY_ROUTE, EngineLoad, Route, Router
from kvplan_engine.server.messages import (
    Abort,
    Add,
    Carved,
    Command,
    Failed,
    FrameReader,
    FromEngine,
    LoadModel,
    ModelFacts,
    PoolFacts,
    PromptLogprobsMessage,
    Ready,
    Refused,
    Reply,
    Step,
    Stop,
    decode_from_engine,
    frame,
)
from kvplan_engine.server.metrics.state import AdaptersInFlight, EngineMetrics

_STOP_PATIENCE_SECONDS = 5.0


class EngineClient(asyncio.Protocol):
    """One engine process. It is not restarted: when it dies the server ends, and its supervisor starts a new one.

    ``model`` and ``pool`` are there once ``start`` has returned. ``dead`` is set when the process ends.
    """

    model: ModelFacts
    pool: PoolFacts

    def __init__(self, metrics: EngineMetrics, queue: AdmissionQueue, dead: asyncio.Event) -> None:
        self.failure: EngineError | None = None
        self._dead = dead
        self._metrics = metrics
        self._in_flight = RequestsInFlight(metrics, queue)
        self._frames = FrameReader()
        self._commands = CommandsInFlight()
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = asyncio.Event()
        self._ready: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._number = 0
        self._router: Router | None = None

    def use_router(self, number: int, router: Router | None) -> None:
        """``router``, where there are several engines, is told what engine ``number`` has."""
        self._number, self._router = number, router
        self._in_flight.router = router

    # ---- the process

    async def start(self, model: str, settings: dict[str, Any], share: MachineShare) -> None:
        """Start the process and load ``model``. EngineError when that fails."""
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = start_process(theirs, share.environment(os.environ))
        self._transport, _ = await loop.create_unix_connection(lambda: self, sock=ours)
        tells_answers = self._router is not None
        self._send(LoadModel(model, share.settings(settings), share.cpu_bytes(), tells_answers, self._number))
        await self._ready

    @property
    def idle(self) -> asyncio.Event:
        """Set while no request is in flight."""
        return self._in_flight.idle

    def load(self) -> EngineLoad:
        """What the engine has to do now."""
        return self._in_flight.load(self.pool)

    def adapters_in_flight(self) -> AdaptersInFlight:
        """Which adapters have requests now."""
        return self._in_flight.adapters()

    @property
    def is_dead(self) -> bool:
        """Whether the process has ended; ``failure`` then says how."""
        return self._ended.is_set()

    async def stop(self) -> None:
        """End the process: in good order if it still listens, otherwise by force."""
        if self._process is None:
            return
        if self._transport is not None and not self.is_dead:
            self._send(Stop())
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._ended.wait(), _STOP_PATIENCE_SECONDS)
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if self._transport is not None:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The process has ended: nobody gets an answer any more."""
        assert self._process is not None, "it is at the other end"
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)  # the socket closes as the process ends
        if self.failure is None:
            self.failure = EngineError(f"{self._name} {describe_ending(self._process.returncode)}.")
        self._ended.set()
        self._dead.set()
        self._in_flight.idle.set()
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(self.failure)
        error = EngineDead(self.failure.message)
        for generation in self._in_flight.generations:
            self._in_flight.finish_all(generation, "error")
            generation.mailbox.fail(error)
        self._commands.fail(error)

    @property
    def _name(self) -> str:
        return "The engine process" if self._router is None else f"The process of engine {self._number}"

    def _send(self, message: msgspec.Struct) -> None:
        assert self._transport is not None, "started before anything is sent"
        self._transport.write(frame(message))

    # ---- requests

    def submit(
        self,
        prompt_token_ids: list[int],
        params: SamplingParams,
        arrival: float,
        mailbox: Mailbox,
        first_choice: int,
        lora_request: LoRARequest | None = None,
        route: Route = ONLY_ROUTE,
        cache_salt: str | None = None,
    ) -> Generation:
        """Send a request, whose tokens go to ``mailbox``. EngineDead, or Overloaded when too much is queued."""
        self.check_alive()
        adapter = None if lora_request is None else lora_request.name
        generation = self._in_flight.add(len(prompt_token_ids), params, arrival, mailbox, first_choice, adapter, route)
        self._send(Add(generation.first, prompt_token_ids, params, lora_request, cache_salt))
        return generation

    def abort(self, generation: Generation) -> None:
        """Stop all that is unfinished of ``generation``; nothing when it is finished."""
        if generation.num_unfinished:
            self._in_flight.finish_all(generation, "abort")
            if not self.is_dead:
                self._send(Abort(generation.first))

    def end_answer(self, generation: Generation, choice: int) -> None:
        """``choice`` is complete for its reader, at a stop string: the engine need not go on with it."""
        index = choice - generation.first_choice
        if self._in_flight.end_answer(generation, index) and not self.is_dead:
            self._send(Abort(generation.first, index))

    def abort_all(self, reason: Exception) -> None:
        """Stop every request in flight; their readers are told ``reason``."""
        for generation in self._in_flight.generations:
            self.abort(generation)
            generation.mailbox.fail(reason)

    def check_alive(self) -> None:
        """EngineDead when the process has ended."""
        if self.is_dead:
            raise EngineDead(self.failure.message if self.failure else "The engine process has ended.")

    # ---- commands

    async def command(self, name: str, **arguments: Any) -> Any:
        """What the engine's command returns. EngineError when it fails, EngineDead when the process ends."""
        self.check_alive()
        assert self._transport is not None, "started before anything is sent"
        number = self._commands.next_number()
        encoded = frame(Command(number, name, arguments))  # first: for what cannot be encoded no reply is awaited
        reply = self._commands.add(number)
        self._transport.write(encoded)
        return await reply

    # ---- frames

    def data_received(self, data: bytes) -> None:
        messages = self._frames.feed(data)
        for message in messages:
            self._take(decode_from_engine(message), is_late=message is not messages[-1])

    def _take(self, message: FromEngine, *, is_late: bool) -> None:
        if isinstance(message, Step):
            self._in_flight.take_step(message, is_late=is_late)
        elif isinstance(message, PromptLogprobsMessage):
            self._in_flight.take_prompt_logprobs(message)
        elif isinstance(message, Ready):
            self.model = message.model
            self._use_pool(message.pool)
            if self._ready is not None and not self._ready.done():
                self._ready.set_result(None)
        elif isinstance(message, Carved):
            self._use_pool(message.pool)
        elif isinstance(message, Failed):
            kind = SettingsError if message.is_usage else EngineError
            self.failure = kind(message.message, hint=message.hint)
        elif isinstance(message, Refused):
            self._refuse(message)
        elif isinstance(message, Reply):
            self._commands.take(message)

    def _use_pool(self, pool: PoolFacts) -> None:
        self.pool = pool
        self._metrics.use_pool(pool)
        if self._router is not None:
            self._router.use_pool(self._number, pool)

    def _refuse(self, message: Refused) -> None:
        generation = self._in_flight.find(message.first)
        if generation is not None:
            self._in_flight.finish_all(generation, "error")
            generation.mailbox.fail(RequestRefused(message.message))
