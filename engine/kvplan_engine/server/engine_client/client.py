"""The API's end of the socket: starts the engine's process, and turns its frames into generations' tokens."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from itertools import count
from typing import Any

import msgspec

from kvplan_engine.errors import EngineError
from kvplan_engine.requests.adapter import LoRARequest
from kvplan_engine.requests.sampling_params import SamplingParams
from kvplan_engine.server.engine_client.admission import AdmissionQueue
from kvplan_engine.server.engine_client.generation import (
    Answer,
    EngineDead,
    Generation,
    Mailbox,
    RequestRefused,
    TokenEvent,
)
from kvplan_engine.server.messages import (
    Abort,
    Add,
    Carved,
    Command,
    Ended,
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
    TokenLogprobs,
    decode_from_engine,
    frame,
)
from kvplan_engine.server.metrics.state import AdaptersInFlight, FinishedAnswer, ServerMetrics

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
        self._queue = queue
        self._frames = FrameReader()
        self._answers: dict[int, Answer] = {}  # by number, those that are not finished
        self._generations: dict[int, Generation] = {}  # by the number of their first answer
        self._next_number = 0
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._command_numbers = count()
        self._open = asyncio.Event()  # cleared while the memory is carved anew
        self._idle = asyncio.Event()
        self._idle.set()
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
            # A session of its own: Ctrl-C in the terminal reaches this process alone, which then drains.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kvplan_engine.server.engine_process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno(),
                start_new_session=True,
            )
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
        return len(self._answers)

    def adapters_in_flight(self) -> AdaptersInFlight:
        """Which adapters have requests now."""
        names: tuple[set[str], set[str]] = (set(), set())
        for generation in self._generations.values():
            if generation.adapter is not None:
                names[generation.scheduled_seconds is None].add(generation.adapter)
        return AdaptersInFlight(*(tuple(sorted(each)) for each in names))

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
        failure = self._failure or EngineError(f"The engine process {_ending(self._process.returncode)}.")
        self._failure = failure
        self.dead.set()
        self._open.set()
        self._idle.set()
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(failure)
        error = EngineDead(failure.message)
        for generation in list(self._generations.values()):
            self._finish_all(generation, "error")
            generation.mailbox.fail(error)
        for reply in self._replies.values():
            reply.set_exception(error)
        self._replies.clear()

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
        self._queue.enter(len(prompt_token_ids))
        first = self._next_number
        self._next_number += params.n
        adapter = None if lora_request is None else lora_request.name
        generation = Generation(first, len(prompt_token_ids), params, arrival, mailbox, first_choice, adapter)
        self._generations[first] = generation
        self._answers.update(enumerate(generation.answers, first))
        self._idle.clear()
        self._send(Add(first, prompt_token_ids, params, lora_request))
        return generation

    def abort(self, generation: Generation) -> None:
        """Stop all that is unfinished of ``generation``; nothing when it is finished."""
        if generation.num_unfinished:
            self._finish_all(generation, "abort")
            if not self.is_dead:
                self._send(Abort(generation.first))

    def end_answer(self, generation: Generation, choice: int) -> None:
        """``choice`` is complete for its reader, at a stop string: the engine need not go on with it."""
        index = choice - generation.first_choice
        number = generation.first + index
        if number in self._answers:
            self._finish(generation.answers[index], number, "stop", 0)
            if not self.is_dead:
                self._send(Abort(generation.first, index))

    def abort_all(self, reason: Exception) -> None:
        """Stop every request in flight; their readers are told ``reason``."""
        for generation in list(self._generations.values()):
            self.abort(generation)
            generation.mailbox.fail(reason)

    def _check_alive(self) -> None:
        if self.is_dead:
            raise EngineDead(self._failure.message if self._failure else "The engine process has ended.")

    # ---- commands

    async def command(self, name: str, **arguments: Any) -> Any:
        """What the engine's command returns. EngineError when it fails, EngineDead when the process ends."""
        self._check_alive()
        number = next(self._command_numbers)
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
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
            await asyncio.wait_for(self._idle.wait(), patience_seconds)
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
            self._take_step(message, is_late=is_late)
        elif isinstance(message, PromptLogprobs):
            if message.first in self._generations:  # not aborted meanwhile
                self._generations[message.first].prompt_logprobs = message
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
            self._take_reply(message)

    def _take_reply(self, message: Reply) -> None:
        reply = self._replies.pop(message.number)
        if reply.done():
            return
        if message.error is None:
            reply.set_result(message.value)
        else:
            reply.set_exception(EngineError(message.error, hint=message.hint))

    def _refuse(self, message: Refused) -> None:
        generation = self._generations.get(message.first)
        if generation is not None:
            self._finish_all(generation, "error")
            generation.mailbox.fail(RequestRefused(message.message))

    def _take_step(self, step: Step, *, is_late: bool) -> None:
        self._metrics.count_step(step)
        for begun in step.begun:
            generation = self._generations.get(begun.first)
            if generation is not None and generation.scheduled_seconds is None:
                self._begin(generation, begun.seconds, begun.num_cached_tokens)
        ended = {each.answer: each for each in step.ended}
        logprobs = {each.answer: each for each in step.logprobs}
        answers = [self._answers.get(number) for number in step.answers]  # None: aborted while the step ran
        self._note_times(answers, step.seconds)
        for number, answer, token in zip(step.answers, answers, step.tokens, strict=True):
            if answer is None:
                continue
            if number in ended or number in logprobs:
                self._put(answer, number, token, ended.get(number), logprobs.get(number))
            else:
                answer.mailbox.put_ordinary(answer.choice, token, is_late)

    def _put(self, answer: Answer, number: int, token: int, end: Ended | None, logprobs: TokenLogprobs | None) -> None:
        if end is None:
            answer.mailbox.put(TokenEvent(answer.choice, token, logprobs=logprobs))
            return
        self._finish(answer, number, end.reason, end.num_preemptions)
        answer.mailbox.put(TokenEvent(answer.choice, token, end.reason, end.stop_token, logprobs))

    def _begin(self, generation: Generation, seconds: float, num_cached_tokens: int) -> None:
        generation.scheduled_seconds = seconds
        generation.num_cached_tokens = num_cached_tokens
        self._queue.leave(generation.num_prompt_tokens)
        self._metrics.count_prompt(generation.num_prompt_tokens, num_cached_tokens)

    def _note_times(self, answers: list[Answer | None], seconds: float) -> None:
        """Each of ``answers`` got a token at ``seconds``."""
        since: dict[float, int] = {}  # by the time of the token before: nearly all had it in the same step
        for answer in answers:
            if answer is None:
                continue
            if answer.num_tokens:
                since[answer.last_token] = since.get(answer.last_token, 0) + 1
            else:
                answer.first_token = seconds
                arrival = self._generations[answer.first].arrival_seconds
                self._metrics.time_to_first_token.observe(seconds - arrival)
            answer.last_token = seconds
            answer.num_tokens += 1
        for before, times in since.items():
            self._metrics.inter_token_latency.observe(seconds - before, times)

    def _finish(self, answer: Answer, number: int, reason: str, num_preemptions: int) -> None:
        """Answer ``number`` is complete: no token of it is taken any more."""
        generation = self._generations[answer.first]
        del self._answers[number]
        generation.num_unfinished -= 1
        if not generation.num_unfinished:
            del self._generations[answer.first]
        if not self._generations:
            self._idle.set()
        self._metrics.count_answer(
            FinishedAnswer(
                reason=reason,
                arrival=generation.arrival_seconds,
                finished=time.perf_counter(),
                scheduled=generation.scheduled_seconds,
                first_token=answer.first_token if answer.num_tokens else None,
                last_token=answer.last_token,
                num_prompt_tokens=generation.num_prompt_tokens,
                num_cached_tokens=generation.num_cached_tokens,
                num_generated_tokens=answer.num_tokens,
                num_preemptions=num_preemptions,
                max_tokens=generation.params.max_tokens,
                num_samples=generation.params.n,
            )
        )

    def _finish_all(self, generation: Generation, reason: str) -> None:
        if generation.scheduled_seconds is None:
            self._queue.leave(generation.num_prompt_tokens)
            generation.scheduled_seconds = None
        for number, answer in enumerate(generation.answers, generation.first):
            if number in self._answers:
                self._finish(answer, number, reason, 0)


def _ending(code: int | None) -> str:
    if code is None:
        return "closed its connection"
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
