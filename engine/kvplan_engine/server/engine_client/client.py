"""The API's end of the socket: starts the engine's process, and turns its frames into generations' tokens."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from contextlib import suppress
from typing import Any

import msgspec

from kvplan_engine.errors import EngineError
from kvplan_engine.requests.adapter import LoRARequest
from kvplan_engine.requests.sampling_params import SamplingParams
from kvplan_engine.server.engine_client.admission import AdmissionQueue
from kvplan_engine.server.engine_client.commands import CommandsInFlight
from kvplan_engine.server.engine_client.generation import (
    EngineDead,
    Generation,
    Mailbox,
    RequestRefused,
)
from kvplan_engine.server.engine_client.in_flight import RequestsInFlight
from kvplan_engine.server.engine_client.process import describe_ending, start_process
from kvplan_engine.server.messages import (
    Abort,
    Add,
    Carved,
    Command,
    Failed,
    FrameReader,
    FromEngine,
    Load,
    ModelFacts,
    PoolFacts,
    PromptLogprobs,
    Ready,
    Refused,
    Reply,
    Step,
    Stop,
    decode_from_engine,
    frame,
)
from kvplan_engine.server.metrics.state import AdaptersInFlight, ServerMetrics

_STOP_PATIENCE_SECONDS = 5.0


class EngineClient(asyncio.Protocol):
    """One engine process. It is not restarted: when it dies the server ends, and its supervisor starts a new one.

    ``model`` and ``pool`` are there once ``start`` has returned. ``dead`` is set when the process ends.
    """

    model: ModelFacts
    pool: PoolFacts

    def __init__(self, metrics: ServerMetrics, queue: AdmissionQueue) -> None:
        self.dead = asyncio.Event()
        self._metrics = metrics
        self._in_flight = RequestsInFlight(metrics, queue)
        self._frames = FrameReader()
        self._commands = CommandsInFlight()
        self._open = asyncio.Event()  # cleared while the memory is carved anew
        self._ready: asyncio.Future[None] | None = None
        self._failure: EngineError | None = None
        self._is_stopping = False

    # ---- the process

    async def start(self, model: str, settings: dict[str, Any]) -> None:
        """Start the process and load ``model``. EngineError when that fails."""
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = start_process(theirs)
        self._transport, _ = await loop.create_unix_connection(lambda: self, sock=ours)
        self._send(Load(model, settings))
        await self._ready
        self._open.set()

    @property
    def is_dead(self) -> bool:
        return self.dead.is_set()

    @property
    def num_unfinished(self) -> int:
        """Answers in flight."""
        return self._in_flight.num_answers

    def adapters_in_flight(self) -> AdaptersInFlight:
        """Which adapters have requests now."""
        return self._in_flight.adapters()

    async def stop(self) -> None:
        """End the process: in good order if it still listens, otherwise by force."""
        self._is_stopping = True
        if not self.is_dead:
            self._send(Stop())
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.dead.wait(), _STOP_PATIENCE_SECONDS)
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The process has ended: nobody gets an answer any more."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)  # the socket closes as the process ends
        failure = self._failure or EngineError(f"The engine process {describe_ending(self._process.returncode)}.")
        self._failure = failure
        self.dead.set()
        self._open.set()
        self._in_flight.idle.set()
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(failure)
        error = EngineDead(failure.message)
        for generation in self._in_flight.generations:
            self._in_flight.finish_all(generation, "error")
            generation.mailbox.fail(error)
        self._commands.fail(error)

    def _send(self, message: msgspec.Struct) -> None:
        self._transport.write(frame(message))

    # ---- requests

    async def wait_until_open(self) -> None:
        """Until new requests may be submitted: at once, unless the memory is being carved anew."""
        if not self._open.is_set():
            await self._open.wait()

    def submit(
        self,
        prompt_token_ids: list[int],
        params: SamplingParams,
        arrival: float,
        mailbox: Mailbox,
        first_choice: int,
        lora_request: LoRARequest | None = None,
    ) -> Generation:
        """Send a request, whose tokens go to ``mailbox``. EngineDead, or Overloaded when too much is queued."""
        self._check_alive()
        adapter = None if lora_request is None else lora_request.name
        generation = self._in_flight.add(len(prompt_token_ids), params, arrival, mailbox, first_choice, adapter)
        self._send(Add(generation.first, prompt_token_ids, params, lora_request))
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

    def _check_alive(self) -> None:
        if self.is_dead:
            raise EngineDead(self._failure.message if self._failure else "The engine process has ended.")

    # ---- commands

    async def command(self, name: str, **arguments: Any) -> Any:
        """What the engine's command returns. EngineError when it fails, EngineDead when the process ends."""
        self._check_alive()
        number, reply = self._commands.add()
        self._send(Command(number, name, arguments))
        return await reply

    async def reconfigure(self, changes: dict[str, Any], patience_seconds: float) -> PoolFacts:
        """Carve the memory anew with ``changes``. New requests wait; those in flight are waited for.

        TimeoutError, with nothing changed, when some are still in flight after ``patience_seconds``.
        """
        if not self._open.is_set():
            raise EngineError("the memory is being carved anew already.", hint="try again when that is done")
        self._open.clear()
        try:
            await asyncio.wait_for(self._in_flight.idle.wait(), patience_seconds)
            await self.command("reconfigure", **changes)
            return self.pool
        finally:
            self._open.set()

    # ---- frames

    def data_received(self, data: bytes) -> None:
        messages = self._frames.feed(data)
        for message in messages:
            self._take(decode_from_engine(message), is_late=message is not messages[-1])

    def _take(self, message: FromEngine, *, is_late: bool) -> None:
        if isinstance(message, Step):
            self._in_flight.take_step(message, is_late=is_late)
        elif isinstance(message, PromptLogprobs):
            self._in_flight.take_prompt_logprobs(message)
        elif isinstance(message, Ready):
            self.model, self.pool = message.model, message.pool
            self._metrics.use_pool(message.pool)
            if self._ready is not None and not self._ready.done():
                self._ready.set_result(None)
        elif isinstance(message, Carved):
            self.pool = message.pool
            self._metrics.use_pool(message.pool)
        elif isinstance(message, Failed):
            self._failure = EngineError(message.message, hint=message.hint)
        elif isinstance(message, Refused):
            self._refuse(message)
        elif isinstance(message, Reply):
            self._commands.take(message)

    def _refuse(self, message: Refused) -> None:
        generation = self._in_flight.find(message.first)
        if generation is not None:
            self._in_flight.finish_all(generation, "error")
            generation.mailbox.fail(RequestRefused(message.message))
